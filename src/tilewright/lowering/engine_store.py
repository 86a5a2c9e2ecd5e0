"""Finished sums on their way out through shared memory and the copy engine.

Each warpgroup has its own rows of the tile of C, and stores them by itself: it waits until the engine has read what
was in that place before, puts results there (`part_store`), meets, and one thread starts the copy, which goes on while
the next tile of C is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.async_stmt import CommitStores, FenceProxy, TensorMap, TmaStore, WaitStores
from tilewright.ir.buffer import Ref
from tilewright.ir.expr import ZERO, Const, Expr, Op, Var, binary
from tilewright.ir.stmt import Body, For, If
from tilewright.layout.swizzle import swizzle_of
from tilewright.lowering.part_store import LANE, PART, Either, Finished, PartStore
from tilewright.lowering.products import swizzle_atoms_of


@dataclass(frozen=True)
class EngineStore(PartStore):
    """The statements of one warpgroup that store its part of a tile of C by the copy engine."""

    def body(self, either: Either, finished: Finished) -> Body:
        """The parts of the tile, one after the other."""
        part = (
            If(binary(Op.EQ, LANE, 0), (WaitStores(self._buffers - 1),)),
            self._meet(),
            *self._fill(either, finished),
            FenceProxy(),
            self._meet(),
            If(binary(Op.EQ, LANE, 0), (*self._start(), CommitStores())),
        )
        return (For(PART.name, Const(self._parts), part, unroll=True),)

    @staticmethod
    def leave() -> Body:
        """Before a block ends: its shared memory must outlive the copies that read it."""
        return (If(binary(Op.EQ, LANE, 0), (WaitStores(0),)),)

    def map(self) -> TensorMap:
        swizzle_atoms = swizzle_atoms_of(self.tile)
        return TensorMap("C_map", "C", (swizzle_atoms.columns, self._rows), swizzle_of(swizzle_atoms.row_bytes))

    def _start(self) -> Body:
        swizzle_atoms, columns = swizzle_atoms_of(self.tile), self.tile.row_length
        count = columns // swizzle_atoms.columns
        atom: Expr = Var(_SLAB) if count > 1 else ZERO
        row, column = self._corner()
        column = column + atom * swizzle_atoms.columns
        source = Ref(self.tile.shared_buffer, (*self._buffer, atom, self._first_row(), ZERO))
        store = TmaStore(self.map(), (column, row), source, origin=self.tile.staged.name)
        return (For(_SLAB, Const(count), (store,), unroll=True),) if count > 1 else (store,)


_SLAB = "atom"
