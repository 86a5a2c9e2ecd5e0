"""Every order in which the best rung may take for a thread's FMAs gives the same bits."""

from functools import cache

import numpy as np
import pytest

from tilewright.dtypes import Array
from tilewright.ladders.worklog_points import BEST, best_at, orders
from tilewright.problem import make_operands
from tilewright.problem.gemm import Gemm
from tilewright.toolchain import build, run_on_simulator

GEMM = Gemm(70, 137, 19, alpha=0.5, beta=-1.0)
OPERANDS = make_operands(GEMM)
TILE = {**BEST, "bm": 64, "bn": 128}


@cache
def expected() -> Array:
    computed, _ = run_on_simulator(build(GEMM, best_at(GEMM, TILE)), OPERANDS)
    return computed


@pytest.mark.cross_section("order", every=4)
@pytest.mark.parametrize("order", tuple(orders(16, 8)))
def test_an_order_of_results_changes_no_bit(order: str) -> None:
    computed, run = run_on_simulator(build(GEMM, best_at(GEMM, {**TILE, "order": order})), OPERANDS)
    assert np.array_equal(computed, expected())
    assert run.errors == ()


def test_vectors_run_through_digits_that_are_walked_apart() -> None:
    gemm = Gemm(64, 128, 16)
    text = build(gemm, best_at(gemm, {**TILE, "order": "m1 m3 m2 m0 ~n2 ~n0 ~n1"})).cuda
    assert "float A_frag[4][2][2];  // (m32, m1, m0)" in text
    assert "as_float4(A_frag[m32][0][0]) =" in text
