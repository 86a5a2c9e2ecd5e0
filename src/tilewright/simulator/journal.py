"""What a step of a warp or a copy does to the things that order warps: barriers, phases, flags.

Written only where orders are searched (`search`); elsewhere there is no journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.dtypes import Array

Thing = tuple[str, int]
"""A kind of barrier ("mbarrier", "named barrier") or flag, and its number among all blocks that run."""


class Role(Enum):
    """What an effect is to a thing that counts generations: openings of a barrier, phases of an mbarrier.

    ARRIVES: one of those of which a generation is made. MEETS: arrives and waits for its own generation. PASSES: has
    found this generation running, so the one before complete. TELLS, HEARS: waits for all that was told up to a count,
    which only grows.
    """

    ARRIVES = "arrives"
    MEETS = "meets"
    PASSES = "passes"
    TELLS = "tells"
    HEARS = "hears"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step does to one thing."""

    thing: Thing
    role: Role
    generation: int


class Journal:
    """The effects of the step under way."""

    def __init__(self) -> None:
        self._effects: dict[Effect, None] = {}

    def note(self, role: Role, kind: str, numbers: Array, generations: Array) -> None:
        """An effect for each number, with its generation."""
        for number, generation in zip(numbers.tolist(), generations.tolist(), strict=True):
            self._effects[Effect((kind, number), role, generation)] = None

    def taken(self) -> tuple[Effect, ...]:
        """The effects since the last call."""
        effects = tuple(self._effects)
        self._effects.clear()
        return effects
