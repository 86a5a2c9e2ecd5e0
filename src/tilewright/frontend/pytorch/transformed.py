"""The operator where PyTorch transforms functions: `torch.func` and forward-mode derivatives.

The gradients of a registered operator are of use to `backward` alone, so a function of PyTorch's own stands in front of
it there, with the same gradients, tangents, and a rule for vmap.
"""

from __future__ import annotations

from typing import Any

from tilewright import extras
from tilewright.frontend.pytorch.gradients import gradients, keep, keep_for_tangents, tangents
from tilewright.frontend.pytorch.mapped import over_a_batch
from tilewright.frontend.torch_calls import has_tangents

torch: Any = extras.require("torch", "Multiplying tensors of PyTorch")


def multiply(*given: Any) -> Any:
    """`torch.ops.tilewright.matmul`, of whatever tensors PyTorch has."""
    if not torch.compiler.is_compiling() and (torch._C._are_functorch_transforms_active() or has_tangents()):
        return Transformed.apply(*given)
    return torch.ops.tilewright.matmul(*given)


class Transformed(torch.autograd.Function):  # type: ignore[misc]
    """A call as a function that PyTorch can transform."""

    @staticmethod
    def forward(*given: Any) -> Any:
        return torch.ops.tilewright.matmul(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        keep(ctx, inputs, output)
        keep_for_tangents(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        return gradients(multiply, ctx, gradient)

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> Any:
        return tangents(multiply, ctx, given)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, int]:
        return over_a_batch(multiply, info, in_dims, *given)
