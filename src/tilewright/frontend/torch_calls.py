"""Calls with PyTorch tensors: those that are remembered whole, and those that PyTorch must see as an operator."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.libraries import TorchArrays

_MEMO: dict[Any, Any] = {}
"""What is known of plain calls, by all that decides them but addresses."""


class Remembered:
    """A plain call: its plan, and the tensor to make."""

    __slots__ = ("call", "device", "dtype", "index", "launch", "shape")

    def __init__(self, result: Any, call: Any) -> None:
        direct = call.plan.direct if len(call.offsets) == 1 and not call.swapped else None
        self.shape = tuple(result.shape)
        self.dtype = result.dtype
        self.device = result.device
        self.index = result.get_device()
        self.launch = direct.launch if direct is not None else None
        self.call = call


def fast_call(library: TorchArrays) -> Any:
    """The function that answers plain calls of plain tensors, or None where it knows no plan."""
    torch = library.torch
    get, empty, stream = _MEMO.get, torch.empty, library.stream
    is_compiling, grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
    many = torch.cuda.device_count() > 1
    current = torch.cuda.current_device

    def fast(a: Any, b: Any) -> Any:
        if is_compiling():
            return None
        try:
            at_a, at_b = a.data_ptr(), b.data_ptr()
            key = (
                a.dtype, a.shape, a.stride(), a.get_device(), at_a & 15,
                b.dtype, b.shape, b.stride(), b.get_device(), at_b & 15,
            )  # fmt: skip
        except (AttributeError, RuntimeError):
            return None
        known = get(key)
        if known is None or type(b) is not type(a) and type(b) not in _PLAIN:
            return None
        if grad_enabled() and (a.requires_grad or b.requires_grad):
            return None
        if many and current() != known.index:
            return None
        result = empty(known.shape, dtype=known.dtype, device=known.device)
        if known.launch is not None:
            known.launch(stream(known.index), at_a, at_b, result.data_ptr())
        else:
            from tilewright.frontend.calls import NOTHING, run

            run(library, known.call, (at_a, at_b, result.data_ptr(), NOTHING), known.index, result)
        return result

    return fast


_PLAIN: set[type] = set()


def remember(library: TorchArrays, a: Any, b: Any, result: Any, call: Any) -> None:
    """The next call like this is answered without being looked at."""
    from tilewright.frontend.calls import _FAST

    if not _PLAIN:
        _PLAIN.update((library.torch.Tensor, library.torch.nn.Parameter))
        _FAST.update(dict.fromkeys(_PLAIN, fast_call(library)))
    if type(a) not in _PLAIN or type(b) not in _PLAIN:
        return
    if len(_MEMO) > 4096:
        _MEMO.clear()
    _MEMO[_key(a, b)] = Remembered(result, call)


def handed_over(library: TorchArrays, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Any) -> Any:
    """The result, where PyTorch must see the call as an operator (it compiles, or wants gradients); else None."""
    return None


def words_of(a: Any, b: Any) -> str:
    """What runs for a plain call that was made before, for people."""
    known = _MEMO.get(_key(a, b))
    return known.call.plan.words if known is not None else ""


def _key(a: Any, b: Any) -> Any:
    return (
        a.dtype, a.shape, a.stride(), a.get_device(), a.data_ptr() & 15,
        b.dtype, b.shape, b.stride(), b.get_device(), b.data_ptr() & 15,
    )  # fmt: skip
