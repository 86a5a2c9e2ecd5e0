"""Dynamic partial-order reduction: from one run, the orders that are not equivalent to it.

Flanagan and Godefroid, "Dynamic partial-order reduction for model checking software" (POPL 2005); source sets and sleep
sets as in Abdulla, Aronis, Jonsson and Sagonas, "Source sets: a foundation for optimal dynamic partial order reduction"
(JACM 2017). Stateless: each order is a run from the beginning, along the choices that lead to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.simulator.journal import Effect
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
