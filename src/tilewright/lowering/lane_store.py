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

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.buffer import Ref
from tilewright.ir.expr import ONE, TRUE, ZERO, Const, Expr, Op, Var, binary, both
from tilewright.ir.kernel import C_ODD
from tilewright.ir.program import GROUP_LANES, WARP_LANES
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move
from tilewright.lowering.kernel_parts import global_place, value_buffer
from tilewright.lowering.located import end_of, size_of
from tilewright.lowering.part_store import LANE, PART, Either, Finished, PartStore
from tilewright.lowering.products import swizzle_atoms_of

_WARP, _ODD = Var("warp_in_group"), Var("odd")
_WARPS = GROUP_LANES // WARP_LANES
_BATCH, _STEP, _PIECE, _ROUND = "row_batch", "row_step", "piece", "row_round"

_BATCH_ROWS = 8
"""Rows of which a warp loads the next before it has stored the last: enough to wait for shared memory once."""


@dataclass(frozen=True)
class LaneStore(PartStore):
    """The statements of one warpgroup that store its part of a tile of C by its own lanes."""

    exact: frozenset[str]

    def body(self, either: Either, finished: Finished) -> Body:
        """Of two places, that all have read one is known from the meeting since."""
        first = (self._meet(),) if self._buffers == 1 else ()
        # Uniform not only for speed: the compiler cannot compute what follows from it before the sums are gone, when
        # there are no registers to keep it in.
        warp = Let(_WARP.name, LANE // WARP_LANES, uniform=True)
        # The first row of a warpgroup is a multiple of 64.
        odd = Let(_ODD.name, (C_ODD ^ _WARP & Var("ldc")) & 1, "rows of this warp begin in the middle of a pair")
        part = (*first, *self._fill(either, finished), self._meet(), warp, odd, *self._stores())
        return (For(PART.name, Const(self._parts), part, unroll=True),)

    def _stores(self) -> Body:
        """Guards cost more than the stores, so that only tiles at the edges of C have them."""
        row, column = self._corner()
        rows = None if "m" in self.exact else binary(Op.LE, row + self._rows, size_of(self.program, "m"))
        columns = (
            None if "n" in self.exact else binary(Op.LE, column + self.tile.row_length, size_of(self.program, "n"))
        )
        inside = both(rows, columns)
        if inside == TRUE:
            return self._part(guarded=False)
        at_edge = self._part(guarded=True) + (() if columns is None else self._last_of_c())
        return (If(inside, self._part(guarded=False), at_edge),)

    def _part(self, *, guarded: bool) -> Body:
        odd = (*self._pairs(1, guarded), *self._ends())
        return (If(binary(Op.EQ, _ODD, 1), odd, self._pairs(0, guarded)),)

    # -- pairs ------------------------------------------------------------------------------------------------------

    def _pairs(self, odd: int, guarded: bool) -> Body:
        """Those of one lane in all rows of its warp; the last lane of an odd row has one element, and no pair."""
        length, together = self.tile.row_length, 2 * WARP_LANES
        piece = Var(_PIECE) if length > together else ZERO
        column = piece * together + LANE % WARP_LANES * 2 + odd
        row = self._row(Var(_BATCH) * _BATCH_ROWS + Var(_STEP))
        batch: Body = (For(_STEP, Const(_BATCH_ROWS), self._pair(row, column, odd, guarded), unroll=not guarded),)
        body: Body = (For(_BATCH, Const(self._own_rows // _BATCH_ROWS), batch),)
        if odd:
            body = (If(binary(Op.LT, column + 1, length), body),)
        return (For(_PIECE, Const(length // together), body, unroll=True),) if length > together else body

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
        down, along = place.index[:2]
        ends = end_of(self.program, "m"), end_of(self.program, "n")
        guard = both(binary(Op.LT, down, ends[0]), binary(Op.LT, along + 1, ends[1])) if guarded else None
        return (Alloc(value), *loads, Move(place, left, 2, guard, origin="C", settled=True))

    # -- single elements --------------------------------------------------------------------------------------------

    def _ends(self) -> Body:
        """The first and the last element of each odd row."""
        return self._singles({"first": ZERO, "last": Const(self.tile.row_length - 1)})

    def _last_of_c(self) -> Body:
        """The last element of each row of C, where that is inside this part and in no pair."""
        length = size_of(self.program, "n") - self._corner()[1]
        within = both(binary(Op.LT, 0, length), binary(Op.LT, length, self.tile.row_length))
        alone = binary(Op.EQ, length + _ODD & 1, 1)
        return (If(both(within, alone), self._singles({"edge": length - 1})),)

    def _singles(self, columns: Mapping[str, Expr]) -> Body:
        """One element of each row of a warp, a lane each."""
        lanes = min(self._own_rows, WARP_LANES)
        rounds = self._own_rows // lanes
        row = self._row((Var(_ROUND) * WARP_LANES if rounds > 1 else ZERO) + LANE % WARP_LANES)
        body: Body = ()
        for name, column in columns.items():
            value = value_buffer(f"C_{name}", self.tile.dtype, 1)
            here = Ref(value, (ZERO,))
            load = Move(here, self._kept(row, column), origin=self._name)
            body = (*body, Alloc(value), load, Move(self._place(row, column), here, origin="C"))
        if rounds > 1:
            body = (For(_ROUND, Const(rounds), body, unroll=True),)
        return (If(binary(Op.LT, LANE % WARP_LANES, lanes), body),) if lanes < WARP_LANES else body

    # -- places -----------------------------------------------------------------------------------------------------

    @property
    def _own_rows(self) -> int:
        """Rows that a warp stores."""
        return self._rows // _WARPS

    @staticmethod
    def _row(number: Expr) -> Expr:
        """A row of the running warp: warps take rows in turn, so that all of a warp begin alike."""
        return number * _WARPS + _WARP

    @property
    def _name(self) -> str:
        return self.tile.staged.name

    def _place(self, row: Expr, column: Expr) -> Ref:
        first_row, first_column = self._corner()
        return global_place(self.program, "C", first_row + row, first_column + column)

    def _kept(self, row: Expr, column: Expr) -> Ref:
        """An element of the part in its place in shared memory."""
        swizzle_atoms = swizzle_atoms_of(self.tile)
        down = self._first_row() + row
        inside = swizzle_atoms.column(down, column % swizzle_atoms.columns, swizzle_atoms.columns)
        return Ref(self.tile.shared_buffer, (*self._buffer, column // swizzle_atoms.columns, down, inside))
