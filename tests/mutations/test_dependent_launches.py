"""Kernels that start under the one before: what that one writes is there after a wait, and a missing wait is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from drawn_problems import drawn_partials

from tests.lowering.test_compositions import BY_TMA
from tests.mutations.broken import without
from tilewright.dtypes import BF16, F32
from tilewright.ir.async_stmt import WaitPreviousGrid
from tilewright.ir.kernel import Kernel
from tilewright.ir.visit import Path, walk
from tilewright.kernels.reduce import ReduceConfig
from tilewright.kernels.wgmma_presets import at_depth
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.reduction import Reduction, reduced, result_of
from tilewright.simulator import Finding, Kind, PreviousGrid, simulate
from tilewright.toolchain import build

FIRST, SECOND = Gemm(136, 200, 72, BF16, out=BF16), Gemm(136, 136, 200, BF16, out=BF16, beta=0.5)


def overlapped(gemm: Gemm, name: str) -> Kernel:
    config = replace(at_depth(BY_TMA[name], gemm), dependent_launch=True)
    return build(gemm, config.schedule(gemm)).kernel


def waits(kernel: Kernel) -> list[Path]:
    return [path for path, stmt in walk(kernel.body) if isinstance(stmt, WaitPreviousGrid)]


def without_waits(kernel: Kernel) -> Kernel:
    for path in reversed(waits(kernel)):
        kernel = without(kernel, path)
    return kernel


def early(findings: Sequence[Finding]) -> set[str]:
    """The memory that is touched while the grid before may still use it."""
    told = [finding for finding in findings if "the grid before may still use it" in finding.headline]
    assert all(finding.kind is Kind.RACE for finding in told)
    return {finding.buffer for finding in told}


@pytest.mark.cross_section("name", every=5)
@pytest.mark.parametrize("name", BY_TMA)
def test_a_product_of_the_result_of_the_product_before(name: str) -> None:
    first, kernel = make_operands(FIRST), overlapped(SECOND, name)
    product = simulate(overlapped(FIRST, name), first, resident_blocks=2).c
    known = replace(make_operands(SECOND), a=product)
    stale = replace(known, a=np.zeros_like(product))
    run = simulate(kernel, stale, previous=PreviousGrid({"A": product}), resident_blocks=2)
    assert check(known, BF16.decode(np.array(run.c).reshape(SECOND.m, SECOND.n))).ok and not run.findings
    for broken in (without_waits(kernel), without(kernel, waits(kernel)[0])):
        run = simulate(broken, stale, previous=PreviousGrid({"A": product}), resident_blocks=2, on_finding="collect")
        assert early(run.errors) == {"A"}


@pytest.mark.cross_section("name", every=5, at=2)
@pytest.mark.parametrize("name", BY_TMA)
def test_anything_may_be_written_by_the_grid_before_unless_it_is_known(name: str) -> None:
    operands, kernel = make_operands(SECOND), overlapped(SECOND, name)
    assert simulate(kernel, operands, resident_blocks=2).findings == ()
    run = simulate(without_waits(kernel), operands, resident_blocks=2, on_finding="collect")
    assert early(run.errors) == {"A", "B", "C"}
    reader = PreviousGrid(read=frozenset("ABC"))
    run = simulate(without_waits(kernel), operands, resident_blocks=2, on_finding="collect", previous=reader)
    assert early(run.errors) == {"C"}


def test_consumers_wait_where_nothing_is_loaded() -> None:
    """With k = 0 no TMA load tells them that the producer has waited, and C is read and written."""
    gemm = replace(SECOND, k=0, lda=8, ldb=136)
    kernel = overlapped(gemm, "persistent, TMA store")
    operands = make_operands(gemm)
    assert simulate(kernel, operands, resident_blocks=2).findings == ()
    run = simulate(without(kernel, waits(kernel)[1]), operands, resident_blocks=2, on_finding="collect")
    assert early(run.errors) == {"C"}


def test_a_launch_that_never_waits_breaks_the_chain() -> None:
    """The kernel behind it would take it for the last of all before: also where it touches nothing of theirs."""
    operands, kernel = make_operands(SECOND), without_waits(overlapped(SECOND, "one tile"))
    run = simulate(kernel, operands, previous=PreviousGrid(), on_finding="collect")
    (finding,) = run.errors
    assert finding.kind is Kind.UNFINISHED and "no thread has waited for the grid before" in finding.headline


def test_a_reduction_of_partial_sums_that_are_being_written() -> None:
    problem = Reduction(24, 40, 5, 40, 24 * 40, F32, 1.0, 0.0, ldc=40)
    kernel, partials = ReduceConfig.of(problem, 16).kernel(problem), drawn_partials(problem)
    sums = partials.storage("partials")
    stale = replace(partials, arrays={**partials.arrays, "partials": np.zeros_like(sums)})
    grid_before = PreviousGrid({"partials": sums})
    right = result_of(problem, simulate(kernel, stale, previous=grid_before).stored["C"])
    np.testing.assert_allclose(right, reduced(partials), rtol=1e-5, atol=1e-6)
    run = simulate(without_waits(kernel), stale, previous=grid_before, on_finding="collect")
    assert early(run.errors) == {"partials"} and not np.array(run.stored["C"]).any()
