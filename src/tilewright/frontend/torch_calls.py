"""Calls with PyTorch tensors: those that are known already, and those that PyTorch must see as an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.frontend.libraries import TorchArrays
from tilewright.frontend.options import PLAIN, Options
from tilewright.frontend.remembered import MEMO, run
from tilewright.frontend.remembered import words_of as _words_of


def fast_call(library: TorchArrays) -> Callable[..., Any]:
    """The function that answers known calls of plain tensors."""
    torch = library.torch
    get, empty, stream = MEMO.get, torch.empty, library.stream
    is_compiling, grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
    many = torch.cuda.device_count() > 1
    current = torch.cuda.current_device
    plain = frozenset((torch.Tensor, torch.nn.Parameter))
    sign = library.sign

    def fast(a: Any, b: Any, c: Any, bias: Any, options: Options) -> Any:
        if is_compiling() or type(b) not in plain:
            return None
        try:
            at_a, at_b = a.data_ptr(), b.data_ptr()
            key = (
                options,
                (a.dtype, a.shape, a.stride(), a.get_device(), at_a & 15),
                (b.dtype, b.shape, b.stride(), b.get_device(), at_b & 15),
                None if c is None else sign(c),
                None if bias is None else sign(bias),
            )
        except (AttributeError, RuntimeError):
            return None
        known = get(key)
        if known is None or (many and current() != known.index):
            return None
        if grad_enabled() and any(array is not None and array.requires_grad for array in (a, b, c, bias)):
            return None
        result = empty(known.shape, dtype=known.dtype, device=known.device)
        if known.launch is not None and c is None and bias is None:
            known.launch(stream(known.index), at_a, at_b, result.data_ptr())
            return result
        return result if run(library, known, a, b, c, bias, result) else None

    return fast


def handed_over(library: TorchArrays, a: Any, b: Any, out: Any, c: Any, bias: Any, options: Any) -> Any:
    """The result, where PyTorch must see the call as an operator (it compiles, or wants gradients); else None."""
    return None


def words_of(a: Any, b: Any, options: Options = PLAIN) -> str:
    """What runs for a call that was made before, for people; empty where it is not known."""
    return _words_of(a, b, options)
