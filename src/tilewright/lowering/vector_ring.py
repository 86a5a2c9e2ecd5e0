"""A loop over tiles that are cut out of aligned vectors, which come through a ring of their own (`cut_out`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.expr import ZERO, Const, Expr, Op, Var, binary
from tilewright.ir.program import CUT_OUT_TILES, Staged
from tilewright.ir.stmt import Barrier, Body, Carried, CommitCopies, For, If, Let, Stmt, WaitCopies
from tilewright.ir.tiles import arrived_name, arriving_name, cut_name, fill_name, next_name, side_name, slot_name
from tilewright.lowering.coordinates import extent_of
from tilewright.lowering.copies import copy_tile
from tilewright.lowering.cut_out import Rows, slots_of
from tilewright.lowering.kernel_parts import at
from tilewright.lowering.ring import Ring, counter, tiles_under


@dataclass(frozen=True)
class _VectorRing(Ring):
    """What the loops have in common: the ring of vectors."""

    def _vectors(self, turn: Expr, slot: Expr, *, first: bool = False) -> Body:
        """Start the vectors of a turn's tiles."""
        started = tuple(s for rows in self._rows for s in rows.start(first=first))
        return at(started, **{self.loop.name: turn, arriving_name(self.loop.name): slot})

    @property
    def _rows(self) -> list[Rows]:
        """Those of the tiles that are cut out."""
        return [Rows(self.program, staged, self.exact) for staged in self._tiles(are_cut=True)]

    @property
    def _vector_slots(self) -> int:
        return slots_of(self.ring)

    def _tiles(self, *, are_cut: bool) -> list[Staged]:
        return [staged for staged in tiles_under(self.program, self.loop) if staged.cut_out is are_cut]


@dataclass(frozen=True)
class CutOutLoop(_VectorRing):
    """A ring of vectors in front of two tiles: one is used while the next is cut out of its vectors.

        start the vectors of tiles 0 .. n;  wait;  barrier
        cut out tile 0;  barrier
        for t:  start the vectors of tile t+n+1, where those of tile t were
                cut out tile t+1
                use tile t
                wait for the vectors of tile t+2;  barrier

    Where fragments run ahead, nobody reads tile t behind the barrier: tile t+2 is cut out there, in its place, and the
    last products of tile t hide it. A row along k ends in the first vector of the next tile, for which all wait too.

    An operand whose rows are aligned needs no cutting: its tiles come straight into a ring of n slots.
    """

    def whole(self) -> Body:
        """The loop, and what comes before it."""
        name, first = self.loop.name, self.use.first
        side = Var(side_name(name))
        other, following = Const(CUT_OUT_TILES - 1) - side, Var(next_name(name))
        ahead, wait = Var(name) + self._vector_slots, WaitCopies(self._vector_slots - 3)
        copies = (*self._vectors(ahead, Var(arriving_name(name))), *self._uncut(ahead, Var(fill_name(name))))
        begin = at(first, **{side_name(name): ZERO, slot_name(name): ZERO})
        begin_next = at(first, **{side_name(name): other, slot_name(name): following})
        if self._is_hidden:
            begin_next = (*begin_next, *self._cut(side))
        else:
            copies = (*copies, *self._cut(other))
        body = (*self._beside(copies), *self._meet((CommitCopies(), wait), begin_next))
        run = For(name, self.extent, body, carried=self._counters())
        return (*self._prologue(), wait, Barrier("the first tiles are complete"), *begin, run)

    def _prologue(self) -> Body:
        """Vectors for every slot, and the first tiles cut out of them."""
        stmts: list[Stmt] = [*self.use.declare]
        for turn in range(self._vector_slots):
            stmts += self._vectors(Const(turn), Const(turn), first=turn == 0)
            if turn >= self._later:
                stmts += self._uncut(Const(turn), Const(turn - self._later))
            stmts.append(CommitCopies())
        stmts += [WaitCopies(self._vector_slots - 1 - self._lead), Barrier("the first vectors are there")]
        for turn in range(self._lead):
            stmts += at(self._cut(Const(turn)), **{arrived_name(self.loop.name): Const(turn)})
        return tuple(stmts)

    def _uncut(self, turn: Expr, slot: Expr) -> Body:
        """Start the tile that needs no cutting, which is not as far ahead as the vectors of a turn."""
        copies = tuple(s for staged in self._tiles(are_cut=False) for s in copy_tile(self.program, staged))
        return self._copied(at(copies, **{fill_name(self.loop.name): slot}), turn - self._later)

    def _cut(self, side: Expr) -> Body:
        """Cut tiles out of the vectors that have arrived."""
        cut = tuple(s for rows in self._rows for s in rows.cut_out())
        return at(cut, **{cut_name(self.loop.name): side})

    def _counters(self) -> tuple[Carried, ...]:
        name, slots = self.loop.name, self._vector_slots
        counters = (
            counter(side_name(name), 0, CUT_OUT_TILES),
            counter(arriving_name(name), 0, slots),
            counter(arrived_name(name), self._lead, slots),
        )
        return (*counters, *self._slots(runs_ahead=self.use.is_split)) if self._tiles(are_cut=False) else counters

    @property
    def _is_hidden(self) -> bool:
        """Whether tiles are cut out behind the barrier."""
        return self.use.is_split and not self.use.last_reads_tile

    @property
    def _lead(self) -> int:
        """Tiles that are cut out before the loop."""
        return CUT_OUT_TILES if self._is_hidden else CUT_OUT_TILES - 1

    @property
    def _later(self) -> int:
        """Turns by which a tile that needs no cutting comes later than vectors."""
        return self._vector_slots - self.ring.stages + 1


