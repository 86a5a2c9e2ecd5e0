"""One generator of prologue, steady state and drain, for every pipelined loop.

An iteration is a list of events, in the order of the steady state. An event has a lead: how many iterations ahead of
the running one it works. Prologue and drain follow from the leads, as in modulo scheduling:

    prologue    each iteration's fills with a lead, in the order of iterations, the greatest lead first; then what
                else is ahead by one
    steady      for k: every event, of iteration k + lead
    drain       the events that lag behind, of the iterations that are left

What an event does where k + lead is past the last iteration is its `Beyond`. Emitters take an `Env`, which says which
iteration and which stage of the ring they are for; nothing is rewritten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from tilewright.ir.expr import HERE, ZERO, Const, Env, Expr, Op, Select, Var, binary, both
from tilewright.ir.stmt import Body, Carried, For, Let, Steady, Stmt
from tilewright.lowering.kernel_parts import Steps, if_any, whole
from tilewright.units import ceil_div


class Position(Enum):
    """Where in an iteration an event stands.

    HEAD: before the use of the tiles. BESIDE: shared out over the inner steps of the use. TAIL: behind the use.
    """

    HEAD = "head"
    BESIDE = "beside"
    TAIL = "tail"


class Beyond(Enum):
    """What becomes of an event of an iteration that there is not.

    BRANCH: a branch around it. ZERO_FILL: it is made all the same, and fills its stage with zeros: no branch, and
    what is loaded one iteration too far is zero. CONTINUE: it works for the block's next tile of C. ALWAYS: it does not
    depend on the iteration (commit, wait, barrier).
    """

    BRANCH = "branch"
    ZERO_FILL = "zero fill"
    CONTINUE = "continue"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Event:
    """A part of an iteration.

    emit: its steps, for an iteration and a stage. who: the threads that issue it, where not all do. fills: whether it
    brings data, so that the prologue does it for every iteration up to its lead.
    """

    emit: Callable[[Env], Iterable[Steps]]
    lead: int = 0
    at: Position = Position.HEAD
    beyond: Beyond = Beyond.ALWAYS
    who: Expr | None = None
    fills: bool = False


def steps_of(body: Callable[[Env], Body]) -> Callable[[Env], Iterable[Steps]]:
    """An emitter of statements that are not shared out."""
    return lambda env: (Steps("", 1, lambda _: body(env), looped=False),)


def always(*stmts: Stmt) -> Callable[[Env], Iterable[Steps]]:
    """The same statements in every iteration."""
    return steps_of(lambda _: stmts)


@dataclass(frozen=True, slots=True)
class Beside:
    """Copies that an iteration starts between the steps of its use, each a run of steps that can be shared out.

    loop: the inner loop over whose iterations they are spread. behind: in each of them, the iterations of the outer
    loop of MMAs that come before its copies; 0 where all MMAs do. evenly: a copy of fewer steps than there are
    iterations has one in each so many of them, not in the first ones.
    """

    loop: str = ""
    behind: int = 0
    copies: tuple[Steps, ...] = ()
    evenly: bool = False

    def among_loads(self, step: Expr, steps: int) -> Body:
        """The part of each copy that one step of `steps` starts, behind the loads that its products wait for."""
        return tuple(stmt for copy in self.copies for stmt in _share(copy, step, steps, self.evenly))

    def among_products(self, step: Expr, steps: int) -> Body:
        """The copies of one step of `steps`, dealt out in their order, as many in each: loads of fragments and copies
        wait for the same unit, and the loads, which are needed sooner, come first."""
        each = ceil_div(sum(copy.count for copy in self.copies), steps)
        found: list[Stmt] = []
        for number in range(steps):
            dealt = _between(self.copies, number * each, number * each + each)
            found += if_any(binary(Op.EQ, step, number), dealt)
        return tuple(found)


NOTHING_BESIDE = Beside()


def _share(copy: Steps, step: Expr, steps: int, evenly: bool) -> Body:
    """What one of so many steps does of a copy, whose own steps they share out; a copy in one step is done by the
    first."""
    if not copy.looped:
        return if_any(binary(Op.EQ, step, 0), copy.whole())
    if evenly and copy.count < steps:
        every = steps // copy.count
        number = binary(Op.DIV, step, every)
        due = both(binary(Op.EQ, binary(Op.MOD, step, every), 0), binary(Op.LT, number, copy.count))
        return if_any(due, copy.body(number))
    each = ceil_div(copy.count, steps)
    number = step * each + Var(copy.var)
    body = copy.body(number)
    if each * steps > copy.count:
        body = if_any(binary(Op.LT, number, copy.count), body)
    return (For(copy.var, Const(each), body, unroll=True),)


def _between(copies: tuple[Steps, ...], first: int, last: int) -> Body:
    """Of all steps of the copies, those from number `first` to before number `last`."""
    found: list[Stmt] = []
    for copy in copies:
        low, high = max(first, 0), min(last, copy.count)
        if low < high:
            some = copy.looped and high - low < copy.count
            found += copy.some(Const(low), high - low) if some else copy.whole()
        first, last = first - copy.count, last - copy.count
    return tuple(found)


@dataclass(frozen=True)
class Uses:
    """The uses of a ring in a loop over `count` iterations, as IR values.

    stage: of the use that is so many iterations ahead; None where there is one stage. zero_fill: whether the iteration
    is asked for where a fill writes zeros: not where each element's own k says the same.
    """

    loop: str
    count: Expr
    stage: Callable[[int], Expr | None] = lambda lead: None
    zero_fill: bool = True

    def ahead(self, event: Event) -> tuple[Env, Expr | None]:
        """Where an event of the steady state works, and whether that iteration exists; None: it does."""
        digits = {self.loop: Var(self.loop) + event.lead} if event.lead else {}
        exists = binary(Op.LT, Var(self.loop) + event.lead, self.count) if event.lead > 0 else None
        if event.lead < 0:
            exists = binary(Op.LT, -event.lead - 1, Var(self.loop))
        return Env(digits, self.stage(event.lead)), exists

    def first(self, number: int) -> tuple[Env, Expr]:
        """Where an event of the prologue works, and whether that iteration exists."""
        exists = binary(Op.LT, number, self.count)
        return Env({self.loop: Const(number)}, Const(number), in_prologue=True), exists


@dataclass(frozen=True)
class Pipeline:
    """A loop whose iterations are made of events.

    use: what an iteration does with its tiles, with copies beside. spread: the inner loop that events BESIDE it are
    shared out over.
    """

    events: tuple[Event, ...]
    uses: Uses
    use: Callable[[Env, Beside], Body] = lambda env, beside: ()
    spread: Beside = NOTHING_BESIDE

    def prologue(self) -> Body:
        """What stands in front of the loop."""
        fills = [event for event in self.events if event.fills and event.lead > 0]
        stmts: list[Stmt] = []
        for number in range(max((event.lead for event in fills), default=0)):
            # Nothing hides behind anything here: an iteration's copies come first, those that others wait for before
            # them (their lead is greater), then what closes their group.
            due = [event for event in fills if event.lead > number]
            due.sort(key=lambda event: (event.beyond is Beyond.ALWAYS, -event.lead))
            stmts += self._made(due, lambda event, number=number: self.uses.first(number))  # type: ignore[misc]
        due = [event for event in self.events if not event.fills and event.lead == 1]
        for event in due:
            stmts += self._made([event], lambda event: self.uses.first(0))
        return tuple(stmts)

    def steady(self) -> Body:
        """One iteration of the loop."""
        at = {position: [e for e in self.events if e.at is position] for position in Position}
        copies = tuple(step for event in at[Position.BESIDE] for step in self._shared(event))
        env = HERE if (stage := self.uses.stage(0)) is None else HERE.in_stage(stage)
        use = self.use(env, replace(self.spread, copies=copies))
        return (*self._made(at[Position.HEAD], self.uses.ahead), *use, *self._tail(at[Position.TAIL]))

    def _tail(self, events: list[Event]) -> Body:
        return tuple(stmt for event in events for stmt in self._made([event], self.uses.ahead))

    def drain(self, env: Env) -> Body:
        """What lags behind, of the last iteration. env: of that one."""
        return tuple(s for event in self.events if event.lead < 0 for s in whole(event.emit(env)))

    def _made(self, events: list[Event], where: Callable[[Event], tuple[Env, Expr | None]]) -> Body:
        """Events one behind the other; those that the same condition guards share its branch."""
        made = ((self._condition(event, where(event)[1]), event) for event in events)
        stmts: list[Stmt] = []
        for condition, group in groupby(made, key=lambda pair: pair[0]):
            body = tuple(s for _, event in group for s in whole(event.emit(self._env(event, *where(event)))))
            stmts += body if condition is None else if_any(condition, body)
        return tuple(stmts)

    def _shared(self, event: Event) -> Iterable[Steps]:
        """The steps of an event that others share out; behind a branch they are one step."""
        env, exists = self.uses.ahead(event)
        condition, copies = self._condition(event, exists), tuple(event.emit(self._env(event, env, exists)))
        if condition is None or not copies:
            return copies
        return (Steps("", 1, lambda _: if_any(condition, whole(copies)), looped=False),)

    def _condition(self, event: Event, exists: Expr | None) -> Expr | None:
        asked = exists if event.beyond is Beyond.BRANCH else None
        if event.who is None or asked is None:
            return asked if event.who is None else event.who
        return binary(Op.LAND, event.who, asked)

    def _env(self, event: Event, env: Env, exists: Expr | None) -> Env:
        fills_zeros = event.beyond is Beyond.CONTINUE or (event.beyond is Beyond.ZERO_FILL and self.uses.zero_fill)
        return replace(env, there=exists) if fills_zeros else env


@dataclass(frozen=True, slots=True)
class CarriedStages:
    """Counters of stages that a loop carries along, without a division: which is read, which is filled and, where that
    is a third one, which is read next."""

    loop: str
    stages: int
    has_next: bool

    @property
    def read(self) -> Var:
        return Var(f"{self.loop}_stage")

    @property
    def fill(self) -> Var:
        return Var(f"{self.loop}_fill")

    @property
    def next(self) -> Var:
        """Of two stages, the next one is that which is being filled."""
        return Var(f"{self.loop}_next") if self.has_next else self.fill

    def stage(self, lead: int) -> Expr:
        """The stage of the use that is so many iterations ahead."""
        if lead == 0:
            return self.read
        return self.fill if lead >= self.stages - 1 else self.next

    def carried(self) -> tuple[Carried, ...]:
        """From the loop's first use of the ring on."""
        starts = {self.read.name: 0, self.fill.name: self.stages - 1}
        if self.has_next:
            starts[self.next.name] = 1
        return tuple(Carried.cyclic(name, Const(first), self.stages) for name, first in starts.items())

    def carried_from(self, number: Expr) -> tuple[Carried, ...]:
        """From the use on that reads stage `number`: what was read is filled, what was next is read. Of three stages,
        what is left is next."""
        stages = self.stages
        behind = binary(Op.MOD, number + (stages - 1), stages)
        if not self.has_next:
            return Carried.cyclic(self.read.name, number, stages), Carried.cyclic(self.fill.name, behind, stages)
        ahead = Carried.cyclic(self.next.name, binary(Op.MOD, number + 1, stages), stages)
        if stages == 3:
            ahead = replace(ahead, next=Const(0 + 1 + 2) - self.read - self.fill)  # no division, and no choice
        return Carried(self.fill.name, behind, self.read), Carried(self.read.name, number, self.next), ahead


