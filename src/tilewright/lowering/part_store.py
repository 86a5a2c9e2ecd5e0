"""Finished sums on their way into shared memory, and what all ways out of there have in common.

Each warpgroup has its own rows of the tile of C, and its own places for parts of their columns. It puts results there
sixteen columns at a time (stmatrix), and stores them by itself: `engine_store`, `lane_store`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import StoreMatrices, TeamBarrier
from tilewright.ir.buffer import Ref
from tilewright.ir.expr import ZERO, Const, Expr, Load, Var
from tilewright.ir.program import Program
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Alloc, Body, For, Let
from tilewright.ir.tiles import Tile
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, ROUND, TURN, digit_sum, index_of
from tilewright.lowering.kernel_parts import ELEMENT, global_place, value_buffer
from tilewright.lowering.products import swizzle_atoms_of
from tilewright.lowering.sums import Sums

COLUMNS = 16
"""Columns that four matrices of stmatrix cover, beside 16 rows of a warp."""

LANE, PART = Var(GROUP_LANE), Var("part")
"""Of the running thread within its warpgroup; the running part of the columns."""

_CHUNK = "chunk"


Either = Callable[[Callable[[bool], Body]], Body]
"""either(way): way(True) where C is read, way(False) where it is not; two whole ways, the same for all threads."""

Finished = Callable[[Ref, Ref, Expr, bool], Body]
"""finished(value, place, sum, reads_c): `alpha * sum + beta * C[place]` and the epilogue into the register `value`."""


@dataclass(frozen=True)
class PartStore:
    """The statements of one warpgroup that bring its rows of a tile of C to its place in shared memory."""

    program: Program
    sums: Sums
    tile: Tile

    @cached_property
    def _rows(self) -> int:
        """Rows of the tile that belong to one warpgroup."""
        groups = 1
        for loop in self.program.thread_loops:
            if "m" in loop.dims:
                groups *= loop.extent or 1
        return self.tile.rows // groups

    @cached_property
    def _parts(self) -> int:
        return self.tile.staged.parts

    @cached_property
    def _buffers(self) -> int:
        """Places for parts of the tile: while one is stored from, the next is filled."""
        return self.tile.slots // self._turns

    @cached_property
    def _turns(self) -> int:
        return 1 if self.program.specialized is None else self.program.specialized.turns

    @cached_property
    def _buffer(self) -> tuple[Expr, ...]:
        """The index of the running part's place."""
        if self.tile.slots == 1:
            return ()
        place: Expr = self._number % self._buffers if self._buffers > 1 else ZERO
        return (self._group * self._buffers + place if self._turns > 1 else place,)

    @property
    def _number(self) -> Expr:
        """Counts the parts that a warpgroup stores, so that two that follow each other never share a place."""
        if self._parts % self._buffers == 0 or not self.program.persistent:
            return PART
        tiles = Var(ROUND if self._turns > 1 else TURN)
        return tiles * self._parts + PART

    @cached_property
    def _chunks(self) -> int:
        """Pieces of 16 columns in one part of the tile."""
        return self.tile.row_length // COLUMNS

    @cached_property
    def _group(self) -> Expr:
        """The number of the running warpgroup."""
        if self.program.specialized is not None:
            return Var(GROUP)
        loops = self.program.thread_loops
        return Var(loops[0].name) if loops else ZERO

    def _meet(self) -> TeamBarrier:
        return TeamBarrier(self._group + 1, 128)

    def _first_row(self) -> Expr:
        """The first row of the running warpgroup within the tile."""
        axes = [axis for loop in self.program.thread_loops for axis in loop.axes if axis.dim == "m"]
        return digit_sum(tuple(axes))

    def _corner(self) -> tuple[Expr, Expr]:
        """Row and column of C at which the running part of the running warpgroup begins."""
        program = self.program
        outside = (
            tuple(a for a in program.axes_of(dim) if any(a in loop.axes for loop in program.grid_loops))
            for dim in program.gemm.operand("C").dims
        )
        row, column = (digit_sum(axes) for axes in outside)
        return row + self._first_row(), column + PART * self.tile.row_length

    def _fill(self, either: Either, finished: Finished) -> Body:
        """The running part into its place."""
        if self.tile.dtype.bytes != 2 or self.tile.minor != 1:
            raise LoweringError(
                f"{self.tile.staged.name!r} is filled by stmatrix, which moves elements of 2 bytes along rows, not "
                f"{self.tile.dtype}.",
                hint="store C directly: leave Stage('C', ...) out.",
            )
        program, sums = self.program, self.sums
        m_axis, n_axis, _ = program.instruction_axes
        n_digits = sorted((axis for axis in program.sum_axes if axis.dim == "n"), key=lambda axis: -axis.stride)
        m_digits = [axis for axis in program.sum_axes if axis.dim == "m"]
        assert n_axis.extent is not None and m_axis.extent is not None
        chunk = PART * self._chunks + Var(_CHUNK)
        per_fragment = n_axis.extent // COLUMNS
        digits: dict[str, Expr] = {}
        left = chunk // per_fragment
        for axis in reversed(n_digits):
            digits[axis.name] = left % (axis.extent or 1) if axis is not n_digits[0] else left
            left = left // (axis.extent or 1)
        register = chunk % per_fragment * 8 + Var(ELEMENT)
        value = value_buffer("C", self.tile.dtype, 8)
        held = sums.fragment
        assert held is not None
        row, column = held.element(LANE, register)
        index = [substitute(i, {**digits, "fragment": register}) for i in sums.index]
        spot = {**digits, m_axis.name: row, n_axis.name: column}
        place = [substitute(index_of(program, dim), spot) for dim in program.gemm.operand("C").dims]
        here, source = Ref(value, (Var(ELEMENT),)), global_place(program, "C", place[0], place[1])
        total = Load(sums.buffer, tuple(index))

        def way(reads: bool) -> Body:
            body: Body = (
                Alloc(value),
                For(ELEMENT, Const(8), finished(here, source, total, reads), unroll=True),
                *self._put(value_at=Ref(value, (ZERO,)), rows=digit_sum(tuple(m_digits))),
            )
            body = (For(_CHUNK, Const(self._chunks), body, unroll=True),)
            for axis in reversed(m_digits):
                body = (For(axis.name, Const(axis.extent or 1), body, unroll=True),)
            return body

        return either(way)  # neither has a branch between its instructions

    def _put(self, value_at: Ref, rows: Expr) -> Body:
        """Four matrices, 16 rows by 16 columns of a warp, to the swizzle atoms; a lane addresses one row."""
        swizzle_atoms = swizzle_atoms_of(self.tile)
        row, column = Var(f"{self.tile.staged.name}_m"), Var(f"{self.tile.staged.name}_n")
        lane = LANE % 32
        down = self._first_row() + rows + LANE // 32 * 16 + lane // 8 % 2 * 8 + lane % 8
        along = Var(_CHUNK) * COLUMNS + lane // 16 * 8
        inside = swizzle_atoms.column(row, column % swizzle_atoms.columns, swizzle_atoms.columns)
        spot = (*self._buffer, column // swizzle_atoms.columns, row, inside)
        name = self.tile.staged.name
        return (
            Let(row.name, down),
            Let(column.name, along),
            StoreMatrices(Ref(self.tile.shared_buffer, spot), value_at, 4, origin=name),
        )
