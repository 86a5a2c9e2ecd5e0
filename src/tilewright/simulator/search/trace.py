"""The steps of one run: what each comes after in every equivalent order, and which could come the other way round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.simulator.journal import Effect, Role, Thing
from tilewright.simulator.stepped import Actor


@dataclass(slots=True)
class Step:
    """One step of an actor. past: the steps that come before it in every equivalent order, as bits by number."""

    actor: Actor
    effects: tuple[Effect, ...]
    past: int = 0


@dataclass(frozen=True, slots=True)
class Race:
    """Two steps, by number, that concern each other and that nothing else orders: the second could come first."""

    first: int
    second: int


@dataclass(slots=True)
class _History:
    """The steps that have touched a thing. by_actor: of each actor (number, effect) in order."""

    by_actor: dict[Actor, list[tuple[int, Effect]]] = field(default_factory=lambda: defaultdict(list))
    arrived: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By generation, the steps that made it up, as bits."""
    told: list[tuple[int, int]] = field(default_factory=list)
    """(count, number) of what was told."""


class Trace:
    """The steps of a run, in order."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.races: list[Race] = []
        self._last: dict[Actor, int] = {}
        self._begins: dict[Actor, int] = {}
        self._things: dict[Thing, _History] = defaultdict(_History)

    def add(self, actor: Actor, effects: tuple[Effect, ...], started: Sequence[Actor]) -> None:
        """The next step. started: copies that it has started."""
        number = len(self.steps)
        past = self._after(self._begins[actor]) if actor in self._begins else 0
        if actor in self._last:
            past |= self._after(self._last[actor]) | self._met(self._last[actor])
        past = self._reversible(number, past, self._concerned(actor, effects, passed_before))
        for effect in effects:
            past |= self._awaited(effect)
        past = self._reversible(number, past, self._concerned(actor, effects, concern))
        self.steps.append(Step(actor, effects, past))
        self._last[actor] = number
        for copy in started:
            self._begins[copy] = number
        for effect in effects:
            history = self._things[effect.thing]
            if effect.role is Role.TELLS:
                history.told.append((effect.generation, number))
                continue
            history.by_actor[actor].append((number, effect))
            if effect.role in (Role.ARRIVES, Role.MEETS):
                history.arrived[effect.generation] |= 1 << number

    def instead(self, race: Race) -> list[Step]:
        """The steps that lead to the second of a race without the first, in order."""
        between = self.steps[race.first + 1 : race.second]
        return [step for step in between if not step.past >> race.first & 1] + [self.steps[race.second]]

    def leaders(self, steps: list[Step]) -> list[Actor]:
        """The actors of those of some steps that come after none of the others."""
        numbers = {id(step): number for number, step in enumerate(self.steps)}
        bits, first = 0, {}
        for step in steps:
            if step.actor not in first:
                first[step.actor] = not step.past & bits
            bits |= 1 << numbers[id(step)]
        return [actor for actor, leads in first.items() if leads]

    def _after(self, number: int) -> int:
        return self.steps[number].past | 1 << number

    def _all_after(self, bits: int) -> int:
        past = bits
        for number in _numbers(bits):
            past |= self.steps[number].past
        return past

    def _met(self, number: int) -> int:
        """What comes before all that follows a meeting: everybody's arrival."""
        past = 0
        for effect in self.steps[number].effects:
            if effect.role is Role.MEETS:
                past |= self._all_after(self._things[effect.thing].arrived[effect.generation])
        return past

    def _awaited(self, effect: Effect) -> int:
        """What had to happen for a wait to end."""
        history = self._things[effect.thing]
        if effect.role is Role.PASSES:
            return self._all_after(history.arrived[effect.generation - 1])
        if effect.role is Role.HEARS:
            bits = 0
            for count, number in history.told:
                bits |= (1 << number) * (count <= effect.generation)
            return self._all_after(bits)
        return 0

    def _reversible(self, number: int, past: int, concerned: list[int]) -> int:
        """Puts down the races of a step, and returns its past with those in it."""
        for other in concerned:
            if not past >> other & 1:
                self.races.append(Race(other, number))
                past |= self._after(other)
        return past

    def _concerned(
        self, actor: Actor, effects: tuple[Effect, ...], concern: Callable[[Effect, Effect], bool]
    ) -> list[int]:
        """Of each other actor the last step that concerns one of these effects, the latest first."""
        found: set[int] = set()
        for effect in effects:
            if effect.role in (Role.TELLS, Role.HEARS):
                continue
            for other, touched in self._things[effect.thing].by_actor.items():
                if other != actor:
                    number = next((number for number, earlier in reversed(touched) if concern(earlier, effect)), None)
                    if number is not None:
                        found.add(number)
        return sorted(found, reverse=True)


def passed_before(earlier: Effect, later: Effect) -> bool:
    """Whether a wait could have ended before an arrival, in an earlier generation than it did.

    What made the later generation is then no reason why it comes after the arrival.
    """
    return later.role is Role.PASSES and earlier.role is Role.ARRIVES and earlier.generation <= later.generation - 2


def concern(earlier: Effect, later: Effect) -> bool:
    """Whether two effects on one thing, by different actors, do not commute where they are neighbours.

    Arrivals of one generation commute; arrivals of two do not, as each could have been of the other. Waits commute. A
    wait comes after the generation that it waited for; any other arrival could turn it over, before or after it.

    >>> from tilewright.simulator.journal import Effect, Role
    >>> arrive, wait = (lambda n: Effect(("mbarrier", 0), Role.ARRIVES, n)), Effect(("mbarrier", 0), Role.PASSES, 1)
    >>> concern(arrive(1), arrive(1)), concern(arrive(0), arrive(1)), concern(arrive(0), wait), concern(wait, arrive(1))
    (False, True, False, True)
    """
    arrives = [effect.role in (Role.ARRIVES, Role.MEETS) for effect in (earlier, later)]
    if all(arrives):
        return earlier.generation != later.generation
    if not any(arrives):
        return False
    return arrives[1] or earlier.generation != later.generation - 1


def independent(a: tuple[Effect, ...], b: tuple[Effect, ...]) -> bool:
    """Whether two steps certainly commute: they touch nothing in common but by waiting."""
    touched = {effect.thing: effect.role for effect in a if effect.role not in (Role.TELLS, Role.HEARS)}
    return all(
        effect.thing not in touched or (effect.role is Role.PASSES and touched[effect.thing] is Role.PASSES)
        for effect in b
        if effect.role not in (Role.TELLS, Role.HEARS)
    )


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


Ready = Callable[[Actor], bool]
