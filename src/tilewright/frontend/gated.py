"""`linear_gated`: both products of a gated layer and what joins them, in one kernel where that is the fastest."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ProblemError, UnknownName
from tilewright.frontend.calls import MULTIPLY, is_compiling, multiply_of
from tilewright.frontend.options import options_of
from tilewright.frontend.shapes import ShapeError
from tilewright.frontend.tracing import traced_of
from tilewright.problem.functions import Activation, Operation
from tilewright.problem.values import Accumulated, Applied, Combined

_GATED = {
    one.value: traced_of(Combined(Operation.TIMES, Applied(one, Accumulated()), Accumulated(1)), second=True)
    for one in Activation
}
"""The joined sums, by the activation."""


def linear_gated(x: Any, w_gate: Any, w_up: Any, *, activation: str = "silu", out: Any = None) -> Any:
    """`activation(x @ w_gate.T) * (x @ w_up.T)`: SwiGLU with "silu", GeGLU with "gelu" or "gelu_tanh".

    x: (..., in_features). w_gate, w_up: (out_features, in_features), both stored alike. The result has the format of x,
    rounded once; both sums are f32. One kernel reads x once and writes the result alone, where tensor cores read the
    operands as they lie; else, and where it is faster, one product is kept in f32 in a workspace.

    Raises as `matmul`.
    """
    traced = _GATED.get(str(activation))
    if traced is None:
        raise UnknownName("activation", str(activation), _GATED)
    for name, weight in (("w_gate", w_gate), ("w_up", w_up)):
        if len(getattr(weight, "shape", ())) != 2:
            raise ProblemError(
                f"linear_gated: {name} is not a matrix.", hint="give one of shape (out_features, in_features)."
            )
    if tuple(w_gate.shape) != tuple(w_up.shape):
        raise ShapeError(
            f"linear_gated: w_gate of shape {tuple(w_gate.shape)} and w_up of shape {tuple(w_up.shape)} differ."
        )
    if is_compiling():
        from tilewright.frontend.pytorch.functions import apart

        return apart(linear_gated, (x, w_gate, w_up), {"activation": activation, "out": out})
    options = options_of(1.0, None, None, "default", None, False, None, False, traced)
    multiply = MULTIPLY.get(type(x)) or multiply_of(x)
    return multiply(x, w_gate.T, out, None, None, options, (w_up.T,))
