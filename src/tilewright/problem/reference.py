"""Ground truth: operands that show mistakes, and the product in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array, DType
from tilewright.problem.gemm import Gemm, OperandName, Order

PADDING = np.nan
"""What the gap between the rows of a padded operand holds: an access into it must show in the result."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The three matrices of a problem as flat storage (1-D, storage dtype), gaps included."""

    gemm: Gemm
    a: Array
    b: Array
    c: Array

    def matrix(self, name: OperandName) -> Array:
        """The logical 2-D matrix as a view of the storage, decoded to a float type."""
        storage = {"A": self.a, "B": self.b, "C": self.c}[name]
        return self.gemm.operand(name).dtype.decode(view(self.gemm, name, storage))


def view(gemm: Gemm, name: OperandName, storage: Array) -> Array:
    """Flat storage of `name` seen as its logical (rows, columns) matrix; no copy."""
    operand = gemm.operand(name)
    rows, cols = (gemm.size(dim) for dim in operand.dims)
    step = storage.itemsize
    along, across = step, gemm.leading(name) * step
    strides = (across, along) if operand.order is Order.ROW else (along, across)
    if rows == 0 or cols == 0:
        return np.zeros((rows, cols), storage.dtype)
    return np.lib.stride_tricks.as_strided(storage, (rows, cols), strides)


def make_operands(gemm: Gemm, *, seed: int = 0) -> Operands:
    """Random normal operands; gaps hold NaN; C is normal when beta reads it and NaN when beta is 0."""
    rng = np.random.default_rng(seed)

    def fill(name: OperandName, dtype: DType, poison: bool) -> Array:
        storage = dtype.encode(np.full(gemm.storage_elements(name), PADDING, np.float32))
        if not poison:
            target = view(gemm, name, storage)
            target[...] = dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
        return storage

    return Operands(
        gemm,
        fill("A", gemm.dtype, False),
        fill("B", gemm.dtype, False),
        fill("C", gemm.out, gemm.beta == 0),
    )


def as_multiplied(operands: Operands, name: OperandName) -> Array:
    """The logical matrix of A or B rounded as the problem asks before it is multiplied, float64."""
    multiplied = operands.gemm.multiplied
    rounded: Array = multiplied.decode(multiplied.encode(operands.matrix(name))).astype(np.float64)
    return rounded


def reference(operands: Operands) -> Array:
    """`alpha * A @ B + beta * C` in float64, shape (m, n), of the rounded operands; C is not read when beta is 0."""
    gemm = operands.gemm
    with np.errstate(invalid="ignore", over="ignore"):
        result: Array = gemm.alpha * (as_multiplied(operands, "A") @ as_multiplied(operands, "B"))
        if gemm.beta != 0:
            result = result + gemm.beta * operands.matrix("C").astype(np.float64)
    return result
