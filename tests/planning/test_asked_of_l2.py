"""What estimates of wgmma kernels say of the L2, of sectors of C and of epilogues, and which families are priced beside
them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planned import alignment_of
from test_dispatch import problem

from tilewright.device.catalog import H200
from tilewright.kernels.columns import Columns
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.cost import early_blocks, result_rows, wgmma_features, wgmma_terms
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm
from tilewright.suite.problems import Problem

PLAIN = WgmmaConfig((128, 128, 64), stages=4, subtile=32)


def table(*kernels: WgmmaConfig) -> Columns:
    return Columns.of(kernels, WgmmaConfig.columns)


def timed(c: Columns, gemm: Gemm) -> Any:
    return wgmma_terms.timed(c, gemm, H200)


def test_tiles_of_c_that_meet_inside_a_sector_move_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 168 columns of bf16 end in the middle of 32 bytes, those of 176 do not; a thread that stores for itself
    is not counted."""
    kernels = [
        replace(PLAIN, tile=(128, 168, 64)),
        replace(PLAIN, tile=(128, 176, 64)),
        replace(PLAIN, tile=(128, 168, 64), subtile=0),
    ]
    gemm = problem(8192, 8192, 64, "bf16", "NT")  # which C takes most of the time of
    before = timed(table(*kernels), gemm).seconds
    monkeypatch.setattr(result_rows, "_PARTED_BYTES", 0)
    left = timed(table(*kernels), gemm).seconds
    assert before[0] > 1.05 * left[0]
    assert before[1:].tolist() == left[1:].tolist()