@dataclass(frozen=True, slots=True)
class NumberedStages:
    """Stages and parities by the number of a use: for barriers, which complete one phase a use of their stage.

    before: uses of the ring before the loop.
    """

    loop: str
    stages: int
    before: Expr

    @property
    def number(self) -> Var:
        return Var(f"{self.loop}_number")

    @property
    def parity(self) -> Var:
        return Var(f"{self.loop}_parity")

    def lets(self, stage: str) -> Body:
        """Names the running use, its stage and the parity of its phase."""
        return (
            Let(self.number.name, self.before + Var(self.loop), "k tiles of this block before this one"),
            Let(stage, binary(Op.MOD, self.number, self.stages)),
            Let(self.parity.name, binary(Op.MOD, binary(Op.DIV, self.number, self.stages), 2)),
        )

    def previous(self) -> Expr:
        """The stage of the use before the running one."""
        return binary(Op.MOD, self.number + (self.stages - 1), self.stages)

    def first(self) -> tuple[Expr, Expr]:
        """The stage of the loop's first use, and the parity of its phase."""
        return _of_number(self.before, self.stages)

    def following(self) -> tuple[Expr, Expr]:
        """The stage of the use behind the running one, and the parity of its phase."""
        return _of_number(self.number + 1, self.stages)


