"""A loop over tiles that come through a ring of slots: what there is to it, whoever fills the slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary, both
from tilewright.ir.program import Loop, Pipelined, Program, Staged
from tilewright.ir.stmt import Assign, Barrier, Body, Carried, For, If, Move, MultiplyTiles, RoundPair, Stmt
from tilewright.ir.tiles import fill_name, next_name, slot_name
from tilewright.ir.visit import rewrite, walk
from tilewright.lowering.coordinates import extent_of
from tilewright.lowering.kernel_parts import at
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class Outer:
    """The loop around all products of an inner step: its variable, and how many turns of the schedule's own loop over
    outer fragments one of its turns holds."""

    var: str = ""
    turns: int = 1


@dataclass(frozen=True, slots=True)
class Use:
    """What an iteration does with its tiles once they are there.

    whole: all of it. Or, where fragments run one inner step ahead: declare their registers; first, load those of inner
    step 0; again, those of them that the next tile's are loaded like, all at once; most, every inner step but the last
    with the loads for the next; last, the last inner step, which may pass the barrier unless it still reads the tile,
    and which loads the next tile's fragments that take their places one by one from slot `next_name`. Of fragments that
    lanes cut out, also the last step's cuts are in most. outer: the loop around the products of a step.
    """

    whole: Body = ()
    declare: Body = ()
    first: Body = ()
    again: Body = ()
    most: Body = ()
    last: Body = ()
    last_reads_tile: bool = False
    outer: Outer = Outer()

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


def if_any(condition: Expr, body: Body) -> Body:
    """`body` where the condition holds; nothing where there is no body."""
    return (If(condition, body),) if body else ()


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
        return extent_of(self.loop, self.exact)

    def _copied(self, copies: Body, turn: Expr) -> Body:
        """The copies of a turn, which fill their slots whether there is a tile or not.

        Where k may end inside a tile, each copy asks for its own k: it need not ask for its tile as well.
        """
        copies = at(copies, **{self.loop.name: turn})
        is_whole = self.extent == extent_of(self.loop, frozenset(("k",)))
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


def spread_over(inner: str, stmt: Stmt, copies: Body) -> Stmt:
    """The loop `inner` with a part of the copies started in each of its iterations; any other statement as it is.

    They are started behind the loads, which the products wait for, and in front of the products, which hide both.
    """
    if not isinstance(stmt, For) or stmt.var != inner or not isinstance(stmt.extent, Const):
        return stmt
    count = int(stmt.extent.value)
    parts = tuple(part for copy in copies for part in _part(copy, Var(inner), count))
    products = next((i for i, s in enumerate(stmt.body) if _multiplies(s)), len(stmt.body))
    return replace(stmt, body=(*stmt.body[:products], *parts, *stmt.body[products:]), unroll=True)


def dealt_over(ring: Pipelined, outer: Outer, stmt: Stmt, copies: Body) -> Stmt:
    """The loop `ring.spread` with the copies dealt out over its iterations in their order, as many in each.

    They are started in the midst of the products, behind `ring.behind` turns of their outer loop: loads of fragments
    and copies wait for the same unit, and the loads, which are needed sooner, come first.
    """
    if not isinstance(stmt, For) or stmt.var != ring.spread or not isinstance(stmt.extent, Const):
        return stmt
    turns = int(stmt.extent.value)
    each = ceil_div(sum(_steps(copy) for copy in copies), turns)
    parts: list[Stmt] = []
    for turn in range(turns):
        parts += if_any(binary(Op.EQ, Var(stmt.var), turn), _between(copies, turn * each, turn * each + each))
    here = If(binary(Op.EQ, Var(outer.var), ring.behind // outer.turns), tuple(parts))

    # Loads and roundings of fragments may count them by the same name; the products come last.
    number = max(i for i, inner in enumerate(stmt.body) if isinstance(inner, For) and inner.var == outer.var)
    products = stmt.body[number]
    assert isinstance(products, For)
    products = replace(products, body=(here, *products.body))
    return replace(stmt, body=(*stmt.body[:number], products, *stmt.body[number + 1 :]), unroll=True)


def _steps(copy: Stmt) -> int:
    """Copies that a thread makes in a statement."""
    return int(copy.extent.value) if isinstance(copy, For) and isinstance(copy.extent, Const) else 1


def _between(copies: Body, first: int, last: int) -> Body:
    """Of all that copies make, those from number `first` to before number `last`."""
    found: list[Stmt] = []
    for copy in copies:
        steps = _steps(copy)
        low, high = max(first, 0), min(last, steps)
        if low < high:
            if isinstance(copy, For) and high - low < steps:
                copy = replace(copy, extent=Const(high - low), body=at(copy.body, **{copy.var: Var(copy.var) + low}))
            found.append(copy)
        first, last = first - steps, last - steps
    return tuple(found)


def _multiplies(stmt: Stmt) -> bool:
    return any(isinstance(s, (Assign, RoundPair, MultiplyTiles)) for _, s in walk((stmt,)))


def _part(copy: Stmt, turn: Expr, count: int) -> Body:
    """Of a copy in several steps, those of one turn of `count`; a copy in one step belongs to the first turn."""
    if not isinstance(copy, For) or not isinstance(copy.extent, Const):
        return (If(binary(Op.EQ, turn, 0), (copy,)),)
    steps = int(copy.extent.value)
    each = ceil_div(steps, count)
    number = turn * each + Var(copy.var)
    body = at(copy.body, **{copy.var: number})
    if each * count > steps:
        body = if_any(binary(Op.LT, number, steps), body)
    return (replace(copy, extent=Const(each), body=body),)


def counter(name: str, start: int | Expr, stages: int) -> Carried:
    """A counter that goes round 0 .. stages - 1 without a division."""
    following = Var(name) + 1
    first = Const(start) if isinstance(start, int) else start
    return Carried(name, first, Select(binary(Op.EQ, following, stages), ZERO, following))
