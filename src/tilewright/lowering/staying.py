"""Blocks that stay and copy for themselves: the ring runs on from one tile of C to the next.

With n slots, the copies of the last n - 1 turns of a tile are those of the first n - 1 turns of the block's next tile:

    start turns 0 .. n-2 of the first tile;  wait for the first;  barrier
    for tile:
        sums = 0
        for part in 0, 1:                       turns that copy for this tile, and those that copy for the next
            for k:  use turn k;  start turn k+n-1 of this tile, or turn k of the next
        results leave

So while results leave, the next tile is on its way, and no turn waits for memory but the very first. Both parts are one
loop in the text, which finds its operands by other coordinates: those of the tile that it copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary
from tilewright.ir.program import Loop, Program
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Barrier, Body, Carried, For, Let
from tilewright.ir.tiles import fill_name, next_name, slot_name
from tilewright.lowering.coordinates import TURN
from tilewright.lowering.kernel_parts import at
from tilewright.lowering.pipelined import RingLoop
from tilewright.lowering.ring import Use, counter, where
from tilewright.lowering.scheduler import Item, Scheduler

PART = "part"
"""0: turns that copy for the running tile; 1: turns that copy for the next one."""

FIRST, AHEAD = "first", "ahead"
"""What names end in that say which tile of C: the block's first one, and the one that is copied."""


@dataclass(frozen=True)
class StayingLoop(RingLoop):
    """The tiles of C that one block computes, one after another."""

    def over_tiles(self, start: Body, finish: Body) -> Body:
        """The whole of it. start: sets the sums; finish: stores them; names of the running tile have no suffix."""

        def tile(_: Item) -> Body:
            return (*start, self._parts(), *finish)

        return (*self._begin(), *self._scheduler.each(tile))

    def _found(self, turn: Expr, suffix: str) -> Body:
        """The coordinates of a tile of this block, their names with a suffix."""
        return _renamed(self._scheduler.locate(turn), suffix)

    @property
    def _scheduler(self) -> Scheduler:
        return Scheduler(self.program)

    @property
    def _copied_early(self) -> int:
        """Turns that are copied before the loop comes to them."""
        return self.ring.stages - 1

    @property
    def _turns(self) -> Expr:
        """Turns of a tile: at least as many as are copied early, where k is short with zeros."""
        return binary(Op.MAX, self.extent, self._copied_early)

    def _begin(self) -> Body:
        """Up to the first tile's first fragments."""
        begin = at(self.use.first, **{slot_name(self.loop.name): ZERO})
        meet = (*self._wait, Barrier("the first tiles are complete"))
        return (*self._found(ZERO, FIRST), *self._prologue(), *meet, *begin)

    def _parts(self) -> For:
        """The turns of one tile."""
        name, early, part = self.loop.name, self._copied_early, Var(PART)
        is_first = binary(Op.EQ, part, 0)
        of_loop = ("number", "done", "from", "limit", "turns")
        number, done, begin, limit, turns = (Var(f"{name}_{what}") for what in of_loop)
        there = binary(Op.LT, Var(_name(self._scheduler.number, AHEAD)), self._scheduler.count)
        lets = (
            *self._found(Var(TURN) + part, AHEAD),
            Let(begin.name, Select(is_first, Const(early), ZERO), "the first turn that is copied"),
            Let(limit.name, Select(there, self.extent - begin, ZERO), "turns that copy"),
            Let(done.name, Select(is_first, ZERO, self._turns - early), "turns of this tile before"),
            Let(number.name, binary(Op.MOD, Var(TURN) * self._turns + done, self.ring.stages), "the slot of the next"),
            Let(turns.name, Select(is_first, self._turns - early, Const(early))),
        )
        run = For(name, turns, self._turn(), carried=self._slots_from(number))
        return For(PART, Const(2), (*lets, run), note="copies for this tile, then for the next")

    def _slots_from(self, number: Expr) -> tuple[Carried, ...]:
        """The counters of slots; the next turn reads slot `number`.

        The slot that was read is the one to be filled, and the next one is read: of three, what is left is next.
        """
        name, stages = self.loop.name, self.ring.stages
        slot, fill, following = (Var(each(name)) for each in (slot_name, fill_name, next_name))
        behind = binary(Op.MOD, number + (stages - 1), stages)
        if not self._runs_ahead:
            return counter(slot.name, number, stages), counter(fill.name, behind, stages)
        ahead = counter(following.name, binary(Op.MOD, number + 1, stages), stages)
        if stages == 3:
            ahead = Carried(ahead.name, ahead.start, Const(0 + 1 + 2) - slot - fill)  # no division, and no choice
        return Carried(fill.name, behind, slot), Carried(slot.name, number, following), ahead

    def _coordinates(self, suffix: str) -> dict[str, Expr]:
        """The digits that say which tile of C it is, by the names of another one's."""
        return {name: Var(_name(name, suffix)) for name in self._scheduler.names}

    def _copied(self, copies: Body, turn: Expr) -> Body:
        name = self.loop.name
        if isinstance(turn, Const):  # in front of the loop
            copied = at(copies, **{name: turn}, **self._coordinates(FIRST))
            return where(binary(Op.LT, turn, self.extent), copied)
        copied = at(copies, **{name: Var(name) + Var(f"{name}_from")}, **self._coordinates(AHEAD))
        return where(binary(Op.LT, Var(name), Var(f"{name}_limit")), copied)


def staying_loop(program: Program, loop: Loop, exact: frozenset[str], use: Use) -> StayingLoop:
    """The loop over tiles of C around a loop over k; exact: dimensions that have no edge."""
    assert program.pipelined is not None
    return StayingLoop(program, loop, exact, use, program.pipelined)


def _name(name: str, suffix: str) -> str:
    return f"{name}_{suffix}"


def _renamed(lets: Body, suffix: str) -> Body:
    """`Let`s by other names, which end in `suffix`."""
    names: dict[str, Expr] = {}
    result: list[Let] = []
    for let in lets:
        assert isinstance(let, Let)
        result.append(Let(_name(let.name, suffix), substitute(let.value, names), let.note))
        names[let.name] = Var(result[-1].name)
    return tuple(result)
