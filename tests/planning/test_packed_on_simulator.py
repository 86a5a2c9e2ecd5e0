"""Packed operands on the simulator of plans: a kernel may read rows of copies to their ends, past the last element."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.kernels.mma import MmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.plan import Place
from tilewright.problem.reference import make_operands, reference, view
from tilewright.suite.problems import Problem
from tilewright.winners.plan_config import PlanConfig

SMALL = MmaConfig((32, 16, 32), (16, 16), stages=4)


@pytest.mark.parametrize("orders", ["NN", "TN", "NT"])
def test_rows_of_copies_are_as_long_as_the_launch_before_made_them(orders: str) -> None:
    gemm = Problem(28, 5, 41, "bf16", orders).gemm
    request = Request(gemm, alignment_of_rows(gemm))
    operands = make_operands(gemm, seed=3)
    plan = plan_of(simulated_dispatcher().kernels, request, PlanConfig(SMALL, frozenset(("A", "B"))))
    places = {Place.A: operands.storage("A"), Place.B: operands.storage("B"), Place.OUT: operands.storage("C").copy()}
    run_plan(plan, places)
    found = gemm.out.decode(view(gemm, "C", places[Place.OUT]))
    assert np.allclose(found, reference(operands), rtol=0.02, atol=0.05)
