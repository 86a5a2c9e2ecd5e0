"""Every refusal of every step and law, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.refusals.hopper_cases import REFUSED as REFUSED_OF_HOPPER
from tests.refusals.schedule_cases import GEMM, REFUSED, REFUSED_OF_TENSOR_CORES
from tilewright.dtypes import F16
from tilewright.errors import ScheduleError
from tilewright.ir.buffer import Space
from tilewright.ir.program import Route
from tilewright.problem.gemm import Gemm
from tilewright.schedule import STEPS, Accumulate, Distribute, Epilogue, Relayout, Schedule, Split, Stage, Transfer


def refusal(schedule: Schedule, gemm: Gemm = GEMM) -> ScheduleError:
    with pytest.raises(ScheduleError) as refused:
        schedule.apply(gemm)
    return refused.value


def test_every_refusal_reads(golden: Callable[[str, str], None]) -> None:
    texts = [f"## {name}\n{refusal(Schedule(*steps))}\n" for name, steps in REFUSED.items()]
    golden("schedule_refusals.txt", "\n".join(texts))


def test_every_refusal_of_tensor_cores_reads(golden: Callable[[str, str], None]) -> None:
    texts = [
        f"## {name}\n{refusal(Schedule(*steps), gemm)}\n" for name, (gemm, steps) in REFUSED_OF_TENSOR_CORES.items()
    ]
    golden("tensor_core_refusals.txt", "\n".join(texts))


@pytest.mark.parametrize("name", REFUSED_OF_TENSOR_CORES)
def test_the_last_step_of_tensor_cores_is_the_one_that_is_refused(name: str) -> None:
    gemm, steps = REFUSED_OF_TENSOR_CORES[name]
    error = refusal(Schedule(*steps), gemm)
    assert error.place == f"step {len(steps)} of {len(steps)}: {steps[-1]!r}"
    assert error.headline.endswith(".")


@pytest.mark.parametrize("name", REFUSED)
def test_the_last_step_is_the_one_that_is_refused(name: str) -> None:
    steps = REFUSED[name]
    error = refusal(Schedule(*steps))
    assert error.place == f"step {len(steps)} of {len(steps)}: {steps[-1]!r}"
    assert error.headline.endswith(".")


def test_every_step_has_a_refusal() -> None:
    of_others = (*REFUSED_OF_TENSOR_CORES.values(), *REFUSED_OF_HOPPER.values())
    cases = (*REFUSED.values(), *(steps for _, steps in of_others))
    assert {type(steps[-1]) for steps in cases} == set(STEPS)


def test_narrow_elements_that_lie_apart_cannot_be_copied_asynchronously() -> None:
    steps = Schedule(
        Split("k", 8, into=("k_tile", "k_in")),
        Split("m", 8, into=("m_block", "m_in")),
        Stage("A", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
        Transfer("A_tile", Route.ASYNC),
    )
    error = refusal(steps, Gemm(64, 64, 64, F16))
    assert error.headline == (
        "Cannot copy 'A_tile' by cp.async: 'A_tile' keeps neighbours of A apart, so 2 bytes would be copied at once, "
        "and cp.async moves 4, 8 or 16."
    )


def test_a_later_step_that_breaks_an_earlier_one_says_what_it_breaks() -> None:
    steps = (*REFUSED["pipeline_half_warps"][:-1], Relayout("A_tile", pad=1), Stage("A", Space.SHARED, "k_in", "again"))
    assert refusal(Schedule(*steps)).headline == "Cannot stage A in shared memory: A_tile is there already."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([Epilogue()], "A schedule holds steps, and this is a list of 1 entry.\n  Hint: write Schedule(*steps)."),
        (Schedule(), "A schedule holds steps, and this is a Schedule of 0 entries.\n  Hint: write Schedule(*steps)."),
        (Split, "A schedule holds steps, and Split is a class.\n  Hint: give it arguments: Split(...)."),
        ("k", "A schedule holds steps, and 'k' is a str.\n  Hint: write Schedule(Split(...), Bind(...))."),
    ],
)
def test_only_steps_make_a_schedule(given: Any, said: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        Schedule(given)
    assert str(refused.value) == said


def test_a_step_that_is_not_there_is_not_replaced() -> None:
    schedule = Schedule(Split("k", 8, into=("k_tile", "k_in")), Accumulate(over="k_tile"))
    with pytest.raises(ScheduleError) as refused:
        schedule.insert(Epilogue(), after=Accumulate(over="k"))
    assert str(refused.value) == (
        "A schedule of 2 steps has Accumulate('k') 0 times, not once.\n"
        "  Hint: name a step as it stands there: print(schedule)."
    )
    assert schedule.replace(schedule[0]) == Schedule(Accumulate(over="k_tile"))
    assert schedule.insert(Epilogue(), after=schedule[1]) == Schedule(*schedule, Epilogue())
