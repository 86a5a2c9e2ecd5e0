"""Hypothesis strategies that several tests share, and how many examples a property gets."""

from __future__ import annotations

import random

from hypothesis import Phase, settings
from hypothesis import strategies as st

from tests.random_schedules import Drawing, random_gemm, random_schedule

NO_SHRINKING = (Phase.explicit, Phase.generate)
"""A schedule is drawn from a seed, and a smaller seed is no smaller schedule: `smallest_failing` shortens it."""


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
