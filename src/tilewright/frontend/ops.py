"""Functions of numbers for a function of the epilogue: `matmul(a, b, epilogue=function)`.

Each takes numbers, and arrays of NumPy, as well, so that a function can be tried on its own.

>>> round(float(sigmoid(0.0) + maximum(1, 2)), 3)
2.5
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.dtypes import F32, FP8_FORMATS, DType
from tilewright.errors import ProblemError
from tilewright.frontend.formats import format_of
from tilewright.frontend.libraries.views import DTypeError
from tilewright.frontend.symbols import (
    TRACED,
    Folded,
    Quantized,
    applied,
    as_number,
    chosen,
    combined,
    drawn,
    refused,
    rotated,
    rounded,
)
from tilewright.problem.functions import Activation, Elementary, Function, Operation
from tilewright.problem.quantization import scales_of_blocks, spread_over_blocks
from tilewright.problem.values import Along, drawn_for, folded_array, rotated_pairs, rounded_to
from tilewright.units import type_name

__all__ = [
    "absolute",
    "add_residual",
    "amax",
    "cast",
    "column_max",
    "column_sum",
    "column_sum_of_squares",
    "dropout",
    "erf",
    "exp",
    "gelu",
    "gelu_tanh",
    "log",
    "maximum",
    "minimum",
    "quantized",
    "relu",
    "rotary",
    "rotated_pair",
    "row_max",
    "row_sum",
    "row_sum_of_squares",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "uniform",
    "where",
]


def _of(function: Function, x: Any) -> Any:
    if isinstance(x, TRACED):
        return applied(function, x)
    try:
        return function.of(x)
    except (TypeError, ValueError):
        raise refused(f"A function of tilewright.ops was given {type_name(x)}, not a number.") from None


def exp(x: Any) -> Any:
    """e to the power of x."""
    return _of(Elementary.EXP, x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _of(Elementary.LOG, x)


def sqrt(x: Any) -> Any:
    """The square root."""
    return _of(Elementary.SQRT, x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _of(Elementary.TANH, x)


def erf(x: Any) -> Any:
    """The error function."""
    return _of(Elementary.ERF, x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _of(Elementary.SIGMOID, x)


def absolute(x: Any) -> Any:
    """|x|, as Python's abs."""
    return _of(Elementary.ABSOLUTE, x)


def relu(x: Any) -> Any:
    """x where it is positive, and else 0."""
    return _of(Activation.RELU, x)


def gelu(x: Any) -> Any:
    """The Gaussian error linear unit."""
    return _of(Activation.GELU, x)


def gelu_tanh(x: Any) -> Any:
    """The same, approximated by tanh."""
    return _of(Activation.GELU_TANH, x)


def silu(x: Any) -> Any:
    """x times its sigmoid."""
    return _of(Activation.SILU, x)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two; NaN where one is."""
    return _both(Operation.MINIMUM, a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two; NaN where one is."""
    return _both(Operation.MAXIMUM, a, b)


