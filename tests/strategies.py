"""Hypothesis strategies that several tests share, and how many examples a property gets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from tests.random_schedules import Drawing, random_gemm, random_schedule


def budget(examples: int) -> int:
    """`examples` in an ordinary run, and as many times more as the profile (`--hypothesis-profile=fuzz`) asks for."""
    return examples * settings.default.max_examples // 100


@st.composite
def schedules(draw: st.DrawFn, *, whole_factors: bool = False) -> Drawing:
    """A random problem with a random legal schedule of it."""
    rng = draw(st.randoms(use_true_random=False))
    return random_schedule(rng, random_gemm(rng, whole_factors=whole_factors))