@dataclass(frozen=True)
class VectorLoop(_VectorRing):
    """A ring of vectors, out of which each lane cuts its own fragments (`cut_fragments`): there are no tiles.

        start the vectors of tiles 0 .. n;  wait for those of tiles 0 and 1;  barrier;  load the first words
        for t:  use tile t, loading the words of its later steps
                wait for the vectors of tile t+2;  barrier
                load the first words of tile t+1;  start the vectors of tile t+n+1, where those of tile t were
                the last products of tile t

    Vectors are copied whole, and not spread over the steps. Where k ends inside a tile, what follows in that tile's
    vectors is made zero behind the loop, which turns over whole tiles only.
    """

    def whole(self) -> Body:
        """The loop, what comes before it, and the tile in which k ends."""
        name, slots, use = self.loop.name, self._vector_slots, self.use
        arrived = Var(arrived_name(name))
        copies = (*self._vectors(Var(name) + slots, arrived), CommitCopies())
        begin_next = (*self._begin(Var(next_name(name))), *copies)
        body = (*use.whole, *use.most, *self._meet((WaitCopies(slots - 3),), begin_next))
        counters = (counter(arrived.name, 0, slots), counter(next_name(name), 1, slots))
        run = For(name, self._turns, body, carried=counters)
        wait = (WaitCopies(slots - 2), Barrier("the first vectors are there"))
        return (*self._prologue(), *wait, *self._begin(ZERO), run, *self._end())

    def _prologue(self) -> Body:
        stmts: list[Stmt] = [*self.use.declare]
        for turn in range(self._vector_slots):
            stmts += [*self._vectors(Const(turn), Const(turn), first=turn == 0), CommitCopies()]
        return tuple(stmts)

    def _begin(self, slot: Expr) -> Body:
        return at(self.use.first, **{arrived_name(self.loop.name): slot})

    def _end(self) -> Body:
        """The tile in which k ends. A row that ends in it goes on in the first vectors of the tile behind it."""
        if self.extent == self._turns:
            return ()
        name, use = self.loop.name, self.use
        slot, behind = Var(arrived_name(name)), Var(next_name(name))
        lets = [Let(place.name, (self._turns + i) % self._vector_slots) for i, place in enumerate((slot, behind))]
        clear = (*self._clear(self._turns, slot), *self._clear(self._turns + 1, behind))
        meet = (WaitCopies(0), Barrier("all vectors are there, and no longer read"))
        used = at((*use.whole, *use.most, *use.last), **{name: self._turns})
        last = (*lets, *meet, *clear, Barrier("there are zeros behind k"), *self._begin(slot), *used)
        return (If(binary(Op.LT, self._turns, self.extent), last),)

    def _clear(self, turn: Expr, slot: Expr) -> Body:
        cleared = tuple(s for rows in self._rows for s in rows.clear())
        return at(cleared, **{self.loop.name: turn, arriving_name(self.loop.name): slot})

    @cached_property
    def _turns(self) -> Expr:
        """Whole tiles."""
        return extent_of(self.program, self.loop, frozenset(("k",)))
