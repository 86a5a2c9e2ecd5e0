"""A producer that issues the TMA loads of several k tiles together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.dtypes import BF16
from tilewright.errors import ScheduleError
from tilewright.kernels.configuration import from_data, to_data
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.kernels import build_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.plan import Place
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Pipeline
from tilewright.winners.plan_config import PlanConfig

GROUPED = WgmmaConfig((16, 64, 64), consumers=1, stages=8, swap_ab=True, persistent=False, subtile=64, issue_group=4)
OTHERS = {
    "a block a tile": GROUPED,
    "persistent": replace(GROUPED, persistent=True, raster_rows=16),
    "cluster": replace(GROUPED, cluster=(1, 4)),
    "cluster along k": replace(GROUPED, cluster_k=2, subtile=0),
    "three of eight": replace(GROUPED, issue_group=3),
    "ping-pong": WgmmaConfig((64, 64, 64), ping_pong=True, raster_rows=16, subtile=64, stages=6, issue_group=2),
}


@pytest.mark.parametrize("k", [64, 200, 1000])
@pytest.mark.parametrize("name", OTHERS)
def test_results_are_the_same(name: str, k: int) -> None:
    gemm = Gemm(5, 296, k, BF16, b=Order.COL)
    operands = make_operands(gemm, seed=3)
    request = Request(gemm, alignment_of_rows(gemm))
    plan = plan_of(simulated_dispatcher().kernels, request, PlanConfig(OTHERS[name]))
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok


def test_a_producer_waits_for_the_stages_of_a_group_in_front_of_its_first_load() -> None:
    gemm = Gemm(16, 4096, 4096, BF16, b=Order.COL)
    text = build_of(gemm, PlanConfig(GROUPED)).cuda
    assert text.index("if (k_tile % 4 == 0)") < text.index("&k_tile_empty[(k_tile_number + later + 1) % 8]")
    assert text.index("(k_tile_number + later + 1) % 8") < text.index("tma_load(&A_tile")
    assert "int later" not in build_of(gemm, PlanConfig(replace(GROUPED, issue_group=1))).cuda


def test_half_of_the_ring_is_left() -> None:
    gemm = Gemm(16, 4096, 4096, BF16, b=Order.COL)
    assert "at most half of 8 stages" in " ".join(replace(GROUPED, issue_group=5).reasons_against(gemm))
    assert from_data(to_data(GROUPED)) == GROUPED
    *before, _ = replace(GROUPED, issue_group=1).schedule(gemm)[: _pipelined(gemm) + 1]
    with pytest.raises(ScheduleError) as refused:
        type(GROUPED.schedule(gemm))(*before, Pipeline("k_tile", 8, issue_group=5)).apply(gemm)
    assert "loads of 5 iterations are issued together, and there are 8 stages" in str(refused.value)


def _pipelined(gemm: Gemm) -> int:
    """The number of the step that pipelines."""
    steps = GROUPED.schedule(gemm)
    return next(number for number, step in enumerate(steps) if isinstance(step, Pipeline))
