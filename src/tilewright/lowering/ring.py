"""A loop over tiles that come through a ring of slots: what there is to it, whoever fills the slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary, both
from tilewright.ir.program import Loop, Pipelined, Program, Staged
from tilewright.ir.stmt import Barrier, Body, Carried, Move, Stmt
from tilewright.ir.tiles import fill_name, next_name, slot_name
from tilewright.ir.visit import rewrite
from tilewright.lowering.coordinates import extent_of
from tilewright.lowering.kernel_parts import at
from tilewright.lowering.spread import NO_LOOP, Outer, dealt_over, spread_over


@dataclass(frozen=True, slots=True)
class Use:
    """What an iteration does with its tiles once they are there.

    whole: all of it. Or, where fragments run one inner step ahead: declare their registers; first, load those of inner
    step 0; again, those of them that the next tile's are loaded like, all at once; most, every inner step but the last
    with the loads for the next; last, the last inner step, which may pass the barrier unless it still reads the tile,
    and which loads the next tile's fragments that take their places one by one from slot `next_name`. outer: the loop
    around the products of a step.
    """

    whole: Body = ()
    declare: Body = ()
    first: Body = ()
    again: Body = ()
    most: Body = ()
    last: Body = ()
    last_reads_tile: bool = False
    outer: Outer = NO_LOOP

    @property
    def is_split(self) -> bool:
        return bool(self.first)


def tiles_under(program: Program, loop: Loop) -> tuple[Staged, ...]:
    """The shared tiles of A and B that are filled in each iteration of a loop."""
    return tuple(
        staged
        for operand in ("A", "B")
        for staged in program.chain(operand)
        if staged.under == loop.name and staged.space is Space.SHARED
    )


@dataclass(frozen=True)
class Ring:
    """What loops have in common whose tiles come through a ring. exact: dimensions that have no edge."""

    program: Program
    loop: Loop
    exact: frozenset[str]
    use: Use
    ring: Pipelined

    @property
    def extent(self) -> Expr:
        """Turns of the loop."""
        return extent_of(self.program, self.loop, self.exact)

    def _copied(self, copies: Body, turn: Expr) -> Body:
        """The copies of a turn, which fill their slots whether there is a tile or not.

        Where k may end inside a tile, each copy asks for its own k: it need not ask for its tile as well.
        """
        copies = at(copies, **{self.loop.name: turn})
        is_whole = self.extent == extent_of(self.program, self.loop, frozenset(("k",)))
        return where(binary(Op.LT, turn, self.extent), copies) if is_whole else copies

    def _beside(self, copies: Body) -> Body:
        """What a turn does with its tiles, behind copies; where they are spread, with a part of them in each step."""
        used = (*self.use.whole, *self.use.most)
        if not self.ring.spread:
            return (*copies, *used)
        if self.ring.behind:
            return tuple(dealt_over(self.ring, self.use.outer, stmt, copies) for stmt in used)
        return tuple(spread_over(self.ring.spread, stmt, copies) for stmt in used)

    def _meet(self, finish: Body, begin: Body) -> Body:
        """The end of a turn. Its last products hide what begins behind the barrier, unless they still read the tile."""
        before, behind = (self.use.last, ()) if self.use.last_reads_tile else ((), self.use.last)
        return (*before, *finish, Barrier("the next tiles are complete, these are no longer read"), *begin, *behind)

    def _slots(self, *, runs_ahead: bool) -> tuple[Carried, ...]:
        """Which slot is read, which is filled and, where that has a counter of its own, which is read next."""
        starts = {slot_name(self.loop.name): 0, fill_name(self.loop.name): self.ring.stages - 1}
        if runs_ahead:
            starts[next_name(self.loop.name)] = 1
        return tuple(counter(name, first, self.ring.stages) for name, first in starts.items())


def where(condition: Expr, body: Body) -> Body:
    """Copies that fill their slots with zeros where there is no tile: no branch, and every slot is filled.

    So what is loaded one step too far is zero, and needs no branch either.
    """

    def guarded(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Move) and stmt.src.buffer.space is Space.GLOBAL:
            return (replace(stmt, guard=both(condition, stmt.guard)),)
        return None

    return rewrite(body, guarded)


def counter(name: str, start: int | Expr, stages: int) -> Carried:
    """A counter that goes round 0 .. stages - 1 without a division."""
    following = Var(name) + 1
    first = Const(start) if isinstance(start, int) else start
    return Carried(name, first, Select(binary(Op.EQ, following, stages), ZERO, following))
