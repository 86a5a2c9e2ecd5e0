"""Warpgroups that share a tile end one after the other: the results are the same, and none waits for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lowering.test_ordered_sums import schedule_at
from tests.mutations.broken import without
from tilewright.dtypes import BF16
from tilewright.errors import ScheduleError, SimulationError
from tilewright.ir.async_stmt import ArriveBarrier, WaitBarrier
from tilewright.ir.kernel import Kernel
from tilewright.ir.visit import Path, walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, clustered, one_tile, persistent
from tilewright.kernels.wgmma_steps import in_roles
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Pipeline, Schedule, Specialize, Step
from tilewright.simulator import simulate
from tilewright.toolchain import build

KINDS: dict[str, WgmmaConfig] = {
    "persistent": replace(persistent(128, 128, 2, subtile=64), stages=3),
    "cluster": replace(clustered(persistent(128, 128, 2, subtile=64)), stages=3),
    "a block a tile": replace(one_tile(128, 128, 2), stages=2),
    "three": replace(one_tile(192, 128, 3), stages=4),
}


def waits(kernel: Kernel, kind: type) -> list[Path]:
    """Where warpgroups wait for each other, or tell each other."""
    return [path for path, stmt in walk(kernel.body) if isinstance(stmt, kind) and "ordered" in str(stmt)]


SKINNY = replace(persistent(128, 64, 2, subtile=64), stages=6)
"""Which waits for memory."""


def given(step: Step, apart: int) -> Step:
    return replace(step, apart=apart) if isinstance(step, Specialize) else step


@pytest.mark.cross_section("k", "name", every=6)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("k", [0, 64, 128, 192, 256, 328, 520])
@pytest.mark.parametrize("order", ["lockstep", "warps", "moments"])
def test_tiles_of_any_depth_one_after_another(name: str, k: int, order: Any) -> None:
    """Fewer stages than the ring has, as many and more."""
    gemm = Gemm(400, 72, k, BF16, out=BF16, lda=max(k, 8), ldb=72)
    built = build(gemm, KINDS[name].schedule(gemm))
    assert waits(built.kernel, WaitBarrier) and waits(built.kernel, ArriveBarrier)
    operands = make_operands(gemm)
    run = built.simulate(operands, listeners=(), resident_blocks=2, schedule=order)
    verdict = check(operands, gemm.out.decode(view(gemm, "C", run.c)))
    assert verdict.ok, verdict.message


def test_a_warpgroup_waits_for_the_one_before_it() -> None:
    gemm = Gemm(128, 64, 256, BF16, out=BF16)
    kernel = build(gemm, KINDS["a block a tile"].schedule(gemm)).kernel
    with pytest.raises(SimulationError, match="Deadlock"):
        simulate(without(kernel, waits(kernel, ArriveBarrier)[0]), make_operands(gemm), listeners=())


@pytest.mark.parametrize(
    "config",
    [
        PING_PONG,
        persistent(64, 64, 1, subtile=64),
        replace(persistent(128, 128, 2, subtile=64), promote_every=64),
        SKINNY,
    ],
)
def test_others_do_not(config: WgmmaConfig) -> None:
    assert in_roles(config, (24, 240)).apart == 0


def test_results_are_the_same_bits() -> None:
    gemm = Gemm(256, 64, 320, BF16, out=BF16)
    schedule = KINDS["persistent"].schedule(gemm)
    together = Schedule(*(given(one, 0) for one in schedule.steps))
    operands = make_operands(gemm)
    runs = [build(gemm, one).simulate(operands, listeners=(), resident_blocks=2) for one in (schedule, together)]
    np.testing.assert_array_equal(runs[0].c, runs[1].c)


def test_no_more_stages_than_the_ring_holds_beside_the_one_in_use() -> None:
    gemm = Gemm(256, 64, 320, BF16, out=BF16)
    steps = schedule_at(gemm, persistent(128, 128, 2, subtile=64)).steps
    stages = next(one.stages for one in steps if isinstance(one, Pipeline))
    with pytest.raises(ScheduleError, match=f"in a ring of {stages} before"):
        _ = build(gemm, Schedule(*(given(one, stages) for one in steps))).program