def test_rows_of_c_that_begin_inside_sectors_meet_in_every_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every other row; boxes of 64 columns meet half as often as those of 32. Parts of split-K are aligned."""
    kernels = [replace(PLAIN, subtile=subtile) for subtile in (64, 32, 0)]
    kernels += [replace(PLAIN, subtile=0, persistent=False, split_k=2)]
    c, slow = table(*kernels), replace(H200, dram_gb_per_s=500)

    def seconds(columns: int) -> Any:
        gemm = problem(8192, columns, 64, "bf16", "NT")
        return wgmma_terms.timed(c, gemm, slow).seconds

    before, aligned = seconds(8200), seconds(8192)
    monkeypatch.setattr(result_rows, "_CUT_BYTES", 0)
    left = seconds(8200)
    added = before - left
    assert added[0] > 0.1 * left[0] and added[1] == pytest.approx(2 * added[0], rel=0.01)
    assert added[2] == pytest.approx(added[0], rel=0.01) and added[3] == 0
    assert aligned.tolist() == seconds(8192).tolist()


def test_rows_that_tma_cannot_store_cost_by_what_is_stored_together() -> None:
    """Of a row of C by warps as much as a subtile has; by threads that store their own elements eight, or under swap-AB
    16. Parts of split-K are aligned."""
    own = (replace(PLAIN, subtile=0), replace(PLAIN, subtile=0, swap_ab=True))
    c = table(*(replace(PLAIN, subtile=subtile) for subtile in (256, 128, 64)), *own)
    for columns, told in ((8191, [1, 2, 4, 32, 16]), (8192, [0, 0, 0, 0, 0])):
        found = result_rows.bytes_of_an_element(c, problem(8192, columns, 64, "bf16", "NT"))
        assert (found / result_rows._APART_BYTES * 256).tolist() == told
    split = table(replace(PLAIN, subtile=0, persistent=False, split_k=2))
    gemm = problem(8192, 8191, 64, "bf16", "NT")
    moved, _ = wgmma_terms._moved_bytes(wgmma_terms.with_clocks(split, gemm, H200), gemm, H200, (64, 32), 1)
    whole = gemm.compulsory_bytes
    assert (moved < 1.5 * whole).all()


def test_warps_that_store_whole_rows_take_time_and_save_memory() -> None:
    c = table(*(replace(PLAIN, subtile=subtile, subtile_stages=1, stages=3) for subtile in (64, PLAIN.n)))
    for dram_gb_per_s, rows_are_faster in ((500, True), (1e9, False)):
        spec, gemm = replace(H200, dram_gb_per_s=dram_gb_per_s), problem(8192, 8200, 64, "bf16", "NT")
        boxes, rows = wgmma_terms.timed(c, gemm, spec).seconds
        assert (rows < boxes) == rows_are_faster
    aligned = problem(8192, 8192, 64, "bf16", "NT")
    boxes, rows = wgmma_terms.timed(c, aligned, spec).seconds
    assert rows <= boxes  # by TMA


@pytest.mark.parametrize("k", [64, 256, 1024, 8192])
def test_two_consumers_in_turn_hide_the_shorter_of_sum_and_epilogue(k: int) -> None:
    """A tile more takes half of a sum and an epilogue, or a sum, whichever is longer, and a little for both at once;
    where no TMA stores C, warps do, and nothing is hidden so."""
    kernel = replace(PLAIN, tile=(128, 192, 64), ping_pong=True, raster_rows=16)
    c, fast = table(kernel), replace(H200, dram_gb_per_s=1e9)

    def clocks_of_a_tile(columns: int) -> float:
        few, many = (
            wgmma_terms.timed(c, gemm, fast).seconds[0]
            for gemm in (problem(128 * 132 * turns, columns, k, "bf16", "NT") for turns in (8, 16))
        )
        return float(many - few) * fast.tensor_clock_mhz * 1e6 / 8

    gemm = problem(128, 192, k, "bf16", "NT")
    told = wgmma_terms.with_clocks(c, gemm, fast)
    sums, epilogue = k / 64 * timed(c, problem(128 * 264, 192, k, "bf16", "NT")).clocks[0], told.whole[0]
    least = max(sums, (sums + epilogue) / 2)
    assert least <= clocks_of_a_tile(192) <= least + 0.16 * sums
    assert clocks_of_a_tile(191) > sums + 0.5 * epilogue


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
def test_a_kernel_takes_no_less_than_the_l2(cluster: tuple[int, int]) -> None:
    """Small tiles ask for more than it gives, and clusters for less."""
    c = table(replace(PLAIN, tile=(64, 64, 64), consumers=1, cluster=cluster, stages=10))
    gemm = problem(4096, 4096, 4096, "bf16", "NT")
    asked_rows = 64 + 64 / cluster[0]
    asked_bytes = (4096 / 64) ** 3 * asked_rows * 128
    assert timed(c, gemm).seconds[0] >= asked_bytes / wgmma_terms._REPEATED_BYTES_PER_SECOND
    free = 2 * (4096 / 64) ** 3 * 64 * 64 * 64 / (1024 * 132 * 4 * 1.98e9)  # at the rate of MMAs, whatever they read
    assert timed(c, gemm).seconds[0] > 2 * free


def test_neighbours_ask_once_for_what_they_share() -> None:
    """Blocks of a cluster, and two blocks one after the other: of B where they go down the rows, else of A."""
    kernels = [
        replace(PLAIN, raster_rows=16),
        replace(PLAIN, raster_rows=1),
        replace(PLAIN, raster_rows=16, cluster=(2, 1)),
        replace(PLAIN, raster_rows=16, cluster=(1, 4)),
        replace(PLAIN, raster_rows=16, cluster_k=2),
    ]
    c, row_bytes = table(*kernels), 128
    of = SimpleNamespace(rows=4, columns=8, blocks=1.0, steps=1.0)
    seconds = row_bytes / wgmma_terms.L2_BYTES_PER_SECOND
    longer, both = wgmma_features._asked_of_l2(c, of, problem(512, 1024, 64, "bf16", "NT"), seconds)
    shorter, _ = wgmma_features._asked_of_l2(c, of, problem(512, 512, 64, "bf16", "NT"), seconds)
    assert longer.tolist() == [64, 128, 64, 128, 128]
    assert shorter.tolist() == [128, 64, 128, 32, 128]
    assert both.tolist() == (longer + shorter).tolist()


SKINNY = WgmmaConfig((8, 128, 64), consumers=1, swap_ab=True, persistent=False, stages=13, subtile=64)


@pytest.mark.parametrize(
    ("kernel", "n", "slower"),
    [
        (SKINNY, 112, True),  # 20 blocks start at once, and 92 where others have just ended
        (SKINNY, 128, True),
        (SKINNY, 66, False),  # all start at once
        (SKINNY, 56, True),  # two launches at once, and 20 blocks of a third
        (SKINNY, 40, False),  # three launches at once
        (SKINNY, 224, False),  # in waves
        (replace(SKINNY, stages=6), 96, True),  # an SM has room for two, and one
        (replace(SKINNY, stages=6), 224, True),
        (replace(SKINNY, stages=6), 66, False),
        (replace(SKINNY, persistent=True), 224, True),  # 112 blocks with two tiles each
        (replace(SKINNY, persistent=True), 264, False),
        (replace(SKINNY, cluster=(1, 4)), 112, True),  # clusters fill 120 SMs
        (replace(SKINNY, cluster=(1, 4)), 60, False),
        (replace(SKINNY, cluster=(1, 2)), 112, True),
        (replace(SKINNY, cluster_k=4), 15, False),  # clusters fill 120 SMs, and these half of them
        (replace(SKINNY, cluster_k=4), 16, True),
        (replace(SKINNY, cluster_k=8), 14, True),
        (replace(SKINNY, cluster_k=8), 15, False),
        (replace(SKINNY, cluster_k=8, stages=6), 16, True),  # an SM has room for two
    ],
)
def test_blocks_of_dependent_launch_lie_unevenly(kernel: WgmmaConfig, n: int, slower: bool) -> None:
    """Where some SMs are idle, but fewer than the next kernel has blocks. n: tiles of 128 columns."""
    gemm = problem(4, 128 * n, 8192, "bf16", "NT")
    c = wgmma_terms.with_clocks(table(replace(kernel, dependent_launch=False), kernel), gemm, H200)
    of = timed(c, gemm)
    late, early = early_blocks.uneven(c, of.blocks, of.waves).tolist()
    assert late == 0 and (early > 0) is slower


@pytest.mark.parametrize(
    ("kernel", "n"), [(replace(SKINNY, cluster_k=4, stages=12), 16), (replace(SKINNY, cluster=(1, 2)), 112)]
)
def test_blocks_start_evenly_behind_a_launch_that_packs(kernel: WgmmaConfig, n: int) -> None:
    """n: tiles of 128 columns."""
    gemm = problem(4, 128 * n, 8192, "bf16", "NT")
    c = table(kernel)
    (early,), (packed,) = (wgmma_terms.timed(c, gemm, H200, packed=one).seconds for one in (False, True))
    assert np.isfinite(early) and packed < early


@pytest.mark.parametrize(("n", "launches", "left"), [(112, 1, 20 / 112), (56, 2, 20 / 56), (66, 2, 0.0), (132, 1, 0.0)])
def test_networks_know_how_many_launches_find_room_together(n: int, launches: int, left: float) -> None:
    """n: tiles of 128 columns. With dependent launch and without."""
    gemm = problem(4, 128 * n, 8192, "bf16", "NT")
    c = wgmma_terms.with_clocks(table(SKINNY, replace(SKINNY, dependent_launch=False)), gemm, H200)
    told = wgmma_features._beside_other_launches(c, timed(c, gemm), H200, 1e-5, np.array([0.0, 2e-6]))
    packs, of_kernel, us, share, found_left, found, idle = (np.broadcast_to(one, 2).tolist() for one in told)
    assert (packs, us) == ([False, True], [0.0, 2.0]) and of_kernel == pytest.approx([0.0, 0.2])
    assert share == pytest.approx([n / 132] * 2) and found == [launches, 0]
    assert found_left == pytest.approx([left, 0.0], abs=1e-9) and idle == pytest.approx([np.log2(133 - n)] * 2)


def test_networks_know_what_bounds_a_k_tile_and_what_blocks_leave_of_an_sm() -> None:
    gemm, kernels = problem(4096, 4096, 4096, "bf16", "NT"), (PLAIN, replace(PLAIN, stages=2))
    of_slowest = np.stack(np.broadcast_arrays(*wgmma_features._of_slowest(table(*kernels), gemm, H200)))
    assert of_slowest.max(axis=0).tolist() == [1.0, 1.0]  # nothing else is as slow as the slowest
    assert of_slowest[4].tolist() == [1.0, 1.0] and of_slowest[0, 1] < of_slowest[0, 0]  # stages share out latency
    left, taken = wgmma_features._left_of_an_sm(table(*kernels), gemm, H200)
    blocks = wgmma_terms.blocks_together(table(*kernels), gemm)
    assert taken.tolist() == [(PLAIN.consumers + 1) * one for one in blocks] and (left >= 0).all()


def test_one_row_of_tiles_has_no_neighbour_below() -> None:
    c, seconds = table(replace(PLAIN, raster_rows=16)), 128 / wgmma_terms.L2_BYTES_PER_SECOND
    of = SimpleNamespace(rows=1, columns=8, blocks=1.0, steps=1.0)
    longer, _ = wgmma_features._asked_of_l2(c, of, problem(64, 1024, 64, "bf16", "NT"), seconds)
    assert longer.tolist() == [128]


@pytest.mark.parametrize(
    "name, families",
    [
        ("768x3072x8192 e4m3 NT", {"wgmma"}),
        ("32x32x32 e4m3 NT", {"wgmma", "simt"}),
        ("3x28672x4096 tf32 NN", {"wgmma"}),  # which memory bounds
        ("8x24x3712 tf32 NN", {"wgmma", "mma"}),
    ],
)
def test_families_that_are_priced(name: str, families: set[str]) -> None:
    """Warps that multiply for themselves, only where they may be faster than wgmma."""
    gemm = Problem.of(name).gemm
    found = ranked(gemm, H200, alignment_of(gemm))
    assert {one.kind for one in found.tables} == families
