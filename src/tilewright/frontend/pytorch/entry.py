"""The way of PyTorch's tensors into a call: plain ones are computed at once, others as an operator that PyTorch sees.

PyTorch must see a call that it traces, whose tensors want derivatives, or whose tensors are more than memory: a
subclass, a tensor inside torch.func.
"""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.frontend.compute import HostMemory, compute
from tilewright.frontend.libraries import NoMemory
from tilewright.frontend.options import Options
from tilewright.frontend.pytorch.plain import LIBRARY, PLAIN, compute_plain, observers

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")

_grad_enabled = torch.is_grad_enabled
_forward = torch.autograd.forward_ad


def multiply(a: Any, b: Any, out: Any, c: Any, bias: Any, options: Options, operands: tuple[Any, ...] = ()) -> Any:
    """A call with tensors of PyTorch."""
    if operands or options.traced is not None:
        from tilewright.frontend.pytorch.functions import with_function

        return with_function(a, b, out, c, bias, options, operands)
    plain = PLAIN
    if (
        type(a) in plain and type(b) in plain
        and (out is None or type(out) in plain) and (c is None or type(c) in plain)
        and (bias is None or type(bias) in plain)
        and not observers() and _forward._current_level < 0
        and not (_grad_enabled() and _wants_gradients(a, b, out, c, bias))
    ):  # fmt: skip
        try:
            if out is None:
                return compute(LIBRARY, a, b, None, c, bias, options)
            return compute_plain(a, b, out, c, bias, options)
        except HostMemory:
            return compute_plain(a, b, out, c, bias, options)
        except NoMemory:
            pass
    elif not all(isinstance(x, torch.Tensor) for x in (b, *(x for x in (out, c, bias) if x is not None))):
        return compute_plain(a, b, out, c, bias, options)  # which says what is wrong
    from tilewright.frontend.pytorch.operator import call, words_of

    return call(a, b, out, c, bias, words_of(options))


def _wants_gradients(a: Any, b: Any, out: Any, c: Any, bias: Any) -> bool:
    if a.requires_grad or b.requires_grad:
        return True
    return any(tensor is not None and tensor.requires_grad for tensor in (out, c, bias))
