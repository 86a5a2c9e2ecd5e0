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
from tilewright.ir.expr import ONE, TRUE, ZERO, Const, Expr, Op, Var, binary, both
from tilewright.ir.kernel import C_ODD, SIZES
from tilewright.ir.program import GROUP_LANES, WARP_LANES
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move
from tilewright.lowering.kernel_parts import global_place, value_buffer
from tilewright.lowering.part_store import LANE, PART, Finished, PartStore
from tilewright.lowering.products import slabs_of

_WARPS = GROUP_LANES // WARP_LANES
_STEP, _PIECE, _ROUND = "row_step", "piece", "row_round"
_BATCH, _BATCH_STEPS = "row_batch", 8
"""Rows of a warp of which it loads the next before it has stored the last: enough to wait for shared memory once."""
_LENGTH = Var("row_length")


@dataclass(frozen=True)
class LaneStore(PartStore):
    """The statements of one warpgroup that store its part of a tile of C by its own lanes."""

    exact: frozenset[str]

    def body(self, reads_c: Expr, finished: Finished) -> Body:
        """reads_c: whether C is read. Of two places, that all have read one is known from the meeting since."""
        first = (self._meet(),) if self._buffers == 1 else ()
        length = Let(_LENGTH.name, self._row_length(), "of this part's rows, inside C")
        part = (*first, *self._fill(reads_c, finished), self._meet(), length, *self._pairs(), *self._ends())
        return (For(PART.name, Const(self._parts), part, unroll=True),)

    def _row_length(self) -> Expr:
        columns = self.tile.row_length
        if "n" in self.exact:
            return Const(columns)
        inside = binary(Op.MIN, columns, SIZES["n"] - self._corner()[1])
        return binary(Op.MAX, inside, 0)

    # -- pairs ------------------------------------------------------------------------------------------------------

    def _pairs(self) -> Body:
        """Warps take rows in turn, four apart, so that all rows of a warp begin alike."""
        odd = binary(Op.EQ, self._odd(LANE // WARP_LANES), 1)

        def way(guarded: bool) -> Body:
            return (If(odd, self._over_rows(1, guarded), self._over_rows(0, guarded)),)

        # Guards cost more than the stores, so that only tiles at the edges of C have them.
        row, column = self._corner()
        rows = None if "m" in self.exact else binary(Op.LE, row + self._rows, SIZES["m"])
        columns = None if "n" in self.exact else binary(Op.LE, column + self.tile.row_length, SIZES["n"])
        inside = both(rows, columns)
        return way(guarded=False) if inside == TRUE else (If(inside, way(guarded=False), way(guarded=True)),)

    def _over_rows(self, odd: int, guarded: bool) -> Body:
        """The pairs of one lane; the last of an odd row are no pair, but the ends of the row."""
        pieces = self.tile.row_length // (2 * WARP_LANES)
        piece = Var(_PIECE) if pieces > 1 else ZERO
        column = piece * (2 * WARP_LANES) + LANE % WARP_LANES * 2 + odd
        row = (Var(_BATCH) * _BATCH_STEPS + Var(_STEP)) * _WARPS + LANE // WARP_LANES
        batch: Body = (For(_STEP, Const(_BATCH_STEPS), self._pair(row, column, odd, guarded), unroll=not guarded),)
        over: Body = (For(_BATCH, Const(self._rows // (_WARPS * _BATCH_STEPS)), batch),)
        length = _LENGTH if guarded else Const(self.tile.row_length)
        inside: Body = (If(binary(Op.LT, column + 1, length), over),) if guarded or odd else over
        return (For(_PIECE, Const(pieces), inside, unroll=True),) if pieces > 1 else inside

    def _pair(self, row: Expr, column: Expr, odd: int, guarded: bool) -> Body:
        """Side by side in shared memory too, but aligned only in even rows."""
        value = value_buffer("C_pair", self.tile.dtype, 2)
        left, right = (Ref(value, (at,)) for at in (ZERO, ONE))
        if odd:
            loads = tuple(
                Move(to, self._kept(row, column + at), origin=self._name) for at, to in enumerate((left, right))
            )
        else:
            loads = (Move(left, self._kept(row, column), 2, origin=self._name),)
        place = self._place(row, column)
        guard = binary(Op.LT, place.index[0], SIZES["m"]) if guarded else None
        return (Alloc(value), *loads, Move(place, left, 2, guard, origin="C", settled=True))

    # -- ends of rows -----------------------------------------------------------------------------------------------

    def _ends(self) -> Body:
        """What is no pair: the first element of a row that begins odd, and the last one where one is left over."""
        rows = min(self._rows, GROUP_LANES)
        row = Var(_ROUND) * rows + LANE if self._rows > rows else LANE
        odd = Var("odd")
        value = value_buffer("C_end", self.tile.dtype, 1)
        here = Ref(value, (ZERO,))

        def one(column: Expr) -> Body:
            load = Move(here, self._kept(row, column), origin=self._name)
            return (Alloc(value), load, Move(self._place(row, column), here, origin="C"))

        left_over = both(binary(Op.LT, 0, _LENGTH), binary(Op.EQ, (_LENGTH + odd) % 2, 1))
        body: Body = (
            Let(odd.name, self._odd(row)),
            If(binary(Op.EQ, odd, 1), one(ZERO)),
            If(left_over, one(_LENGTH - 1)),
        )
        if self._rows > rows:
            body = (For(_ROUND, Const(self._rows // rows), body, unroll=True),)
        return (If(binary(Op.LT, LANE, rows), body),) if rows < GROUP_LANES else body

    # -- places -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _odd(row: Expr) -> Expr:
        """Whether a row of the warpgroup begins in the middle of a pair; its first row is a multiple of 64."""
        return (C_ODD ^ row & Var("ldc")) & 1

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
