"""Registers of producers and consumers follow from how many warpgroups a block has."""

from __future__ import annotations

import pytest

from tilewright import BF16, Gemm, build
from tilewright.ir.async_stmt import SetRegisters
from tilewright.ir.visit import walk
from tilewright.kernels.wgmma_steps import WgmmaTile, loaded_by_tma, nest, staged, stored_per_thread
from tilewright.problem import check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Pipeline, Schedule, Specialize


def schedule_of(gemm: Gemm, consumers: int) -> Schedule:
    tiles = WgmmaTile(m=64 * consumers, n=64, consumers=consumers)
    copies = (*nest(gemm, tiles), *staged(gemm, tiles), *loaded_by_tma(gemm), Pipeline("k_tile", 3))
    return Schedule(*copies, Specialize(), *stored_per_thread(gemm, tiles))


@pytest.mark.parametrize(("consumers", "registers"), [(1, 240), (2, 240), (3, 160)])
def test_consumers_have_what_a_block_starts_with(consumers: int, registers: int) -> None:
    gemm = Gemm(200, 136, 200, BF16, out=BF16)
    built = build(gemm, schedule_of(gemm, consumers))
    budgets = [stmt.count for _, stmt in walk(built.kernel.body) if isinstance(stmt, SetRegisters)]
    assert built.kernel.threads_per_block == 128 * (consumers + 1) and budgets == [24, registers]
    operands = make_operands(gemm)
    run = built.simulate(operands)
    assert check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok and not run.findings
