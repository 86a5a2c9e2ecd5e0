"""Walks, problems, split-K, raster orders and clusters in every combination, on sizes that no tile divides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lowering.work_items import check_batch
from tilewright.dtypes import BF16, F16, F32
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Activation
from tilewright.schedule import Schedule
from tilewright.toolchain import build, run_on_simulator


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


ONE_TILE, PERSISTENT = one_tile(64, 128, 1), persistent(128, 128, 2, subtile=64)
BY_TMA: dict[str, WgmmaConfig] = {
    "one tile": ONE_TILE,
    "one tile, cluster": clustered(ONE_TILE),
    "one tile, TMA store": one_tile(64, 128, 1, subtile=128),
    "persistent, TMA store": PERSISTENT,
    "persistent, cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "one tile, cluster of 4 x 2": replace(ONE_TILE, cluster=(4, 2), stages=3),
    "persistent, cluster of 2 x 2": replace(persistent(64, 128, 1, subtile=64), cluster=(2, 2), stages=3),
    "ping-pong": replace(PING_PONG, tile=(128, 128, 64), subtile=64, stages=3),
}


@pytest.mark.cross_section("name", "shared", every=6)
@pytest.mark.parametrize("shared", ["", "A", "B"])
@pytest.mark.parametrize("name", BY_TMA)
def test_a_strided_batch_by_tma(name: str, shared: str) -> None:
    gemm = Gemm(200, 136, 200, BF16, out=BF16)
    built = check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 3, shared=shared, resident_blocks=4)
    assert all(one.rank == 3 for one in built.kernel.maps)


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", BY_TMA)
def test_each_matrix_of_a_batch_is_added_to_what_lay_there(name: str) -> None:
    gemm = Gemm(136, 136, 64, BF16, out=BF16, b=Order.COL, beta=0.5)
    check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 5, resident_blocks=4, schedule="warps")


@pytest.mark.cross_section("name", every=2, at=1)
@pytest.mark.parametrize("name", BY_TMA)
def test_each_problem_of_a_batch_has_a_residual_and_all_share_a_bias(name: str) -> None:
    gemm = Gemm(136, 136, 64, BF16, out=BF16, beta=0.5, epilogue=Epilogue("n", True, Activation.RELU))
    check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 3, resident_blocks=2)


@pytest.mark.cross_section("rung", "k", every=3)
@pytest.mark.parametrize("k", [1, 41, 64])
@pytest.mark.parametrize("rung", ["worklog/6", "worklog/best", "ampere/full"])
def test_a_strided_batch_by_threads(rung: str, k: int) -> None:
    gemm = Gemm(70, 66, k) if rung.startswith("worklog") else Gemm(70, 72, k, F16, out=F16, b=Order.COL)
    check_batch(gemm, find_rung(rung), 3, resident_blocks=2)


@pytest.mark.parametrize("name", ["one tile", "one tile, cluster"])
def test_a_strided_batch_whose_k_is_split(name: str) -> None:
    gemm = Gemm(136, 136, 200, BF16, out=F32)
    check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 2, part_of_k=128)


@pytest.mark.cross_section("k", every=2)
@pytest.mark.parametrize("k", [192, 696])
def test_a_persistent_kernel_splits_k(k: int) -> None:
    """Parts that end early are filled with zeros, so that every item uses the ring as often."""
    gemm = Gemm(200, 136, k, BF16, out=F32)
    check_batch(gemm, schedule_at(gemm, persistent(128, 128, 2, subtile=0)), 2, part_of_k=256, resident_blocks=3)
    threads = Gemm(136, 136, k, F16, out=F32)
    check_batch(threads, find_rung("ampere/full"), 2, part_of_k=256, resident_blocks=3)


@pytest.mark.cross_section("seed", every=2)
@pytest.mark.parametrize("seed", range(4))
def test_empty_sums_of_a_ping_pong_kernel_come_in_turn(seed: int) -> None:
    """No MMA makes the warps of a warpgroup wait for each other: one may not pass the order on before all have it."""
    gemm = Gemm(384, 256, 0, BF16, out=BF16, beta=0.5, lda=8)
    operands = make_operands(gemm)
    built = build(gemm, schedule_at(gemm, BY_TMA["ping-pong"]))
    computed, _ = run_on_simulator(built, operands, listeners=(), resident_blocks=1, schedule="warps", seed=seed)
    assert check(operands, computed).ok


def test_batched_kernels_compile_without_spills() -> None:
    gemm = Gemm(256, 256, 256, BF16, out=BF16)
    for name in ("persistent, TMA store", "persistent, cluster"):
        built = check_batch(gemm, schedule_at(gemm, BY_TMA[name]), 1, resident_blocks=2)
        assert built.compile("sm_90a").resources.spill_load_bytes == 0
