"""The kernels that `tilewright.route_torch` registers with PyTorch's dispatcher.

They stand in the place of PyTorch's own kernels for CUDA, beneath autograd, autocast, tracers and vmap, which work as
before: `F.linear` arrives here as `mm` or `addmm`, the gradients of a product as two more `mm`. A call that is not ours
goes on to the kernel that stood there before.

The dispatcher is one for the process; the block lies in the thread-local state of PyTorch, which the threads that
compute gradients share with the thread that asked for them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from tilewright import extras
from tilewright.frontend.compute import MEMO, compute
from tilewright.frontend.libraries import library_of
from tilewright.frontend.options import PLAIN, Precision, options_of
from tilewright.frontend.ragged import compute_groups
from tilewright.integrations.routed import Routed

torch: Any = extras.require("torch", "Routing the products of PyTorch")

from tilewright.integrations.torch_mode import FORMATS, Mode, may_use_tf32  # noqa: E402
from tilewright.integrations.torch_scaled import (  # noqa: E402
    laid_out,
    scaled_grouped_mm,
    scaled_grouped_mm_v2,
    scaled_mm,
    scaled_mm_v2,
    unless_refused,
)

KEY = "CUDA"
"""The dispatch key of the tensors whose products are routed."""

_LIBRARY: Any = library_of(torch.empty(0))
_F32 = torch.float32
_TLS = "tilewright.routing"
_in_tls, _from_tls = torch._C._is_key_in_tls, torch._C._get_obj_in_tls


def _stasher() -> Callable[[str, object], None]:
    """Puts an object into the thread-local state of PyTorch, which gives back a reference to it when another takes its
    place. PyTorch 2.11 does so without having taken one: it is taken here."""
    stash = torch._C._stash_obj_in_tls
    one = object()
    before = sys.getrefcount(one)
    stash(_TLS, one)
    if sys.getrefcount(one) > before:
        stash(_TLS, None)
        return stash  # type: ignore[no-any-return]

    def counted(key: str, kept: object) -> None:
        _take(kept)
        stash(key, kept)

    _take(one)
    counted(_TLS, None)
    return counted


def _take(one: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


_stash = _stasher()


def _tf32_of(getter: Any) -> Callable[[], bool]:
    """Whether the user allowed tf32, without the detours of the attribute behind which PyTorch keeps it."""
    return may_use_tf32 if getter is None else lambda: getter("cuda", "matmul") == "tf32"


_tf32 = _tf32_of(getattr(torch._C, "_get_fp32_precision_getter", None))


def routing(precision: Precision) -> Any:
    """A block: of the dispatcher where it can be, else a mode."""
    if torch.compiler.is_compiling() or not _can_register():
        return Mode(precision)
    return Routing(precision)


def _can_register() -> bool:
    """Whether PyTorch hands out the kernel that stands where ours shall stand."""
    try:
        torch.library.get_kernel("aten::mm.out", KEY)
    except (AttributeError, RuntimeError):  # PyTorch before 2.9, or without CUDA
        return False
    return True


class Routing(Routed):
    """A block, and what happened in it. It may be entered again, also within itself."""

    def __init__(self, precision: Precision = "default") -> None:
        super().__init__()
        self.precision = precision
        self._outer: list[Any] = []

    def __enter__(self) -> Routing:
        _install()
        self._outer.append(_block())
        _stash(_TLS, self)
        return self

    def __exit__(self, *raised: object) -> None:
        _stash(_TLS, self._outer.pop())
        _uninstall()


def _block() -> Routing | None:
    """The innermost block of the thread, or of the one for which it computes gradients."""
    return _from_tls(_TLS) if _in_tls(_TLS) else None


# -- the dispatcher -------------------------------------------------------------------------------------------------

_LOCK = threading.Lock()
_OPEN: list[Any] = []
"""The registrations, once for each open block: they end with the last."""


def _install() -> None:
    with _LOCK:
        _OPEN.append(_OPEN[0] if _OPEN else _registered())


def _uninstall() -> None:
    with _LOCK:
        registered = _OPEN.pop()
        if not _OPEN:
            registered._destroy()


def _registered() -> Any:
    """Our kernels in PyTorch's dispatcher, until what is returned is destroyed."""
    registered = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced, as is meant
        for name, (kernel, dimensions) in _KERNELS.items():
            try:
                before = torch.library.get_kernel(f"aten::{name}", KEY)
            except RuntimeError:  # this PyTorch has no such operator
                continue
            # Keys above ours were served before; handing over those of each call would take 0.4 us.
            keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))
            registered.impl(name, kernel(name, dimensions, before, keys), KEY, allow_override=True)
    return registered


