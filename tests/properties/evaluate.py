"""What a program means, in slow and obvious NumPy: the specification that every step must keep.

Every combination of loop iterations is one point. At a point the digits give m, n and k; the two operands travel to it
through the staged tiles, each slot of a tile being one place of memory; products are added to the slot of the running
sum. A step that makes two elements share a slot, drops an iteration or repeats one gives another result here, or is
told apart by the count of visits.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.dtypes import Array
from tilewright.errors import LoweringError
from tilewright.ir.program import Loop, Program, Staged
from tilewright.ir.tiles import tile_of
from tilewright.problem.gemm import Dim, OperandName
from tilewright.problem.reference import Operands, finished
from tilewright.units import ceil_div


class Points:
    """All iterations of a program at one size, flat, with the digit of every axis."""

    def __init__(self, program: Program, operands: Operands) -> None:
        self.program = program
        self.gemm = operands.gemm
        self.operands = operands
        axes = [axis for loop in program.loops for axis in loop.axes]
        self.extents = {a.name: a.extent or ceil_div(self.gemm.size(a.dim), a.stride) for a in axes}
        grid = np.indices([self.extents[a.name] for a in axes])
        self.digits: dict[str, Array] = {a.name: grid[i].reshape(-1) for i, a in enumerate(axes)}
        self.count = prod(self.extents.values())

    def index(self, dim: Dim) -> Array:
        total = np.zeros(self.count, np.int64)
        for axis in self.program.axes_of(dim):
            total += axis.stride * self.digits[axis.name]
        return total

    def number(self, loops: tuple[Loop, ...]) -> Array:
        """A number that is the same exactly where all digits of `loops` are."""
        total = np.zeros(self.count, np.int64)
        for axis in (axis for loop in loops for axis in loop.axes):
            total = total * self.extents[axis.name] + self.digits[axis.name]
        return total

    def inside(self, *dims: Dim) -> Array:
        found = np.ones(self.count, bool)
        for dim in dims:
            found &= self.index(dim) < self.gemm.size(dim)
        return found


def evaluate(program: Program, operands: Operands) -> Array:
    """C as the program computes it, shape (m, n), in float64.

    Raises LoweringError if some (m, n, k) is not visited exactly once.
    """
    points = Points(program, operands)
    gemm = operands.gemm
    early = 1.0 if program.late_alpha or gemm.epilogue else gemm.alpha
    inside = points.inside("m", "n")
    m, n = points.index("m")[inside], points.index("n")[inside]
    visits = np.zeros((gemm.m, gemm.n), np.int64)
    np.add.at(visits, (m, n), points.inside("k")[inside])
    if not (visits == gemm.k).all():
        raise LoweringError(f"Some element of C sums {visits.min()} .. {visits.max()} products, not {gemm.k}.")
    results = [np.zeros((gemm.m, gemm.n)) for _ in range(gemm.accumulators)]
    for product in gemm.products:
        terms = early * _operand(points, product.a) * _operand(points, product.b)
        results[product.into][m, n] += _summed(points, np.where(points.inside("k"), terms, 0.0))[inside]
    if gemm.epilogue:
        return finished(operands, *results)
    (result,) = results
    start = gemm.beta * operands.matrix("C").astype(np.float64) if gemm.beta != 0 else np.zeros_like(result)
    if not program.late_alpha:
        return result + start
    return gemm.alpha * result + start if program.late_beta else gemm.alpha * (result + start)


def _operand(points: Points, name: OperandName) -> Array:
    """The value of an operand at every point, after its journey through the staged tiles; 0 outside the matrix."""
    rows, cols = points.gemm.operand(name).dims
    inside = points.inside(rows, cols)
    matrix = points.operands.matrix(name).astype(np.float64)
    values = np.zeros(points.count)
    values[inside] = matrix[points.index(rows)[inside], points.index(cols)[inside]]
    for staged in points.program.chain(name):
        values = _through(points, staged, values)
    return values


def _through(points: Points, staged: Staged, values: Array) -> Array:
    """Values written to the slots of a tile and read back."""
    program, tile = points.program, tile_of(points.program, staged)
    spanned = program.region_loops(staged.space, staged.under)
    context = points.number(tuple(loop for loop in program.loops if loop not in spanned))
    row, col = (span.coordinate(points.digits) + np.zeros(points.count, np.int64) for span in tile.spans)
    slow, fast = tile.place(row, col)
    slot = (context * (tile.rows + 1) + slow) * (tile.elements + 1) + fast
    _, dense = np.unique(slot, return_inverse=True)
    memory = np.full(dense.max() + 1 if dense.size else 0, np.nan)
    memory[dense] = values
    read: Array = memory[dense]
    return read


def _summed(points: Points, products: Array) -> Array:
    """The finished sum at every point."""
    m, n = points.index("m"), points.index("n")
    slot = m * (n.max(initial=0) + 1) + n
    program = points.program
    if program.accumulation is not None:
        digits = {axis.name for axis in program.sum_axes}
        outside = tuple(
            loop for loop in program.loops if not loop.is_reduction and not digits & {a.name for a in loop.axes}
        )
        slot = points.number(outside)
        for axis in program.sum_axes:
            slot = slot * (axis.extent or 1) + points.digits[axis.name]
    _, dense = np.unique(slot, return_inverse=True)
    sums = np.bincount(dense, weights=products) if dense.size else np.zeros(0)
    totals: Array = sums[dense]
    return totals
