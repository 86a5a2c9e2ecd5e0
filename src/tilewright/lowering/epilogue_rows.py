"""Rows of an epilogue subtile from shared memory to C by the warps of a warpgroup.

A warp stores neighbours of one row, or of a few, at once: a thread on its own, which has two elements of each of many
rows, would touch a sector for each row. Where rows begin and end at multiples of 16 bytes, so many are each lane's, and
what is stored at once is as wide as the subtile: the boxes of TMA are no wider than a swizzle atom, and meet inside
sectors where rows do not begin with one.

Else a lane has 4 bytes: an element, or a pair. A row is stored as a whole, its pieces one behind the other, as a sector
of two pieces costs least where both follow at once. Where a row begins in the middle of a pair, its pairs are of odd
columns and their right neighbours:

    even   | 0  1 | 2  3 | ... | 62 63 |
    odd    0 | 1  2 | 3  4 | ... | 63

The single elements that are left at the ends of rows are stored last, each by the lane of its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.dtypes import I32
from tilewright.ir.expr import ONE, TRUE, ZERO, Cast, Const, Expr, Op, Ref, Var, binary, both
from tilewright.ir.kernel import C_ODD
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Program
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move
from tilewright.lowering.coordinates import base_of, matrix_of, origin_of, size_of
from tilewright.lowering.epilogue_plan import Subtile
from tilewright.lowering.kernel_parts import value_buffer
from tilewright.lowering.subtile_geometry import LANE, SubtileGeometry
from tilewright.problem.gemm import Dim

_WARP, _ODD = Var("warp_in_group"), Var("odd")
_WARPS = GROUP_LANES // WARP_LANES
_ROW_BATCH, _STEP, _PIECE, _ROUND = "row_batch", "row_step", "piece", "row_round"

_BATCH = 8
"""Vectors of which a warp loads the next before it has stored the last: enough to wait for shared memory once."""

_LEAST_BYTES = 4
"""That a lane stores at once wherever rows begin."""

_VALUES = {1: "C_value", 2: "C_pair"}


@dataclass(frozen=True)
class RowStore:
    """The statements of one warpgroup that store a filled subtile by its own warps."""

    geometry: SubtileGeometry
    subtile: Subtile
    exact: frozenset[str]

    def body(self) -> Body:
        if not self._may_be_odd:
            return (Let(_WARP.name, LANE // WARP_LANES, uniform=True), *self._stores())
        # Uniform not only for speed: the compiler cannot compute what follows from it before the sums are gone, when
        # there are no registers to keep it in.
        warp = Let(_WARP.name, LANE // WARP_LANES, uniform=True)
        # The first row of a warpgroup is a multiple of 8.
        begins: Expr = C_ODD ^ origin_of(self._program, "m") & Var("ldc")
        for number in matrix_of(self._program, "C"):  # the parity of where it begins, which 32 bits tell
            begins = begins ^ Cast(I32, base_of(self._program, "C", number))
        odd = Let(_ODD.name, (begins ^ _WARP & Var("ldc")) & 1, "rows of this warp begin in the middle of a pair")
        return (warp, odd, *self._stores())

    @property
    def _vector(self) -> int:
        """Elements that a lane stores at once: what rows allow, or 4 bytes wherever they begin."""
        return max(_LEAST_BYTES // self.geometry.tile.dtype.bytes, self.geometry.tile.staged.vector)

    @property
    def _may_be_odd(self) -> bool:
        """Whether rows may begin in the middle of what a lane stores."""
        return self._vector > max(1, self.geometry.tile.staged.vector)

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
        if columns is not None and self._may_be_odd:
            at_edge += self._last_of_c()
        return (If(inside, self._part(guarded=False), at_edge),)

    def _part(self, *, guarded: bool) -> Body:
        if not self._may_be_odd:
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
        length, lanes, together, vector = self._length, self._row_lanes, self._together, self._vector
        at_once, lane = vector * WARP_LANES, LANE % WARP_LANES
        whole = -(-length // at_once) - 1
        first = (lane if lanes == WARP_LANES else lane % lanes) * vector + odd
        steps = self._own_rows // together
        batch = max(step for step in range(1, max(2, _BATCH // (whole + 1) + 1)) if steps % step == 0)
        number = Var(_ROW_BATCH) * batch + Var(_STEP)
        row = self._row(number if together == 1 else number * together + lane // lanes)
        # A row at a time: what two of its pieces have of a sector is stored close together.
        one: Body = self._one(row, whole * at_once + first, odd, guarded)
        if whole and (odd or length % at_once):
            one = (If(binary(Op.LT, whole * at_once + first + vector - 1, length), one),)
        if whole:
            piece: Expr = Var(_PIECE) if whole > 1 else ZERO
            before = self._one(row, piece * at_once + first, odd, guarded)
            one = ((For(_PIECE, Const(whole), before, unroll=True),) if whole > 1 else before) + one
        in_batch: Body = (For(_STEP, Const(batch), one, unroll=not guarded),)
        body: Body = (For(_ROW_BATCH, Const(steps // batch), in_batch),)
        if odd and not whole:
            body = (If(binary(Op.LT, first + vector - 1, length), body),)
        return (If(binary(Op.LT, lane, lanes * together), body),) if lanes * together < WARP_LANES else body

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
