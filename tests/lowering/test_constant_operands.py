"""Blocks that start under the kernel before ask the L2 for the first tiles of an operand that it does not write."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from tilewright.dtypes import BF16, F32
from tilewright.ir.async_stmt import L2Prefetch, TmaPrefetch, WaitPreviousGrid
from tilewright.ir.expr import Const, Select
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import For
from tilewright.ir.visit import walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem import Gemm, Order, make_operands
from tilewright.problem.emulation import BF16X6
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.simulator import PreviousGrid, simulate
from tilewright.toolchain import Build, build

Asking = TypeVar("Asking", TmaPrefetch, L2Prefetch)

GEMM = Gemm(40, 136, 320, BF16, out=BF16, b=Order.COL)
SKINNY = WgmmaConfig((16, 64, 64), 1, stages=3, swap_ab=True, persistent=False)


def built(config: WgmmaConfig, gemm: Gemm = GEMM, constant: str = "B") -> Build:
    return replace(build(gemm, config.schedule(gemm)), constant=constant)  # type: ignore[arg-type]


def asked_ahead(kernel: Kernel, kind: type[Asking]) -> list[Asking]:
    """What the L2 is asked for by statements of a kind, all in front of the wait of the thread that does."""
    found: list[Asking] = []
    waited = False
    for _, stmt in walk(kernel.body):
        waited |= isinstance(stmt, WaitPreviousGrid)
        if isinstance(stmt, kind):
            assert not waited
            found.append(stmt)
    return found


def asked(kernel: Kernel) -> list[str]:
    """The operands whose tiles are asked for."""
    return [stmt.map.operand for stmt in asked_ahead(kernel, TmaPrefetch)]


@pytest.mark.parametrize("constant", ["A", "B"])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_only_the_constant_operand_is_asked_for_before_the_wait(constant: str, cluster: tuple[int, int]) -> None:
    found, plain = (built(replace(SKINNY, cluster=cluster), constant=one) for one in (constant, ""))
    assert asked(found.kernel) == [constant] and asked(plain.kernel) == []
    operands = make_operands(GEMM)
    runs = [simulate(one.kernel, operands) for one in (found, plain)]
    assert not runs[0].findings and np.array_equal(runs[0].c, runs[1].c)


def test_what_the_kernel_before_writes_after_all_is_found_by_the_copies() -> None:
    """Asking the L2 reads nothing: where an operand is no constant, results are right still."""
    operands = make_operands(GEMM)
    stale = replace(operands, b=np.zeros_like(operands.b))
    run = simulate(built(SKINNY).kernel, stale, previous=PreviousGrid({"B": operands.b}))
    assert not run.findings and np.array_equal(run.c, simulate(built(SKINNY).kernel, operands).c)


def test_all_pieces_of_the_operand_are_asked_for() -> None:
    inner = Gemm(16, 64, 256, BF16, out=F32, pieces=BF16X6)
    config = replace(SKINNY, promote_every=64, pieces=3, stages=2)
    found = built(config, inner)
    assert asked(found.kernel) == ["B", "B1", "B2"]
    assert "cp.async.bulk.prefetch.tensor" in found.source.text
    assert compile_cuda(found.source, "sm_90a").resources.spill_load_bytes == 0


def test_no_more_is_asked_for_than_there_is() -> None:
    """A sum of two tiles and a ring of three stages; then none at all."""
    for k in (128, 0):
        gemm = replace(GEMM, k=k, lda=320, ldb=320)
        assert not simulate(built(SKINNY, gemm).kernel, make_operands(gemm)).findings


def test_kernels_that_stay_or_do_not_start_early_ask_for_nothing() -> None:
    for other in (replace(SKINNY, persistent=True, raster_rows=16), replace(SKINNY, dependent_launch=False)):
        assert asked(built(other).kernel) == []


def test_one_tile_of_what_is_read_once_is_asked_for() -> None:
    """B leaves the L2 first, as each of its tiles is read once; the kernel before may write it all the same."""
    found = built(replace(SKINNY, evict_first="B"), constant="")
    assert asked(found.kernel) == ["B"]
    (loop,) = [stmt for _, stmt in walk(found.kernel.body) if isinstance(stmt, For) and asked_in(stmt)]
    assert isinstance(loop.extent, Select) and loop.extent.b == Const(1)
    operands = make_operands(GEMM)
    stale = replace(operands, b=np.zeros_like(operands.b))
    run = simulate(found.kernel, stale, previous=PreviousGrid({"B": operands.b}))
    assert not run.findings and np.array_equal(run.c, simulate(built(SKINNY, constant="").kernel, operands).c)
    none = replace(GEMM, k=0, lda=320, ldb=320)
    assert not simulate(built(replace(SKINNY, evict_first="B"), none, "").kernel, make_operands(none)).findings


def asked_in(loop: For) -> bool:
    return any(isinstance(stmt, TmaPrefetch) for stmt in loop.body)