def _both(operation: Operation, a: Any, b: Any) -> Any:
    if isinstance(a, TRACED) or isinstance(b, TRACED):
        return combined(operation, a, b)
    return operation.of(a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where a comparison holds, and else `b`; `&` and `|` combine comparisons."""
    if any(isinstance(one, TRACED) for one in (condition, a, b)):
        return chosen(condition, a, b)
    return np.where(condition, a, b)


def rotated_pair(x: Any) -> Any:
    """x turned by a quarter in each pair of columns: `-x[..., 2j + 1]` in column 2j, `x[..., 2j]` in column 2j + 1."""
    return rotated(x) if isinstance(x, TRACED) else rotated_pairs(np.asarray(x))


def rotary(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding of pairs of neighbouring columns: `x * cos + rotated_pair(x) * sin`. cos, sin: of the angle of
    each element, both columns of a pair alike."""
    return x * cos + rotated_pair(x) * sin


def uniform(seed: Any, offset: Any = 0, like: Any = None) -> Any:
    """A uniform number in [0, 1) for each element, by Philox4x32-10 with the key (seed, offset) and the element's row
    and column as the counter: the same in every call, kernel and tile. seed, offset: whole numbers below 2**24, or
    operands that are. like: for arrays of NumPy, one of the shape."""
    if like is None or any(isinstance(one, TRACED) for one in (like, seed, offset)):
        return drawn(seed, offset)
    return drawn_for(np.shape(like), seed, offset)


def dropout(x: Any, p: float, seed: Any, offset: Any = 0) -> Any:
    """x / (1 - p) with probability 1 - p, and else 0: where `uniform(seed, offset)` is at least p. Backward the same
    elements are kept. p: from 0 to below 1."""
    if not 0 <= p < 1:
        raise ProblemError(f"dropout: p = {p!r} is not a probability below 1.", hint="0.1 keeps nine of ten.")
    return where(uniform(seed, offset, x) >= p, x * (1.0 / (1.0 - p)), 0.0)


def row_sum(x: Any) -> Any:
    """The sum of each row of the result, in f32, shape (..., m, 1): a result of a function, behind the first."""
    return _folded(Operation.PLUS, "m", x)


def add_residual(x: Any, residual: Any) -> Any:
    """`x + residual`, and the sum of the squares of each row, of which an RMS norm is made: two results. As it stands
    it is a function of the epilogue: `epilogue=ops.add_residual, operands={"residual": residual}`."""
    total = x + residual
    return total, row_sum_of_squares(total)


def row_max(x: Any) -> Any:
    """The largest of each row; NaN is passed over."""
    return _folded(Operation.MAXIMUM, "m", x)


def row_sum_of_squares(x: Any) -> Any:
    """The sum of the squares of each row."""
    return row_sum(x * x)


def column_sum(x: Any) -> Any:
    """The sum of each column of the result, in f32, shape (n,); also over what is left of a batch."""
    return _folded(Operation.PLUS, "n", x)


def column_max(x: Any) -> Any:
    """The largest of each column; NaN is passed over."""
    return _folded(Operation.MAXIMUM, "n", x)


def column_sum_of_squares(x: Any) -> Any:
    """The sum of the squares of each column."""
    return column_sum(x * x)


def amax(x: Any) -> Any:
    """The largest magnitude of all elements, in f32, shape (1,); NaN is passed over."""
    return _folded(Operation.MAXIMUM, None, absolute(x))


def quantized(x: Any, dtype: Any = "e4m3") -> Any:
    """Codes of x and their scales, one for each 128 columns of a row, as `quantize(x, scales="1x128")` makes them: the
    first result of a function, a pair of arrays. dtype: "e4m3" or "e5m2"."""
    found = format_of(dtype)
    if found not in FP8_FORMATS:
        raise DTypeError(f"There are no codes of {dtype}.", hint="use 'e4m3' or 'e5m2'.")
    if isinstance(x, TRACED):
        return Quantized(as_number(x), found)
    scales = scales_of_blocks(np.asarray(x), found)
    return found.decode(found.encode(x / spread_over_blocks(scales, np.shape(x)[-1]))), scales


def _folded(operation: Literal[Operation.PLUS, Operation.MAXIMUM], along: Along | None, x: Any) -> Any:
    if isinstance(x, TRACED):
        return Folded(as_number(x), operation, along)
    return folded_array(operation, along, np.asarray(x))


def cast(x: Any, dtype: Any) -> Any:
    """x rounded to "f16" or "bf16", as if it had been stored in that format. Raises DTypeError for others."""
    found: DType | None = format_of(dtype)
    if found is None:
        raise DTypeError(f"Cannot round to {dtype}.", hint="formats are f32, f16 and bf16.")
    if not isinstance(x, TRACED):
        return rounded_to(found, x)
    return x if found is F32 else rounded(x, found)
