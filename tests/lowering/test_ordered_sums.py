"""Items that share out k add up in order: the same bits for any number and order of blocks, and flags left at 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from tests.lowering.test_persistent import SMALL
from tests.lowering.work_items import check_batch
from tests.mutations.broken import without
from tilewright.dtypes import BF16, F16, F32, Array
from tilewright.errors import LoweringError, SimulationError
from tilewright.ir.async_stmt import SignalFlag, WaitFlag
from tilewright.ir.program import Level, RasterOrder
from tilewright.ir.visit import Path, walk
from tilewright.ir.work import SplitK
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent
from tilewright.problem import Gemm, check, make_operands
from tilewright.problem.reference import view
from tilewright.schedule import Accumulate, Bind, Persist, Raster, Reorder, Schedule, Split
from tilewright.simulator import simulate
from tilewright.toolchain import Build, build, grid_of


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


KINDS: dict[str, WgmmaConfig] = {
    "cooperative": persistent(128, 128, 2, subtile=64),
    "cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "ping-pong": replace(PING_PONG, tile=(128, 128, 64), subtile=64, stages=3),
    "from registers": persistent(128, 128, 2, subtile=0),
}


def ordered(gemm: Gemm, schedule: Schedule) -> Build:
    return replace(build(gemm, schedule), split_k=SplitK.ORDERED)


def checked(built: Build, part_of_k: int, blocks: int, schedule: Literal["lockstep", "warps"] = "lockstep") -> Array:
    gemm, operands = built.gemm, make_operands(built.gemm)
    run = built.simulate(operands, listeners=(), part_of_k=part_of_k, resident_blocks=blocks, schedule=schedule)
    verdict = check(operands, gemm.out.decode(view(gemm, "C", run.c)))
    assert verdict.ok, verdict.message
    assert built.whole_waves or not run.flags.any()
    return run.c


@pytest.mark.cross_section("k", "name", every=6)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("k", "part_of_k"), [(456, 128), (64, 64), (200, 192), (8, 64)])
def test_wgmma_kernels_add_up_in_order(name: str, k: int, part_of_k: int) -> None:
    gemm = Gemm(200, 136, k, BF16, out=BF16, beta=0.5)
    built = ordered(gemm, schedule_at(gemm, KINDS[name]))
    few, many = checked(built, part_of_k, 2), checked(built, part_of_k, 9, "warps")
    np.testing.assert_array_equal(few, many)


def test_each_block_of_a_cluster_adds_up_a_tile_of_its_own() -> None:
    gemm = Gemm(128, 128, 136, BF16, out=BF16)
    checked(ordered(gemm, schedule_at(gemm, KINDS["cluster"])), 64, 2, "warps")


def test_mma_kernels_add_up_in_order() -> None:
    gemm = Gemm(100, 136, 264, F16, out=F16, accumulate=F32)
    built = ordered(gemm, SMALL.schedule(gemm))
    np.testing.assert_array_equal(checked(built, 128, 3), checked(built, 128, 12, "warps"))


@pytest.mark.parametrize("name", ["cooperative", "ping-pong"])
def test_an_empty_sum_leaves_what_beta_says(name: str) -> None:
    gemm = Gemm(600, 136, 0, BF16, out=BF16, beta=0.5, lda=8, ldb=136)
    checked(ordered(gemm, schedule_at(gemm, KINDS[name])), 128, 2, "warps")


@pytest.mark.cross_section("k", "name", every=6)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("k", [0, 8, 328, 520])
def test_stream_k(name: str, k: int) -> None:
    """Blocks have equal parts of the k of all tiles; who waits for whom changes no bit."""
    gemm = Gemm(136, 72, k, BF16, out=BF16, beta=0.5, lda=max(k, 8), ldb=72)
    built = replace(ordered(gemm, schedule_at(gemm, KINDS[name])), stream_k=True)
    for blocks in (3, 30):
        some = checked(built, 64, blocks)
        np.testing.assert_array_equal(some, checked(built, 64, blocks, "warps"))


@pytest.mark.parametrize(("part_of_k", "blocks"), [(64, 12), (128, 6), (192, 4), (576, 4)])
def test_stream_k_starts_as_many_blocks_as_have_a_part_of_k_and_no_fewer_than_tiles(
    part_of_k: int, blocks: int
) -> None:
    gemm = Gemm(200, 136, 192, BF16, out=BF16)
    built = replace(ordered(gemm, schedule_at(gemm, KINDS["cooperative"])), stream_k=True)
    assert grid_of(built.kernel, gemm, part_of_k=part_of_k) == (blocks, 1, 1)


def test_stream_k_of_a_strided_batch() -> None:
    gemm = Gemm(136, 136, 200, BF16, out=BF16)
    check_batch(gemm, schedule_at(gemm, KINDS["cooperative"]), 3, stream_k=True, resident_blocks=5)


def test_stream_k_needs_sums_that_are_added_up_in_order() -> None:
    gemm = Gemm(128, 128, 256, BF16, out=BF16)
    with pytest.raises(LoweringError, match="sums added up in order"):
        _ = replace(build(gemm, schedule_at(gemm, KINDS["cooperative"])), stream_k=True).kernel


def test_what_orders_the_partial_sums_is_needed() -> None:
    gemm = Gemm(128, 128, 256, BF16, out=BF16)
    kernel = ordered(gemm, schedule_at(gemm, KINDS["cooperative"])).kernel

    def paths_of(kind: type) -> list[Path]:
        return [path for path, stmt in walk(kernel.body) if isinstance(stmt, kind)]

    options: dict[str, Any] = {"listeners": (), "part_of_k": 128, "resident_blocks": 2}
    with pytest.raises(SimulationError, match=r"Race on partial_sums"):
        simulate(without(kernel, paths_of(WaitFlag)[0]), make_operands(gemm), **options)
    with pytest.raises(SimulationError, match="Deadlock"):
        simulate(without(kernel, paths_of(SignalFlag)[-1]), make_operands(gemm), **options)


def test_kernels_that_add_up_in_order_do_not_spill() -> None:
    gemm = Gemm(256, 256, 512, BF16, out=BF16)
    for name in ("cooperative", "cluster", "ping-pong"):
        built = ordered(gemm, schedule_at(gemm, KINDS[name]))
        for one in (built, replace(built, stream_k=True)):
            assert one.compile("sm_90a").resources.spill_load_bytes == 0


def test_blocks_that_may_not_run_together_cannot_wait_for_each_other() -> None:
    gemm = Gemm(128, 128, 256, BF16, out=BF16)
    with pytest.raises(LoweringError, match="only in a persistent kernel"):
        _ = ordered(gemm, schedule_at(gemm, one_tile(64, 128, 1))).kernel


@pytest.mark.parametrize("stream_k", [False, True])
def test_beta_that_sums_begin_with_is_added_once(stream_k: bool) -> None:
    """Without Epilogue() a sum begins with beta * C: that of the item which comes first in k."""
    gemm = Gemm(13, 20, 23, beta=-1.5)
    schedule = Schedule(
        *(Split("m", 8, into=("m_block", "m_in")), Split("n", 4, into=("n_block", "n_in"))),
        Split("k", 4, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_in", "k_tile", "k_in", "n_in"),
        *(Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X), Bind("m_in", Level.BLOCK_X)),
        *(Accumulate("k_tile"), Raster(RasterOrder.ROW), Persist()),
    )
    checked(replace(ordered(gemm, schedule), stream_k=stream_k), 8, 5, "warps")


def test_sums_that_are_kept_one_after_another_do_not_add_up_in_order() -> None:
    gemm = Gemm(16, 16, 16)
    schedule = Schedule(
        *(Split("m", 8, into=("m_block", "m_in")), Split("n", 8, into=("n_block", "n_in"))),
        *(Bind("m_block", Level.GRID_Y), Bind("n_block", Level.GRID_X), Reorder("m_in", "n_in", "k")),
        *(Accumulate("k"), Raster(RasterOrder.ROW), Persist()),
    )
    with pytest.raises(LoweringError, match="in loop 'm_in' around 'k'"):
        _ = ordered(gemm, schedule).kernel
