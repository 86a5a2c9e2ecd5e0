"""What the asynchronous units of Hopper cannot do, word for word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.refusals.hopper_cases import GEMM, NO_KERNEL, REFUSED, ROLES
from tilewright.errors import LoweringError, ScheduleError
from tilewright.schedule import Schedule
from tilewright.toolchain import build


@pytest.mark.parametrize("name", REFUSED)
def test_the_last_step_is_the_one_that_is_refused(name: str) -> None:
    gemm, steps = REFUSED[name]
    with pytest.raises(ScheduleError) as refused:
        Schedule(*steps).apply(gemm)
    assert refused.value.place == f"step {len(steps)} of {len(steps)}: {steps[-1]!r}"
    assert refused.value.headline.endswith(".")


def test_every_refusal_reads(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, (gemm, steps) in REFUSED.items():
        with pytest.raises(ScheduleError) as refused:
            Schedule(*steps).apply(gemm)
        texts.append(f"## {name}\n{refused.value}\n")
    golden("hopper_refusals.txt", "\n".join(texts))


def test_what_a_kernel_needs_is_asked_for(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, (gemm, steps) in NO_KERNEL.items():
        with pytest.raises(LoweringError) as refused:
            build(gemm, Schedule(*steps)).kernel  # noqa: B018
        texts.append(f"## {name}\n{refused.value}\n")
    golden("hopper_lowering_refusals.txt", "\n".join(texts))


def test_what_the_refused_schedules_begin_with_is_a_kernel() -> None:
    assert build(GEMM, Schedule(*ROLES)).kernel.block[0] == 256
