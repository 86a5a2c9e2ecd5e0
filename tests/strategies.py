"""Hypothesis strategies that several tests share, and how many examples a property gets."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import Phase, settings
from hypothesis import strategies as st

from tests.random_schedules import Drawing, random_gemm, random_schedule
from tilewright.schedule import Schedule

NO_SHRINKING = (Phase.explicit, Phase.generate)
"""A schedule is drawn from a seed, and a smaller seed is no smaller schedule; `fewest_steps` shortens one by hand."""


def budget(examples: int) -> int:
    """`examples` in an ordinary run, and as many times more as the profile (`--hypothesis-profile=fuzz`) asks for."""
    return examples * settings.default.max_examples // 100


def drawn(seed: int, *, whole_factors: bool = False) -> Drawing:
    """The problem and the schedule of a seed."""
    rng = random.Random(seed)
    return random_schedule(rng, random_gemm(rng, whole_factors=whole_factors))


def schedules(*, whole_factors: bool = False) -> st.SearchStrategy[Drawing]:
    """A random problem with a random legal schedule of it."""
    return st.integers(0, 2**32 - 1).map(lambda seed: drawn(seed, whole_factors=whole_factors))


def fewest_steps(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """A schedule that still fails, and no longer does without any one of its steps: for a person who looks for a bug.

    fails: whether a schedule (which may be illegal now) goes wrong in the way that is looked for.
    """
    steps = list(schedule)
    at = len(steps)
    while at:
        at -= 1
        shorter = steps[:at] + steps[at + 1 :]
        if fails(Schedule(*shorter)):
            steps, at = shorter, len(shorter)
    return Schedule(*steps)
