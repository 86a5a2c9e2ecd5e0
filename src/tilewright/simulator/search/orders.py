"""All orders of a kernel's warps and copies that can matter, block by block, by dynamic partial-order reduction.

Flanagan and Godefroid, "Dynamic partial-order reduction for model checking software" (POPL 2005); source sets and sleep
sets as in Abdulla, Aronis, Jonsson and Sagonas, "Source sets: a foundation for optimal dynamic partial order reduction"
(JACM 2017). Stateless: each order is a run from the beginning, along the choices that lead to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.kernel import Kernel
from tilewright.problem.problem import Stored
from tilewright.simulator.findings import Finding
from tilewright.simulator.journal import Effect
from tilewright.simulator.launch import Block, all_blocks, launched_grid
from tilewright.simulator.run import Run, scalars_of, simulate
from tilewright.simulator.search.trace import Ready, Trace, independent
from tilewright.simulator.stepped import Actor

Asleep = dict[Actor, tuple[Effect, ...]]
"""Actors whose next step was explored already and concerns nothing that has happened since, with its effects."""


class Abandoned(Exception):
    """Every step that is left here has been explored elsewhere, or the actor that was to go first cannot."""


@dataclass(slots=True)
class Choice:
    """What was chosen at a point of the order. asleep: when it was first reached. tried: the actors explored, with the
    effects of their steps; stuck: those that could not go first; wanted: those to explore."""

    actor: Actor
    asleep: Asleep
    tried: Asleep = field(default_factory=dict)
    wanted: list[Actor] = field(default_factory=list)
    stuck: set[Actor] = field(default_factory=set)


@dataclass(slots=True)
class Order:
    """One order: along `choices` first, then any that is not explored. A `stepped.Chooser`."""

    name: str
    choices: list[Choice]
    trace: Trace = field(default_factory=Trace)
    _asleep: Asleep = field(default_factory=dict)
    _last: Actor | None = None

    def choose(self, actors: Sequence[Actor], ready: Ready) -> Actor | None:
        at = len(self.trace.steps)
        if at < len(self.choices):
            choice = self.choices[at]
            if not ready(choice.actor):
                raise Abandoned
            self._asleep = {**choice.asleep, **choice.tried}
            return choice.actor
        blocked = True
        for actor in [last for last in (self._last,) if last in actors] + list(actors):
            if actor is not None and ready(actor):
                blocked = False
                if actor not in self._asleep:
                    self.choices.append(Choice(actor, dict(self._asleep), wanted=[actor]))
                    return actor
        if blocked:
            return None
        raise Abandoned

    def took(self, actor: Actor, effects: tuple[Effect, ...], started: Sequence[Actor]) -> None:
        self.trace.add(actor, effects, started)
        self._last = actor if len(actor) == 1 else None
        self._asleep = {
            other: its for other, its in self._asleep.items() if other != actor and independent(its, effects)
        }


@dataclass(frozen=True, slots=True)
class Explored:
    """What was run. orders: not equivalent to each other. steps: of the longest. complete: no order is left out."""

    orders: int
    steps: int
    complete: bool


def explore(run: Callable[[Order], bool], most_orders: int) -> Explored:
    """Calls `run` with orders that are not equivalent, until it returns False, none is left, or `most_orders` were run.

    `run` must step along the order that it is given, and do the same again for the same choices.
    """
    choices: list[Choice] = []
    orders = steps = 0
    while True:
        order = Order(f"order {orders + 1} of a search", choices)
        try:
            goes_on = run(order)
            orders += 1
        except Abandoned:
            goes_on = True
        steps = max(steps, len(order.trace.steps))
        if not goes_on:
            return Explored(orders, steps, complete=False)
        _reverse_races(order.trace, choices)
        if not _next(order.trace, choices):
            return Explored(orders, steps, complete=True)
        if orders >= most_orders:
            return Explored(orders, steps, complete=False)


def _reverse_races(trace: Trace, choices: list[Choice]) -> None:
    """Where the second step of a race could come first, one of those that lead to it is to be explored."""
    for race in trace.races:
        choice = choices[race.first]
        leaders = trace.leaders(trace.instead(race))
        if not any(actor in choice.wanted for actor in leaders):
            second = trace.steps[race.second].actor
            choice.wanted.append(second if second in leaders else leaders[0])


def _next(trace: Trace, choices: list[Choice]) -> bool:
    """Turns the last choice of which something is left to explore, and forgets those after it."""
    while choices:
        choice, at = choices[-1], len(choices) - 1
        if at < len(trace.steps):
            choice.tried[choice.actor] = trace.steps[at].effects
        else:
            choice.stuck.add(choice.actor)
        done = {*choice.tried, *choice.stuck, *choice.asleep}
        left = [actor for actor in choice.wanted if actor not in done]
        if left:
            choice.actor = left[0]
            return True
        choices.pop()
    return False


MOST_ORDERS = 1000
"""Orders of one block that are run, unless more are asked for."""


@dataclass(frozen=True, slots=True)
class OrderSearch:
    """What a search has found.

    blocks: blocks, clusters or, where flags order all blocks, launches that were searched, each by itself. orders: that
    were run, in all; no two are equivalent. steps: of the longest. complete: every other order of every block is
    equivalent to one of them. findings: of the first order that breaks a rule. same_bits: all orders gave the same
    bits. bound: orders of one block that were allowed.
    """

    blocks: int
    orders: int
    steps: int
    complete: bool
    findings: tuple[Finding, ...]
    same_bits: bool
    bound: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.kind.is_error)

    @property
    def ok(self) -> bool:
        """Nothing is wrong in the orders that were run; `complete` says whether in all."""
        return not self.errors and self.same_bits

    def __str__(self) -> str:
        ran = f"{self.orders:,} order{'s' * (self.orders != 1)} of {self.blocks:,} block{'s' * (self.blocks != 1)}"
        steps = f"up to {self.steps:,} steps each"
        if self.errors:
            return f"{ran} run, {steps}: the last one breaks a rule"
        if not self.same_bits:
            return f"{ran} run, {steps}: two of them give different bits"
        if self.complete:
            return f"{ran} run, {steps}; every other order is equivalent to one of these: no race, no deadlock"
        return (
            f"{ran} run, {steps}: nothing found, and the search met its bound of {self.bound:,} orders of a block; "
            "others may break a rule"
        )


def search_orders(
    kernel: Kernel,
    operands: Stored,
    *,
    most_orders: int = MOST_ORDERS,
    detectors: bool = True,
    resident_blocks: int | None = None,
    part_of_k: int = 0,
    batching: Mapping[str, int] | None = None,
    group_ends: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> OrderSearch:
    """Runs orders of the warps and copies of each block that are not equivalent, until none is left.

    Stops at the first that breaks a rule or gives other bits. most_orders: of one block; what is left then is not
    looked at, and the result says so. detectors: False leaves deadlocks and other bits to be found. progress: called
    with (blocks done, in all). The rest is as for `simulate`.

    Blocks are searched one by one, as nothing orders them; races between them are found in any run of all blocks.
    """
    grid = launched_grid(kernel, scalars_of(kernel, operands, part_of_k, batching), resident_blocks)
    parts = _parts(kernel, grid)
    orders = steps = 0
    complete = same_bits = True
    findings: tuple[Finding, ...] = ()
    for done, blocks in enumerate(parts):
        runs: list[Run] = []

        def run(order: Order, blocks: Sequence[Block] = blocks, runs: list[Run] = runs) -> bool:
            found = simulate(
                kernel,
                operands,
                listeners=(),
                detectors=detectors,
                on_finding="collect",
                blocks=blocks,
                schedule=order,
                resident_blocks=resident_blocks,
                part_of_k=part_of_k,
                batching=batching,
                group_ends=group_ends,
            )
            runs[1:] = [found] if runs else []
            runs[:1] = runs[:1] or [found]
            return not found.errors and _same_bits(runs[0], found)

        explored = explore(run, most_orders)
        orders, steps = orders + explored.orders, max(steps, explored.steps)
        complete = complete and explored.complete
        findings, same_bits = runs[-1].findings, _same_bits(runs[0], runs[-1])
        if runs[-1].errors or not same_bits:
            break
        if progress is not None:
            progress(done + 1, len(parts))
    return OrderSearch(len(parts), orders, steps, complete, findings, same_bits, most_orders)


def _parts(kernel: Kernel, grid: Block) -> list[list[Block]]:
    """The blocks that something may order, apart from those that nothing does."""
    blocks = [(int(x), int(y), int(z)) for x, y, z in all_blocks(grid).tolist()]
    if kernel.workspace:
        return [blocks]
    return [blocks[at : at + kernel.cluster] for at in range(0, len(blocks), kernel.cluster)]


def _same_bits(a: Run, b: Run) -> bool:
    return all(np.array_equal(_bytes(a.stored[name]), _bytes(b.stored[name])) for name in a.stored)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)
