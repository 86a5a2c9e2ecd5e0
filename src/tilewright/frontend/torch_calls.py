"""Calls with PyTorch tensors: those that are known already, and those that PyTorch must see as an operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tilewright.frontend.libraries import TorchArrays
from tilewright.frontend.options import PLAIN, Options
from tilewright.frontend.remembered import MEMO, run, run_into
from tilewright.frontend.remembered import words_of as _words_of


def fast_call(library: TorchArrays) -> Callable[..., Any]:
    """The function that answers known calls of plain tensors, where PyTorch need not see them."""
    torch = library.torch
    grad_enabled, observers = torch.is_grad_enabled, _observers(torch)
    forward = torch.autograd.forward_ad
    plain = _plain(torch)
    known, known_into = known_call(library), known_call_into(library)

    def fast(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
        if type(b) not in plain or observers() or forward._current_level >= 0:
            return None
        if (c is not None and type(c) not in plain) or (bias is not None and type(bias) not in plain):
            return None
        if grad_enabled() and (
            a.requires_grad
            or b.requires_grad
            or (c is not None and c.requires_grad)
            or (bias is not None and bias.requires_grad)
        ):
            return None
        if out is None:
            return known(a, b, c, bias, options)
        if type(out) not in plain or (grad_enabled() and out.requires_grad):
            return None
        if not known_into(a, b, out, c, bias, options):
            return None
        note_written(out)
        return out

    return fast


def known_call(library: TorchArrays) -> Callable[..., Any]:
    """The function that answers known calls; None where it knows nothing."""
    torch = library.torch
    # empty_strided takes 3 us less than empty, whose first overload must be refused before the second is tried.
    get, empty, stream = MEMO.get, torch.empty_strided, library.stream
    many = torch.cuda.device_count() > 1
    current = torch.cuda.current_device
    sign = library.sign

    def known(a: Any, b: Any, c: Any, bias: Any, options: Options) -> Any:
        try:
            at_a, at_b = a.data_ptr(), b.data_ptr()
            key = (
                options, None if c is None else sign(c), None if bias is None else sign(bias),
                a.dtype, a.shape, a.stride(), a.get_device(), at_a & 15,
                b.dtype, b.shape, b.stride(), b.get_device(), at_b & 15,
            )  # fmt: skip
        except (AttributeError, RuntimeError):
            return None
        found = get(key)
        if found is None or (many and current() != found.index):
            return None
        result = empty(found.shape, found.strides, dtype=found.dtype, device=found.device)
        if found.launch is not None and c is None and bias is None:
            found.launch(stream(found.index), at_a, at_b, result.data_ptr())
            return result
        return result if run(library, found, a, b, c, bias, result) else None

    return known


def known_call_into(library: TorchArrays) -> Callable[..., bool]:
    """The function that answers known calls whose result goes into `out`; False where it knows nothing."""
    many = library.torch.cuda.device_count() > 1
    current = library.torch.cuda.current_device

    def known_into(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> bool:
        try:
            elsewhere = many and current() != out.get_device()
            return not elsewhere and run_into(library, a, b, out, c, bias, options)
        except (AttributeError, RuntimeError):  # no tensor, or one that is no memory
            return False

    return known_into


def handed_over(library: TorchArrays, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options) -> Any:
    """The result, where PyTorch must see the call as an operator: it traces, wants derivatives, or knows the tensors to
    be more than memory (a subclass, a tensor inside vmap). Else None."""
    torch = library.torch
    tensors = [x for x in (a, b, c, bias, out) if x is not None]
    if (
        all(type(x) in _plain(torch) for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        and not _observers(torch)()
        and not has_tangents()
        and torch._C._get_tracing_state() is None
        and not _are_mapped(tensors)
    ):
        return None
    from tilewright.frontend.pytorch.operator import call, words_of

    return call(a, b, out, c, bias, words_of(options))


def note_written(out: Any) -> None:
    """Tell autograd that a tensor has changed: `backward` refuses to use what it kept of it."""
    if not out.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(out)


def has_tangents() -> bool:
    """Whether tensors may carry derivatives forward."""
    return int(sys.modules["torch"].autograd.forward_ad._current_level) >= 0


def is_compiling() -> bool:
    """Whether PyTorch is compiling the code that runs now."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def words_of(a: Any, b: Any, options: Options = PLAIN) -> str:
    """What runs for a call that was made before, for people; empty where it is not known."""
    return _words_of(a, b, options)


def _plain(torch: Any) -> frozenset[type]:
    return frozenset((torch.Tensor, torch.nn.Parameter))


def _observers(torch: Any) -> Callable[[], int]:
    """How many modes look at every operator: a tracer, a counter of operations."""
    found: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)
    return found


def _are_mapped(tensors: list[Any]) -> bool:
    """Whether one is not memory but stands for it, as tensors inside torch.func do."""
    try:
        for tensor in tensors:
            tensor.data_ptr()
    except RuntimeError:
        return True
    return False