def _of_number(number: Expr, stages: int) -> tuple[Expr, Expr]:
    return binary(Op.MOD, number, stages), binary(Op.MOD, binary(Op.DIV, number, stages), 2)


@dataclass(frozen=True, slots=True)
class RunningStages:
    """As `NumberedStages`, where the loop carries stage and parity along: no division stands between two uses.

    before: the same in all threads.
    """

    loop: str
    stages: int
    before: Expr

    @property
    def stage(self) -> Var:
        return Var(f"{self.loop}_stage")

    @property
    def parity(self) -> Var:
        return Var(f"{self.loop}_parity")

    def first(self) -> tuple[Expr, Expr]:
        """As of `NumberedStages`."""
        return _of_number(self.before, self.stages)

    def following(self) -> tuple[Expr, Expr]:
        """As of `NumberedStages`."""
        wraps = binary(Op.EQ, self.stage + 1, self.stages)
        return Select(wraps, ZERO, self.stage + 1), Select(wraps, self.parity ^ 1, self.parity)

    def carried(self) -> tuple[Carried, ...]:
        """The parity moves on first: it asks for the stage."""
        (stage, parity), (next_stage, next_parity) = self.first(), self.following()
        return Carried(self.parity.name, parity, next_parity), Carried(self.stage.name, stage, next_stage)


def steady_loop(pipeline: Pipeline, extent: Expr, carried: tuple[Carried, ...], steady: Steady | None) -> For:
    """The loop over the steady state."""
    return For(pipeline.uses.loop, extent, pipeline.steady(), carried=carried, steady=steady)
