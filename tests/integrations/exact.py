"""The same calls in float64, and how far from them a result may lie."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
STEEPEST = 1.13
"""The largest slope of an activation."""


def exact(
    a: Any, b: Any, *, c: Any = None, bias: Any = None, alpha: float = 1.0, beta: float = 1.0, activation: Any = None
) -> Any:
    """`activation(alpha * a @ b + beta * c + bias)`, by PyTorch, in the format of the tensors."""
    functional = torch.nn.functional
    result = alpha * torch.matmul(a, b)
    result = result if c is None else result + beta * c
    result = result if bias is None else result + bias
    if activation is None:
        return result
    if activation == "gelu_tanh":
        return functional.gelu(result, approximate="tanh")
    return getattr(functional, activation)(result)


def assert_close(computed: Any, expected: Any, magnitude: Any, terms: int, roundings: int = 2) -> None:
    """Sums of `terms` products whose sizes add up to `magnitude`, summed in f32, rounded to the result's format."""
    assert computed.shape == expected.shape
    bound = ((2 * terms + 40) * 2.0**-24 + roundings * UNIT[computed.dtype]) * magnitude + 1e-30
    worst = ((computed.detach().double() - expected).abs() / bound).max() if computed.numel() else torch.zeros(())
    assert float(worst) <= 1, f"{float(worst):.3g} times the bound"


def assert_product(computed: Any, a: Any, b: Any, **options: Any) -> None:
    """A call's result against float64."""
    tensors = {name: x.detach().double() for name, x in options.items() if isinstance(x, torch.Tensor)}
    numbers = {name: x for name, x in options.items() if name in ("alpha", "beta", "activation")}
    a, b = a.detach().double(), b.detach().double()
    sizes = {name: x.abs() for name, x in tensors.items()}
    sizes |= {name: abs(x) for name, x in numbers.items() if name != "activation"}
    magnitude = STEEPEST * exact(a.abs(), b.abs(), **sizes)
    assert_close(computed, exact(a, b, **tensors, **numbers), magnitude, a.shape[-1])