# -- kernels, each made of the one that stood there before -------------------------------------------------------------

# A call that was made before is looked up by one flat key and started here, with no function in between: each costs a
# tenth of a microsecond. Keys lie beside those of `compute` in its memory, and are forgotten with them.


def _plain(name: str, dimensions: int, before: Any, keys: Any) -> Callable[..., Any]:
    """Of `mm`, `bmm`."""

    def kernel(a: Any, b: Any) -> Any:
        block = _from_tls(_TLS) if _in_tls(_TLS) else None
        if block is None:
            return before.call_boxed(keys, a, b)
        dtype, at_a, at_b = a.dtype, a.data_ptr(), b.data_ptr()
        key = (
            name, dtype is _F32 and (_tf32() or block.precision),
            dtype, a.shape, a.stride(), a.get_device(), at_a & 15,
            b.dtype, b.shape, b.stride(), b.get_device(), at_b & 15,
        )  # fmt: skip
        call: Any = MEMO.get(key)
        if call is not None:
            result = call.make()
            call.launch(_LIBRARY.stream(call.device), *call.pick((at_a, at_b, result.data_ptr(), 0, 0)))
            block.count()
            return result
        result = _product(block, dimensions, a, b, None, 1, 1, None, key)
        return before.call_boxed(keys, a, b) if result is None else result

    return kernel


