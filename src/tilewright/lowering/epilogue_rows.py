"""Rows of an epilogue subtile from shared memory to C by the warps of a warpgroup.

A warp stores neighbours of one row, or of a few, at once: a thread on its own, which has two elements of each of many
rows, would touch a sector for each row. Where rows begin and end at multiples of 16 bytes, so many are each lane's, and
what is stored at once is as wide as the subtile: the boxes of TMA are no wider than a swizzle atom, and meet inside
sectors where rows do not begin with one.

Else a lane has a pair. Where a row begins in the middle of a pair, its pairs are of odd columns and their right
neighbours:

    even   | 0  1 | 2  3 | ... | 62 63 |
    odd    0 | 1  2 | 3  4 | ... | 63

The single elements that are left at the ends of rows are stored last, each by the lane of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.dtypes import I32
from tilewright.ir.expr import ONE, TRUE, ZERO, Cast, Const, Expr, Op, Ref, Var, binary, both
from tilewright.ir.kernel import C_IN_LINE
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Program
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move
from tilewright.layout.banks import LINE_BYTES
from tilewright.lowering.coordinates import base_of, matrix_of, origin_of, size_of
from tilewright.lowering.epilogue_plan import Subtile
from tilewright.lowering.kernel_parts import value_buffer
from tilewright.lowering.subtile_geometry import LANE, SubtileGeometry
from tilewright.problem.gemm import Dim

_WARP, _ODD = Var("warp_in_group"), Var("odd")
_PITCH, _BEGINS, _BEFORE = Var("row_pitch"), Var("rows_begin"), Var("before_row")
_WARPS = GROUP_LANES // WARP_LANES
_BATCH, _STEP, _PIECE, _ROUND = "row_batch", "row_step", "piece", "row_round"

_LEAST_BYTES = 4
"""That a lane stores at once wherever rows begin: 32 lanes fill a line."""

_VALUES = {1: "C_value", 2: "C_pair"}

_BATCH_ROWS = 8
"""Rows of which a warp loads the next before it has stored the last: enough to wait for shared memory once."""


@dataclass(frozen=True)
class RowStore:
    """The statements of one warpgroup that store a filled subtile by its own warps."""

    geometry: SubtileGeometry
    subtile: Subtile
    exact: frozenset[str]

    def body(self) -> Body:
        warp = Let(_WARP.name, LANE // WARP_LANES, uniform=True)
        if not (self._odd or self._in_lines):
            return (warp, *self._stores())
        # The warp is uniform not only for speed: the compiler cannot compute what follows from it before the sums are
        # gone, when there are no registers to keep it in.
        apart, row = self._apart - 1, self.geometry.corner(self.subtile)[0]
        pitch = Let(_PITCH.name, Var("ldc") & apart)
        begins: Expr = C_IN_LINE + (origin_of(self._program, "m") + row & apart) * _PITCH
        begins = begins + (self.geometry.corner(self.subtile)[1] & apart)
        for number in matrix_of(self._program, "C"):
            begins = begins + (Cast(I32, base_of(self._program, "C", number)) & apart)
        first = Let(_BEGINS.name, begins, f"elements behind a multiple of {self._apart}, of the first row")
        if not self._odd:
            return (warp, pitch, first, *self._stores())
        odd = Let(_ODD.name, (_BEGINS + _WARP * _PITCH) & 1, "rows of this warp begin in the middle of a pair")
        return (warp, pitch, first, odd, *self._stores())

    @property
    def _vector(self) -> int:
        """Elements that a lane stores at once: what rows allow, or 4 bytes wherever they begin."""
        return max(_LEAST_BYTES // self.geometry.tile.dtype.bytes, self.geometry.tile.staged.vector)

    @property
    def _odd(self) -> bool:
        """Whether rows may begin in the middle of what a lane stores."""
        return self._vector > 1 and self.geometry.tile.staged.vector <= 1

    @property
    def _in_lines(self) -> bool:
        """Whether what a warp stores at once begins and ends where lines of memory do, as far as the row goes."""
        size_bytes = self.geometry.tile.dtype.bytes
        return self._vector * size_bytes == _LEAST_BYTES and self._length * size_bytes > LINE_BYTES

    @property
    def _apart(self) -> int:
        """Elements from one place to the next where stores of rows may begin."""
        return self._vector * WARP_LANES if self._in_lines else self._vector

    @property
    def _program(self) -> Program:
        return self.geometry.program

    @cached_property
    def _dims(self) -> tuple[Dim, Dim]:
        """C's strided and its contiguous dimension."""
        operand = self._program.gemm.operand("C")
        return operand.strided, operand.contiguous

    @cached_property
    def _length(self) -> int:
        """Elements of a row of the subtile."""
        return self.subtile.columns

    def _stores(self) -> Body:
        """Guards cost more than the stores, so that only tiles at the edges of C have them."""
        row, column = self.geometry.corner(self.subtile)
        last = row + self.geometry.rows, column + self._length
        rows, columns = (
            None if dim in self.exact else binary(Op.LE, behind, size_of(self._program, dim))
            for dim, behind in zip(self._dims, last, strict=True)
        )
        inside = both(rows, columns)
        if inside == TRUE:
            return self._part(guarded=False)
        at_edge = self._part(guarded=True)
        if columns is not None and self._odd:
            at_edge += self._last_of_c()
        return (If(inside, self._part(guarded=False), at_edge),)

    def _part(self, *, guarded: bool) -> Body:
        if not self._odd:
            return self._vectors(0, guarded)
        odd = (*self._vectors(1, guarded), *self._ends())
        return (If(binary(Op.EQ, _ODD, 1), odd, self._vectors(0, guarded)),)

    # -- vectors ----------------------------------------------------------------------------------------------------

    @cached_property
    def _row_lanes(self) -> int:
        """Lanes whose vectors are of one row."""
        return min(self._length // self._vector, WARP_LANES)

    @cached_property
    def _together(self) -> int:
        """Rows that a warp stores at once."""
        most = WARP_LANES // self._row_lanes
        return max(rows for rows in range(1, most + 1) if self._own_rows % rows == 0)

    def _vectors(self, odd: int, guarded: bool) -> Body:
        """Those of one lane in all rows of its warp; the last lane of an odd row has one element, and no pair."""
        if self._in_lines:
            return self._lines(odd, guarded)
        length, lanes, together, vector = self._length, self._row_lanes, self._together, self._vector
        at_once = vector * WARP_LANES
        pieces = -(-length // at_once)
        piece = Var(_PIECE) if pieces > 1 else ZERO
        lane = LANE % WARP_LANES
        column = piece * at_once + (lane if lanes == WARP_LANES else lane % lanes) * vector + odd
        number, over_rows = self._rows(self._own_rows // together, _BATCH_ROWS, guarded)
        row = self._row(number if together == 1 else number * together + lane // lanes)
        body = over_rows(self._one(row, column, odd, guarded))
        if odd or (length % at_once and length > at_once):
            body = (If(binary(Op.LT, column + vector - 1, length), body),)
        if lanes * together < WARP_LANES:
            body = (If(binary(Op.LT, lane, lanes * together), body),)
        return (For(_PIECE, Const(pieces), body, unroll=True),) if pieces > 1 else body

    def _lines(self, odd: int, guarded: bool) -> Body:
        """Of each row a line of memory at a time; of the first and the last what belongs to the row."""
        length, vector, apart = self._length, self._vector, self._apart
        whole = length // apart
        number, over_rows = self._rows(self._own_rows, max(1, _BATCH_ROWS // (whole + 1)), guarded)
        row = self._row(number)
        before = Let(_BEFORE.name, _BEGINS + (row & apart - 1) * _PITCH & apart - 1)
        first = LANE % WARP_LANES * vector - _BEFORE
        body: Body = (If(binary(Op.LE, 0, first), self._one(row, first, odd, guarded)),)
        if whole > 1:
            inside = self._one(row, (Var(_PIECE) + 1) * apart + first, odd, guarded)
            body = (*body, For(_PIECE, Const(whole - 1), inside, unroll=True))
        for piece in range(whole, -(-(length + apart - vector) // apart)):
            column = first + piece * apart
            last = self._one(row, column, odd, guarded)
            body = (*body, If(binary(Op.LT, column + (vector - 1), length), last))
        return over_rows((before, *body))

    def _rows(self, steps: int, most: int, guarded: bool) -> tuple[Expr, Callable[[Body], Body]]:
        """The number of a step of a warp over its rows, and the loops over all of them. most: of a batch."""
        each = max(step for step in range(1, most + 1) if steps % step == 0)
        number = Var(_BATCH) * each + Var(_STEP)

        def over(body: Body) -> Body:
            return (For(_BATCH, Const(steps // each), (For(_STEP, Const(each), body, unroll=not guarded),)),)

        return number, over

    def _one(self, row: Expr, column: Expr, odd: int, guarded: bool) -> Body:
        """A vector: side by side in shared memory too, but pairs aligned only in even rows."""
        vector = self._vector
        value = value_buffer(_VALUES.get(vector, "C_vector"), self.geometry.tile.dtype, vector)
        first = Ref(value, (ZERO,))
        if odd:
            loads = tuple(
                Move(Ref(value, (at,)), self._kept(row, column + at), origin=self._name) for at in (ZERO, ONE)
            )
        else:
            loads = (Move(first, self._kept(row, column), vector, origin=self._name),)
        down, along = self._place(row, column)
        guard = None
        if guarded:
            ends = (size_of(self._program, dim) for dim in self._dims)
            last = down, along + (vector - 1)
            guard = both(*(binary(Op.LT, at, end) for at, end in zip(last, ends, strict=True)))
        place = self.geometry.in_c(down, along)
        return (Alloc(value), *loads, Move(place, first, vector, guard, origin="C", settled=True))

    # -- single elements --------------------------------------------------------------------------------------------

    def _ends(self) -> Body:
        """The first and the last element of each odd row."""
        return self._singles({"first": ZERO, "last": Const(self._length - 1)})

    def _last_of_c(self) -> Body:
        """The last element of each row of C, where that is inside this subtile and in no pair."""
        length = size_of(self._program, self._dims[1]) - self.geometry.corner(self.subtile)[1]
        within = both(binary(Op.LT, 0, length), binary(Op.LT, length, self._length))
        alone = binary(Op.EQ, length + _ODD & 1, 1)
        return (If(both(within, alone), self._singles({"edge": length - 1})),)

    def _singles(self, columns: Mapping[str, Expr]) -> Body:
        """One element of each row of a warp, a lane each."""
        lanes = min(self._own_rows, WARP_LANES)
        rounds = -(-self._own_rows // lanes)
        row = self._row((Var(_ROUND) * WARP_LANES if rounds > 1 else ZERO) + LANE % WARP_LANES)
        body: Body = ()
        for name, column in columns.items():
            value = value_buffer(f"C_{name}", self.geometry.tile.dtype, 1)
            here = Ref(value, (ZERO,))
            load = Move(here, self._kept(row, column), origin=self._name)
            place = self.geometry.in_c(*self._place(row, column))
            body = (*body, Alloc(value), load, Move(place, here, origin="C"))
        if self._own_rows % lanes:
            body = (If(binary(Op.LT, Var(_ROUND) * WARP_LANES + LANE % WARP_LANES, self._own_rows), body),)
        if rounds > 1:
            body = (For(_ROUND, Const(rounds), body, unroll=True),)
        return (If(binary(Op.LT, LANE % WARP_LANES, lanes), body),) if lanes < WARP_LANES else body

    # -- places -----------------------------------------------------------------------------------------------------

    @property
    def _own_rows(self) -> int:
        """Rows that a warp stores."""
        return self.geometry.rows // _WARPS

    @staticmethod
    def _row(number: Expr) -> Expr:
        """A row of the running warp: warps take rows in turn, so that all of a warp begin alike."""
        return number * _WARPS + _WARP

    @property
    def _name(self) -> str:
        return self.geometry.tile.staged.name

    def _place(self, row: Expr, column: Expr) -> tuple[Expr, Expr]:
        first_row, first_column = self.geometry.corner(self.subtile)
        return first_row + row, first_column + column

    def _kept(self, row: Expr, column: Expr) -> Ref:
        """An element of the subtile in its stage."""
        return self.geometry.shared(self.subtile, self.geometry.first_row() + row, column)
