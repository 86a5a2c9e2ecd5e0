"""The simulator is quick enough to be used: budgets for two cores, ten times what was measured when they were set."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from simulated_kernels import naive, register_tiled, tiled

from tilewright.ir.kernel import Kernel
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import simulate


@pytest.mark.parametrize(("make", "budget_seconds"), [(register_tiled, 1.0), (naive, 3.0), (tiled, 3.0)])
def test_a_run_with_all_listeners_and_detectors(make: Callable[[], Kernel], budget_seconds: float) -> None:
    operands = make_operands(Gemm(256, 256, 256))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        simulate(make(), operands)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < budget_seconds
