"""Whole plans on the simulator: copies whose rows go on behind the last element, GEMV with split-K."""

from __future__ import annotations

import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.plan import Place
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.reference import view
from tilewright.suite.problems import Problem
from tilewright.winners.plan_config import PlanConfig

SMALL = MmaConfig((32, 16, 32), (16, 16), stages=4)


def assert_right(gemm: Gemm, config: PlanConfig) -> None:
    operands = make_operands(gemm, seed=3)
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, alignment_of_rows(gemm)), config)
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    run_plan(plan, places)
    assert check(operands, gemm.out.decode(view(gemm, "C", places[Place.OUT]))).ok


@pytest.mark.parametrize("orders", ["NN", "TN", "NT"])
def test_rows_of_copies_are_as_long_as_the_launch_before_made_them(orders: str) -> None:
    assert_right(Problem(28, 5, 41, "bf16", orders).gemm, PlanConfig(SMALL, frozenset(("A", "B"))))


@pytest.mark.parametrize("parts", [1, 4])
def test_a_gemv_kernel_and_the_sum_of_its_parts(parts: int) -> None:
    assert_right(Problem(2, 70, 1100, "f32", "NT").gemm, PlanConfig(GemvConfig(split_k=parts)))
