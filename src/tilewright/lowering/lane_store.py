"""Finished sums on their way out through shared memory and the lanes of a warpgroup: for rows that begin anywhere.

The copy engine stores rows that begin and end at multiples of 16 bytes, and a lane on its own, which has two results of
each of many rows, would touch a sector for each row. So the results go through shared memory (`part_store`), and a warp
stores 64 neighbours of one row at once, a pair to each lane. Where a row begins in the middle of a pair, its pairs are
those of the odd columns and their right neighbours:

    even   | 0  1 | 2  3 | ... | 62 63 |
    odd    0 | 1  2 | 3  4 | ... | 63

The single elements that are left at the ends of rows are stored last, each by the lane of its row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.buffer import Ref
from tilewright.ir.expr import ONE, ZERO, Const, Expr, Op, Var, binary, both
from tilewright.ir.kernel import C_ODD, SIZES
from tilewright.ir.program import GROUP_LANES, WARP_LANES
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move
from tilewright.lowering.kernel_parts import global_place, value_buffer
from tilewright.lowering.part_store import LANE, PART, Finished, PartStore
from tilewright.lowering.products import slabs_of

_WARPS = GROUP_LANES // WARP_LANES
_STEP, _PIECE, _ROUND = "row_step", "piece", "row_round"


@dataclass(frozen=True)
class LaneStore(PartStore):
    """The statements of one warpgroup that store its part of a tile of C by its own lanes."""

    exact: frozenset[str]

    def body(self, reads_c: Expr, finished: Finished) -> Body:
        """reads_c: whether C is read. Of two places, that all have read one is known from the meeting since."""
        first = (self._meet(),) if self._buffers == 1 else ()
        part = (*first, *self._fill(reads_c, finished), self._meet(), *self._pairs(), *self._ends())
        return (For(PART.name, Const(self._parts), part, unroll=True),)

    def _pairs(self) -> Body:
        """Warps take rows in turn, four apart, so that all rows of a warp begin alike, odd or even."""
        row = Var(_STEP) * _WARPS + LANE // WARP_LANES

        def over(body: Body) -> Body:
            if self._pieces > 1:
                body = (For(_PIECE, Const(self._pieces), body, unroll=True),)
            return (For(_STEP, Const(self._rows // _WARPS), body, unroll=True),)

        odd = binary(Op.EQ, self._odd(LANE // WARP_LANES), 1)
        return (If(odd, over(self._odd_pair(row)), over(self._even_pair(row))),)

    @property
    def _pieces(self) -> int:
        return self.tile.row_length // (2 * WARP_LANES)

    @property
    def _first_column(self) -> Expr:
        piece = Var(_PIECE) if self._pieces > 1 else ZERO
        return piece * (2 * WARP_LANES) + LANE % WARP_LANES * 2

    def _even_pair(self, row: Expr) -> Body:
        value = value_buffer("C_pair", self.tile.dtype, 2)
        pair = Ref(value, (ZERO,))
        load = Move(pair, self._kept(row, self._first_column), 2, origin=self._name)
        return (Alloc(value), load, Move(self._place(row, self._first_column), pair, 2, origin="C", whole=True))

    def _odd_pair(self, row: Expr) -> Body:
        """The last lane has one element, which belongs to the end of the row; what it loads beside it nobody stores."""
        value, length = value_buffer("C_pair", self.tile.dtype, 2), self.tile.row_length
        column = self._first_column + 1
        beside = column + 1
        left, right = (Ref(value, (at,)) for at in (ZERO, ONE))
        return (
            Alloc(value),
            Move(left, self._kept(row, column), origin=self._name),
            Move(right, self._kept(row, beside % length), origin=self._name),
            Move(self._place(row, column), left, 2, binary(Op.LT, beside, length), origin="C", whole=True),
        )

    def _ends(self) -> Body:
        """What is no pair: the first element of a row that begins odd, and the last one where one is left over."""
        rows = min(self._rows, GROUP_LANES)
        row = Var(_ROUND) * rows + LANE if self._rows > rows else LANE
        odd, count = Var("odd"), Var("row_length")
        value = value_buffer("C_end", self.tile.dtype, 1)
        here = Ref(value, (ZERO,))

        def one(column: Expr) -> Body:
            load = Move(here, self._kept(row, column), origin=self._name)
            return (Alloc(value), load, Move(self._place(row, column), here, origin="C"))

        left_over = both(binary(Op.LT, 0, count), binary(Op.EQ, (count + odd) % 2, 1))
        body: Body = (
            Let(odd.name, self._odd(LANE)),
            Let(count.name, self._row_length(), "of this part, inside C"),
            If(binary(Op.EQ, odd, 1), one(ZERO)),
            If(left_over, one(count - 1)),
        )
        if self._rows > rows:
            body = (For(_ROUND, Const(self._rows // rows), body, unroll=True),)
        return (If(binary(Op.LT, LANE, rows), body),) if rows < GROUP_LANES else body

    def _row_length(self) -> Expr:
        length = self.tile.row_length
        if "n" in self.exact:
            return Const(length)
        inside = binary(Op.MIN, length, SIZES["n"] - self._corner()[1])
        return binary(Op.MAX, inside, 0)

    @staticmethod
    def _odd(row: Expr) -> Expr:
        """Whether a row of the warpgroup begins in the middle of a pair; its first row is a multiple of 64."""
        return (C_ODD + row * (Var("ldc") % 2)) % 2

    @property
    def _name(self) -> str:
        return self.tile.staged.name

    def _place(self, row: Expr, column: Expr) -> Ref:
        first_row, first_column = self._corner()
        return global_place(self.program, "C", first_row + row, first_column + column)

    def _kept(self, row: Expr, column: Expr) -> Ref:
        """An element of the part in its place in shared memory."""
        slabs = slabs_of(self.tile)
        down = self._first_row() + row
        inside = slabs.column(down, column % slabs.columns, slabs.columns)
        return Ref(self.tile.shared_buffer, (*self._buffer, column // slabs.columns, down, inside))