def _adding(name: str, dimensions: int, before: Any, keys: Any) -> Callable[..., Any]:
    """Of `addmm`, `baddbmm`."""

    def kernel(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        block = _from_tls(_TLS) if _in_tls(_TLS) else None
        if block is None:
            return before.call_boxed(keys, c, a, b, beta=beta, alpha=alpha)
        dtype, at_a, at_b, at_c = a.dtype, a.data_ptr(), b.data_ptr(), c.data_ptr()
        key = (
            name, dtype is _F32 and (_tf32() or block.precision), alpha, beta, type(alpha), type(beta),
            dtype, a.shape, a.stride(), a.get_device(), at_a & 15,
            b.dtype, b.shape, b.stride(), b.get_device(), at_b & 15,
            c.dtype, c.shape, c.stride(), c.get_device(), at_c & 15,
        )  # fmt: skip
        call: Any = MEMO.get(key)
        if call is not None:
            result = call.make()
            # It is added as a bias or as a matrix, or left out; the call takes what it needs.
            call.launch(_LIBRARY.stream(call.device), *call.pick((at_a, at_b, result.data_ptr(), at_c, at_c)))
            block.count()
            return result
        result = _product(block, dimensions, a, b, c, alpha, beta, None, key)
        return before.call_boxed(keys, c, a, b, beta=beta, alpha=alpha) if result is None else result

    return kernel


def _plain_out(name: str, dimensions: int, before: Any, keys: Any) -> Callable[..., Any]:
    def kernel(a: Any, b: Any, *, out: Any) -> Any:
        block = _from_tls(_TLS) if _in_tls(_TLS) else None
        if block is None:
            return before.call_boxed(keys, a, b, out=out)
        dtype, at_a, at_b, at_out = a.dtype, a.data_ptr(), b.data_ptr(), out.data_ptr()
        key = (
            name, dtype is _F32 and (_tf32() or block.precision),
            dtype, a.shape, a.stride(), a.get_device(), at_a & 15,
            b.dtype, b.shape, b.stride(), b.get_device(), at_b & 15,
            out.dtype, out.shape, out.stride(), out.get_device(), at_out & 15,
        )  # fmt: skip
        call: Any = MEMO.get(key)
        addresses = at_a, at_b, at_out, 0, 0
        if call is not None and not call.shares_memory(addresses):
            call.launch(_LIBRARY.stream(call.device), *call.pick(addresses))
            block.count()
            return out
        result = _product(block, dimensions, a, b, None, 1, 1, out, key)
        return before.call_boxed(keys, a, b, out=out) if result is None else result

    return kernel


def _adding_out(name: str, dimensions: int, before: Any, keys: Any) -> Callable[..., Any]:
    def kernel(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
        block = _block()
        result = None if block is None else _product(block, dimensions, a, b, c, alpha, beta, out)
        return before.call_boxed(keys, c, a, b, beta=beta, alpha=alpha, out=out) if result is None else result

    return kernel


def _other(product: Callable[..., Any]) -> Callable[..., Any]:
    """Of an operator that `product` computes with its arguments, behind the block; or not: None."""

    def made(name: str, dimensions: int, before: Any, keys: Any) -> Callable[..., Any]:
        def kernel(*given: Any, **named: Any) -> Any:
            block = _block()
            result = None if block is None else product(block, *given, **named)
            return before.call_boxed(keys, *given, **named) if result is None else result

        return kernel

    return made


def _groups(block: Routing, a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """`_grouped_mm`, which is `grouped_matmul` with offsets; None where PyTorch shall compute it, or say what is
    wrong."""
    if a.dtype not in FORMATS or b.dtype is not a.dtype:
        return block.decline(str(a.dtype).removeprefix("torch."))
    if offs is None or bias is not None or out_dtype not in (None, a.dtype):
        return block.decline("_grouped_mm without offsets, with a bias or into another format")
    return unless_refused(block, lambda: laid_out(compute_groups(_LIBRARY, a, b, offs, PLAIN)))


_KERNELS: dict[str, tuple[Callable[..., Callable[..., Any]], int]] = {
    "mm": (_plain, 2), "mm.out": (_plain_out, 2), "bmm": (_plain, 3), "bmm.out": (_plain_out, 3),
    "addmm": (_adding, 2), "addmm.out": (_adding_out, 2), "baddbmm": (_adding, 3), "baddbmm.out": (_adding_out, 3),
    "_grouped_mm": (_other(_groups), 3),
    "_scaled_mm": (_other(scaled_mm), 2), "_scaled_mm.out": (_other(scaled_mm), 2),
    "_scaled_grouped_mm": (_other(scaled_grouped_mm), 3), "_scaled_grouped_mm_v2": (_other(scaled_grouped_mm_v2), 3),
    "_scaled_mm_v2": (_other(scaled_mm_v2), 2), "_scaled_mm_v2.out": (_other(scaled_mm_v2), 2),
}  # fmt: skip


def _product(
    block: Routing, dimensions: int, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any, key: Any = None
) -> Any:
    """The product by tilewright; None where PyTorch shall compute it, or say what is wrong. key: of a call that may be
    started without asking all this again."""
    dtype = a.dtype
    if dtype not in FORMATS:
        return block.decline(str(dtype).removeprefix("torch."))
    if a.dim() != dimensions or b.dim() != dimensions or (dimensions == 3 and a.shape[0] != b.shape[0]):
        return block.decline("shapes that do not multiply")
    bias = None
    if c is not None:
        if isinstance(alpha, complex) or isinstance(beta, complex):
            return block.decline("complex factors")
        if beta == 1 and c.dim() == 1 and c.shape == b.shape[-1:]:
            c, bias = None, c
        elif beta == 0:
            c = None
    precision: Precision = "default"
    if dtype is _F32:
        precision = "tf32" if _tf32() else block.precision
    options = (
        PLAIN
        if c is None and precision == "default" and alpha == 1
        else options_of(
            float(alpha), None if c is None else float(beta), None, precision, None, False, None, c is not None
        )
    )
    result = unless_refused(block, lambda: compute(_LIBRARY, a, b, out, c, bias, options))
    if key is not None and result is not None:
        call = MEMO.get(_LIBRARY.key(options, a, b, c, bias, out))
        if call is not None and call.launch is not None:
            MEMO[key] = call
    return result
