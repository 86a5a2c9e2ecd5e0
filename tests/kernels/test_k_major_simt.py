"""SIMT kernels whose tiles are K-major in shared memory, where they are in memory: fragments along k."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import F32
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.kernels.simt import ROW_BY_ROW, SimtConfig, shared_bytes
from tilewright.planning.kernels import build_of
from tilewright.prediction.counting import work_of as counted
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.toolchain import build, run_on_simulator
from tilewright.winners.plan_config import PlanConfig

ROW, COL = Order.ROW, Order.COL
BY_ASYNC: dict[str, Any] = {"a_transport": "cp_async", "b_transport": "cp_async", "stages": 3}
ORDERS = [(ROW, COL), (ROW, ROW), (COL, COL)]


def k_major(config: SimtConfig, gemm: Gemm, **more: Any) -> SimtConfig:
    return replace(config, k_major=True, columns_together=1 if gemm.b is COL else 4, **more)


@pytest.mark.parametrize("config", [SimtConfig((64, 64, 16), (32, 32), 4), SimtConfig((48, 64, 8), (16, 32), 4)])
@pytest.mark.parametrize("sizes", [(70, 67, 37), (70, 68, 48), (33, 129, 5)])
@pytest.mark.parametrize(("a", "b"), ORDERS)
def test_they_give_the_same_bits_and_are_clean(
    a: Order, b: Order, sizes: tuple[int, int, int], config: SimtConfig
) -> None:
    gemm = Gemm(*sizes, F32, a=a, b=b, beta=0.5)
    operands = make_operands(gemm)
    config = replace(config, unroll=8, fma_order=ROW_BY_ROW)
    expected, _ = run_on_simulator(build(gemm, config.schedule(gemm)), operands)
    copied = 4 if sizes[2] % 4 == 0 and sizes[0] % 4 == 0 else 1
    for more in (BY_ASYNC, {**BY_ASYNC, "copied": copied}, {"copied": copied}, {**BY_ASYNC, "store": "shared"}):
        one = k_major(config, gemm, **more)
        found, run = run_on_simulator(build(gemm, one.schedule(gemm)), operands)
        assert not run.findings and check(operands, found).ok and np.array_equal(found, expected), one


@pytest.mark.parametrize(("a", "b"), ORDERS)
def test_blocks_of_a_cluster_share_their_sums(a: Order, b: Order) -> None:
    gemm = Gemm(70, 100, 96, F32, a=a, b=b)
    config = k_major(SimtConfig((48, 64, 16), (48, 32), unroll=8, cluster_k=2, **BY_ASYNC), gemm)
    operands = make_operands(gemm)
    found, run = run_on_simulator(build_of(gemm, PlanConfig(config)), operands)
    assert check(operands, found).ok and not run.findings


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("k", [8, 16, 32])
@pytest.mark.parametrize("transport", [BY_ASYNC, {}], ids=["cp.async", "registers"])
def test_copies_and_fragments_are_counted_as_the_simulator_counts_them(
    orders: tuple[Order, Order], k: int, transport: dict[str, Any]
) -> None:
    gemm = Gemm(4096, 4096, 4096, F32, a=orders[0], b=orders[1])
    for copied in (4, 1):
        config = k_major(SimtConfig((96, 128, k), (48, 64), unroll=8, copied=copied, **transport), gemm)
        theirs = counted(build_of(gemm, PlanConfig(config)))
        setting = Setting(np.array([theirs.blocks]), np.array([int(theirs.steps)]))
        ours = work_of("simt", Columns.of([config], config.columns), gemm, setting)
        told = {(one.name, one.kind, one.space): one for one in ours.step.accesses if np.max(one.requests) > 0}
        for one in theirs.step.accesses:
            mine = told[one.name, one.kind, one.space]
            assert float(np.max(mine.requests)) == one.requests and mine.copies == one.copies, (config, one)
            assert float(np.max(mine.wavefronts)) == one.wavefronts or one.wavefronts == 0, (config, one)
            assert float(np.max(mine.sectors)) == one.sectors, (config, one)


@pytest.mark.parametrize("columns", [4096, 4097])
def test_stores_are_counted_as_the_simulator_counts_them(columns: int) -> None:
    gemm = Gemm(4096, columns, 4096, F32, b=COL)
    for store in ("per_thread", *(("shared",) if columns % 4 else ())):
        config = k_major(SimtConfig((96, 128, 8), (48, 64), unroll=8, store=store), gemm)  # type: ignore[arg-type]
        theirs = counted(build_of(gemm, PlanConfig(config)))
        setting = Setting(
            np.array([theirs.blocks]), np.array([int(theirs.steps)]), result_bytes=16 if columns % 4 == 0 else 4
        )
        ours = work_of("simt", Columns.of([config], config.columns), gemm, setting)
        told = {(a.name, a.kind): a for a in ours.rest.accesses if np.max(a.requests) > 0}
        for access in theirs.rest.accesses:
            if access.name in ("C", "C_tile"):
                mine = told[access.name, access.kind]
                assert float(np.max(mine.requests)) == access.requests, (config, access)
                assert float(np.max(mine.wavefronts)) == access.wavefronts, (config, access)
                assert float(np.max(mine.sectors)) == pytest.approx(access.sectors, rel=0.2), (config, access)


def test_they_copy_neighbours_along_k_together() -> None:
    """What is transposed on its way moves element by element."""
    gemm = Gemm(64, 64, 64, F32, b=COL)
    config = SimtConfig((64, 64, 32), (32, 32), **BY_ASYNC)
    requests = [
        sum(one.requests for one in counted(build_of(gemm, PlanConfig(of))).step.accesses if one.copies)
        for of in (config, k_major(config, gemm))
    ]
    assert requests[0] == 4 * requests[1]


@pytest.mark.parametrize(("a", "b"), ORDERS)
@pytest.mark.parametrize("columns", [256, 255])
@pytest.mark.parametrize("more", [{}, BY_ASYNC, {"cluster_k": 4}, {"store": "shared"}], ids=str)
def test_shared_memory_is_known_to_the_byte(more: dict[str, Any], columns: int, a: Order, b: Order) -> None:
    gemm = Gemm(128, columns, 256, F32, a=a, b=b)
    config = k_major(SimtConfig((96, 128, 16), (48, 64), unroll=16, **more), gemm)
    if columns == 256:
        config = replace(config, store="per_thread")  # rows of C are aligned
    assert int(shared_bytes(config, gemm)) == build_of(gemm, PlanConfig(config)).kernel.shared_bytes


@pytest.mark.parametrize(
    ("gemm", "more", "reason"),
    [
        (Gemm(64, 64, 64, F32, a=COL), {}, "neither A nor B lies along k"),
        (Gemm(64, 64, 64, F32, b=COL), {"columns_together": 4}, "columns_together=1"),
        (Gemm(64, 64, 64, F32), {"unroll": 2}, "4 neighbours along k"),
        (Gemm(64, 64, 64, F32), {"interleaved_copies": True}, "4 neighbours along k"),
        (Gemm(64, 64, 64, F32), {"double_buffered_fragments": True}, "not double-buffered"),
    ],
)
def test_what_they_cannot_do_is_said(gemm: Gemm, more: dict[str, Any], reason: str) -> None:
    config = k_major(SimtConfig((64, 64, 16), (32, 32)), gemm)
    assert not config.reasons_against(gemm) or gemm.a is COL
    assert reason in " ".join(replace(config, **more).reasons_against(gemm))
