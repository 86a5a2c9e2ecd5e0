"""Kernels of wgmma whose blocks share out the k of all tiles in equal parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.dtypes import BF16
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.plan import Place, Role
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.reference import view
from tilewright.winners.plan_config import PlanConfig

STREAMED = WgmmaConfig(
    (16, 128, 64), consumers=1, stages=5, swap_ab=True, persistent=True, raster_rows=16, subtile=64, stream_k=True
)


@pytest.mark.parametrize("k", [64, 200, 1000])
@pytest.mark.parametrize("options", [{}, {"consumers": 2}, {"subtile": 0}], ids=["", "two", "per thread"])
@pytest.mark.parametrize("b", [Order.COL, Order.ROW])
def test_a_plan_clears_the_flags_of_tiles_and_adds_up_in_the_kernel(
    b: Order, options: dict[str, object], k: int
) -> None:
    gemm = Gemm(13, 392, k, BF16, b=b)
    operands = make_operands(gemm, seed=3)
    config = PlanConfig(replace(STREAMED, **options))  # type: ignore[arg-type]
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, alignment_of_rows(gemm)), config)
    assert [step.role for step in plan.steps] == [Role.COPY, Role.PRODUCT]
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok
