"""The kernels that `tilewright.route_torch` registers with PyTorch's dispatcher.

They stand in the place of PyTorch's own kernels for CUDA, beneath autograd, autocast, tracers and vmap, which work as
before: `F.linear` arrives here as `mm` or `addmm`, the gradients of a product as two more `mm`. A call that is not ours
goes on to the kernel that stood there before.

The dispatcher is one for the process; the block lies in the thread-local state of PyTorch, which the threads that
compute gradients share with the thread that asked for them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright import extras
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend.compute import compute
from tilewright.frontend.libraries import library_of
from tilewright.frontend.options import PLAIN, Precision, options_of
from tilewright.integrations.routed import Routed
from tilewright.notices import say_once

torch: Any = extras.require("torch", "Routing the products of PyTorch")

from tilewright.integrations.torch_mode import FORMATS, Mode, may_use_tf32  # noqa: E402
from tilewright.integrations.torch_scaled import scaled_mm, scaled_mm_v2  # noqa: E402

KEY = "CUDA"
"""The dispatch key of the tensors whose products are routed."""

_LIBRARY: Any = library_of(torch.empty(0))
_TLS = "tilewright.routing"
_stash, _in_tls, _from_tls = torch._C._stash_obj_in_tls, torch._C._is_key_in_tls, torch._C._get_obj_in_tls


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
        for name, kernel in _KERNELS.items():
            try:
                before = torch.library.get_kernel(f"aten::{name}", KEY)
            except RuntimeError:
                if name in _LATER:
                    continue
                raise
            registered.impl(name, partial(kernel, before), KEY, with_keyset=True, allow_override=True)
    return registered


# -- kernels: of the one before, and the keys and arguments of a call --------------------------------------------------


def _mm(before: Any, keys: Any, a: Any, b: Any, **out: Any) -> Any:
    block = _block()
    if block is not None:
        result = _product(block, 2, a, b, None, 1, 1, out.get("out"))
        if result is not None:
            return result
    return before.call_boxed(keys, a, b, **out)


def _bmm(before: Any, keys: Any, a: Any, b: Any, **out: Any) -> Any:
    block = _block()
    if block is not None:
        result = _product(block, 3, a, b, None, 1, 1, out.get("out"))
        if result is not None:
            return result
    return before.call_boxed(keys, a, b, **out)


def _addmm(before: Any, keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **out: Any) -> Any:
    block = _block()
    if block is not None:
        result = _product(block, 2, a, b, c, alpha, beta, out.get("out"))
        if result is not None:
            return result
    return before.call_boxed(keys, c, a, b, beta=beta, alpha=alpha, **out)


def _baddbmm(before: Any, keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **out: Any) -> Any:
    block = _block()
    if block is not None:
        result = _product(block, 3, a, b, c, alpha, beta, out.get("out"))
        if result is not None:
            return result
    return before.call_boxed(keys, c, a, b, beta=beta, alpha=alpha, **out)


def _scaled(product: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a product with scales."""

    def kernel(before: Any, keys: Any, *given: Any, **named: Any) -> Any:
        block = _block()
        if block is not None:
            result = product(block, *given, **named)
            if result is not None:
                return result
        return before.call_boxed(keys, *given, **named)

    return kernel


_LATER: dict[str, Callable[..., Any]] = {
    "_scaled_mm": _scaled(scaled_mm), "_scaled_mm.out": _scaled(scaled_mm),
    "_scaled_mm_v2": _scaled(scaled_mm_v2), "_scaled_mm_v2.out": _scaled(scaled_mm_v2),
}  # fmt: skip
"""Those of operators that not every version of PyTorch has."""

_KERNELS: dict[str, Callable[..., Any]] = {
    **_LATER,
    "mm": _mm, "mm.out": _mm, "bmm": _bmm, "bmm.out": _bmm,
    "addmm": _addmm, "addmm.out": _addmm, "baddbmm": _baddbmm, "baddbmm.out": _baddbmm,
}  # fmt: skip


def _product(block: Routing, dimensions: int, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
    """The product by tilewright; None where PyTorch shall compute it, or say what is wrong."""
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
    if dtype is torch.float32:
        precision = "tf32" if may_use_tf32() else block.precision
    options = (
        PLAIN
        if c is None and precision == "default" and alpha == 1
        else options_of(
            float(alpha), None if c is None else float(beta), None, precision, None, False, None, c is not None
        )
    )
    try:
        result = compute(_LIBRARY, a, b, out, c, bias, options)
    except ProblemError as refused:
        return block.decline(_reason(refused))
    except LaunchError as failure:
        if not _LIBRARY.capturing():
            raise
        say_once(f"route_torch leaves a product to PyTorch: {failure.headline}")
        return block.decline("first met in a CUDA graph capture")
    block.count()
    return result


def _reason(refused: ProblemError) -> str:
    """An error of a call, in few words."""
    return refused.headline.rstrip(".")
