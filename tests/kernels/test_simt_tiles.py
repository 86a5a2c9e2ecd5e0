"""SIMT tiles of any number of warps, whose threads have 4 to 16 rows and columns, and both ways to copy A."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.kernels.simt import SimtConfig, shared_bytes
from tilewright.kernels.spaces import simt_core, simt_tiles, space
from tilewright.planning.kernels import build_of
from tilewright.planning.on_paper import alignment_of_rows
from tilewright.planning.ranking import ranked
from tilewright.prediction.counting import work_of as counted
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.toolchain import build, run_on_simulator
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
ROW, COL = Order.ROW, Order.COL
BY_ASYNC = {"a_transport": "cp_async", "b_transport": "cp_async"}
TILES = [
    SimtConfig((48, 64, 16), (16, 32), unroll=8),
    SimtConfig((96, 128, 8), (48, 64), unroll=8),
    SimtConfig((80, 96, 16), (16, 96), unroll=16),
    SimtConfig((160, 48, 16), (32, 16), lanes_m=8, unroll=8),
    SimtConfig((112, 64, 16), (112, 32), unroll=8),
    SimtConfig((64, 80, 8), (32, 80), lanes_m=8, unroll=8),
]


@pytest.mark.parametrize("tile", TILES, ids=lambda one: f"{one.m}x{one.n}")
@pytest.mark.parametrize(("a", "b"), [(ROW, COL), (ROW, ROW), (COL, COL)])
def test_tiles_between_powers_of_two_sum_alike_however_they_are_copied(tile: SimtConfig, a: Order, b: Order) -> None:
    """At edges in every direction, with every detector on."""
    gemm = Gemm(101, 123, 53, F32, a=a, b=b)
    operands = make_operands(gemm)
    expected, run = run_on_simulator(build(gemm, tile.schedule(gemm)), operands)
    assert check(operands, expected).ok and not run.findings
    for options in (
        {**BY_ASYNC, "stages": 3},
        {**BY_ASYNC, "stages": 4, "copied": 1, "columns_together": 1},
        {"b_transport": "cp_async", "stages": 4},
    ):
        other = replace(tile, **options)  # type: ignore[arg-type]
        found, run = run_on_simulator(build(gemm, other.schedule(gemm)), operands)
        assert not run.findings and np.array_equal(found, expected), other


def test_a_cluster_shares_the_sum_of_tiles_that_cp_async_brings() -> None:
    gemm = Gemm(70, 100, 96, F32, b=COL)
    config = SimtConfig((48, 64, 16), (48, 32), unroll=8, stages=3, cluster_k=2, a_transport="cp_async")
    config = replace(config, b_transport="cp_async")
    operands = make_operands(gemm)
    found, run = run_on_simulator(build_of(gemm, PlanConfig(config)), operands)
    assert check(operands, found).ok and not run.findings


def test_cp_async_moves_no_single_elements_of_two_bytes() -> None:
    config = SimtConfig((64, 64, 16), (32, 32), **BY_ASYNC)  # type: ignore[arg-type]
    reasons = " ".join(config.reasons_against(Gemm(64, 64, 64, BF16, out=BF16, b=COL)))
    assert "neighbours of A are copied 2 bytes at once" in reasons and "neighbours of B are copied 2" in reasons
    assert not config.reasons_against(Gemm(64, 64, 64, F32, b=COL))


def test_what_a_copy_transposes_its_warps_read_as_neighbours() -> None:
    """32 elements of a row along k lie in one line, four sectors: each lane copies one."""
    gemm = Gemm(64, 64, 64, F32, b=COL)
    config = SimtConfig((64, 64, 32), (32, 32), stages=3, **BY_ASYNC)  # type: ignore[arg-type]
    work = counted(build_of(gemm, PlanConfig(config)))
    loads = [one for one in work.step.accesses if one.space == "global" and one.copies]
    assert len(loads) == 2 and all(one.sectors == 4 * one.requests for one in loads), loads


@pytest.mark.parametrize("orders", [(ROW, COL), (ROW, ROW), (COL, COL)])
@pytest.mark.parametrize("k", [8, 16, 32])
def test_copies_by_cp_async_are_counted_as_the_simulator_counts_them(orders: tuple[Order, Order], k: int) -> None:
    for stages, copied in ((3, 4), (4, 1)):
        # Rows along m or n that lie at multiples of 16 bytes are copied by fours.
        lda, ldb = (4096 + (copied == 1 and along) for along in (orders[0] is COL, orders[1] is ROW))
        gemm = Gemm(4096, 4096, 4096, F32, a=orders[0], b=orders[1], lda=lda, ldb=ldb)
        config = SimtConfig((96, 128, k), (48, 64), unroll=8, stages=stages, copied=copied, **BY_ASYNC)  # type: ignore[arg-type]
        theirs = counted(build_of(gemm, PlanConfig(config)))
        ours = work_of(
            "simt",
            Columns.of([config], config.columns),
            gemm,
            Setting(np.array([theirs.blocks]), np.array([int(theirs.steps)])),
        )
        assert int(np.max(ours.steps_ahead)) == theirs.steps_ahead == stages - 1
        told = {(one.name, one.kind, one.space): one for one in ours.step.accesses if np.max(one.requests) > 0}
        for one in theirs.step.accesses:
            mine = told[one.name, one.kind, one.space]
            assert float(np.max(mine.requests)) == one.requests and mine.copies == one.copies, (config, one)
            assert float(np.max(mine.wavefronts)) == one.wavefronts or one.wavefronts == 0, (config, one)


@pytest.mark.parametrize("tile", [(96, 128, 16), (64, 96, 32), (32, 64, 8)], ids=str)
def test_single_elements_through_registers_lie_in_banks_of_their_own(tile: tuple[int, int, int]) -> None:
    """Also where threads do not cover a tile in whole patches: 64 rows, 24 at a time."""
    warp_tile = (tile[0] // 2, 32)
    config = SimtConfig(tile, warp_tile, copied=1, unroll=8)
    gemm = Gemm(4096, 4096, 4096, F32, b=COL)
    theirs = counted(build_of(gemm, PlanConfig(config)))
    stores = [one for one in theirs.step.accesses if one.space == "shared" and one.kind == "store"]
    assert len(stores) == 2 and all(one.wavefronts == one.requests for one in stores), stores
    setting = Setting(np.array([theirs.blocks]), np.array([int(theirs.steps)]))
    ours = work_of("simt", Columns.of([config], config.columns), gemm, setting)
    told = {(one.name, one.kind, one.space): one for one in ours.step.accesses if np.max(one.requests) > 0}
    for one in theirs.step.accesses:
        mine = told[one.name, one.kind, one.space]
        assert float(np.max(mine.wavefronts)) == one.wavefronts or one.wavefronts == 0, (config, one)
    small = Gemm(70, 101, 45, F32, b=COL)
    operands = make_operands(small)
    found, run = run_on_simulator(build_of(small, PlanConfig(config)), operands)
    assert check(operands, found).ok and not run.findings


def test_the_space_has_tiles_of_any_number_of_warps() -> None:
    tiles = simt_tiles()
    assert {48, 80, 96, 160, 192, 224} <= set(tiles.m.tolist()) and {96, 160, 192, 224} <= set(tiles.n.tolist())
    sizes = set(zip(tiles.m.tolist(), tiles.n.tolist(), strict=True))
    assert {(80, 192), (112, 128), (128, 80), (256, 112)} <= sizes
    legal = space("simt", Gemm(512, 512, 512, F32, b=COL))
    assert set(zip(legal.a_transport.tolist(), legal.b_transport.tolist(), strict=True)) == {
        ("registers", "registers"),
        ("registers", "cp_async"),
        ("cp_async", "cp_async"),
    }


@pytest.mark.parametrize(("sizes", "most"), [((512, 512, 512), 800), ((511, 513, 515), 3000)])
def test_the_choice_looks_at_hundreds_of_simt_kernels(sizes: tuple[int, int, int], most: int) -> None:
    """As many as a choice has time to price; more where rows are unaligned."""
    assert 300 < len(simt_core(Gemm(*sizes, F32, b=COL))) < most


@pytest.mark.parametrize(
    "sizes", [(768, 2880, 4096), (33, 2560, 10240), (577, 640, 640), (301, 777, 33), (4481, 891, 14), (64, 64, 64)]
)
@pytest.mark.parametrize("b", [ROW, COL])
def test_what_is_left_out_before_it_is_priced_is_not_the_best(
    sizes: tuple[int, int, int], b: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = Gemm(*sizes, F32, b=b)
    alignment = alignment_of_rows(gemm)
    few = ranked(gemm, H200, alignment)
    monkeypatch.setattr("tilewright.planning.cost.promising._MOST_CLOCKS", 1e9)
    every = ranked(gemm, H200, alignment)
    assert few.priced < 20_000 and few.priced <= every.priced
    assert few[0] == every[0]


@pytest.mark.parametrize("sizes", [(101, 131, 53), (96, 128, 48), (40, 72, 16), (40, 72, 5)])
@pytest.mark.parametrize(("a", "b"), [(ROW, COL), (ROW, ROW), (COL, COL)])
def test_copies_between_k_steps_give_the_same_bits(sizes: tuple[int, int, int], a: Order, b: Order) -> None:
    """Also where there are fewer tiles of k than copies run ahead; with every detector on."""
    gemm = Gemm(*sizes, F32, a=a, b=b, beta=0.5)
    operands = make_operands(gemm)
    for config in (SimtConfig((48, 64, 16), (16, 32)), SimtConfig((96, 128, 8), (48, 64), unroll=8, copied=1)):
        expected, _ = run_on_simulator(build(gemm, config.schedule(gemm)), operands)
        spread = replace(config, interleaved_copies=True)
        ahead = replace(spread, double_buffered_fragments=True)
        for one in (spread, ahead, replace(ahead, interleaved_copies=False)):
            found, run = run_on_simulator(build(gemm, one.schedule(gemm)), operands)
            assert not run.findings and np.array_equal(found, expected), one


def test_copies_between_k_steps_stand_behind_no_branch() -> None:
    gemm = Gemm(512, 512, 512, F32, b=COL)
    spread = SimtConfig((128, 128, 16), (64, 64), interleaved_copies=True)
    text = build_of(gemm, PlanConfig(spread)).cuda
    loop = between("for (int k_tile = 0", "__syncthreads();  // the next tiles", text)
    assert "if (k_in % 4 == 0)" in loop and "if (k_tile" not in loop and "k_tile + 2 < K / 16" in loop
    assert "of which 8 of 16 are unrolled" in " ".join(replace(spread, unroll=8).reasons_against(gemm))
    ahead = SimtConfig((128, 128, 16), (64, 64), unroll=8, double_buffered_fragments=True)
    assert "fragments are loaded a k step ahead" in " ".join(ahead.reasons_against(gemm))


@pytest.mark.parametrize("unroll", [8, 16])
def test_what_is_loaded_into_registers_stays_in_front_of_the_products(unroll: int) -> None:
    gemm = Gemm(512, 512, 512, F32, b=COL)
    ahead = SimtConfig((128, 128, 16), (64, 64), unroll=unroll)
    loop = between("for (int k_tile = 0", "__syncthreads();  // the next tiles", build_of(gemm, PlanConfig(ahead)).cuda)
    inner = "for (int k_in" if unroll == 16 else "for (int k_step"
    loads, use = between("if (k_tile + 1 <", "__syncwarp();", loop), loop[loop.index("__syncwarp();") :]
    assert loads.count("as_float4(A[") == loads.count("as_float4(B[") == 1 and "[k_tile_stage]" not in loads
    assert loop.count("__syncwarp();") == 1 and "A[(" not in use and inner in use and "A_tile[k_tile_fill]" in use


@pytest.mark.parametrize(
    "other",
    [BY_ASYNC | {"stages": 4}, {"interleaved_copies": True}, {"dependent_launch": True}, {"tile": (128, 256, 16)}],
    ids=["cp.async", "between k steps", "not constant", "eight warps of 64 x 64"],
)
def test_what_no_compiler_moves_is_not_held(other: dict[str, Any]) -> None:
    config = replace(SimtConfig((128, 128, 16), (64, 64)), **other)
    assert "__syncwarp" not in build_of(Gemm(512, 512, 512, F32, b=COL), PlanConfig(config)).cuda


def between(first: str, last: str, text: str) -> str:
    """What stands from one string on to before the next other."""
    begin = text.index(first)
    return text[begin : text.index(last, begin)]


@pytest.mark.parametrize(("a", "b"), [(ROW, COL), (ROW, ROW), (COL, ROW)], ids=["NT", "NN", "TN"])
@pytest.mark.parametrize("columns", [256, 255])
@pytest.mark.parametrize("more", [{}, {"stages": 4, **BY_ASYNC}, {"cluster_k": 4}, {"store": "shared"}], ids=str)
def test_shared_memory_is_known_to_the_byte(more: dict[str, Any], columns: int, a: Order, b: Order) -> None:
    gemm = Gemm(128, columns, 256, F32, a=a, b=b)
    config = SimtConfig((96, 128, 16), (48, 64), unroll=16, **more)
    if more.get("store") == "shared" and columns == 256:
        config = replace(config, store="per_thread")  # rows of C are aligned
    assert int(shared_bytes(config, gemm)) == build_of(gemm, PlanConfig(config)).kernel.shared_bytes


@pytest.mark.parametrize(
    ("changed", "bounds"),
    [
        ({}, "128, 2"),
        ({"interleaved_copies": True}, "128"),  # loads are all moved ahead where there is room for them
        ({"tile": (96, 64, 16), "warp_tile": (48, 32)}, "128"),  # more than two have room
        ({"tile": (96, 256, 16)}, "256"),  # one has, whatever is promised
        ({"tile": (96, 256, 16), "stages": 6, **BY_ASYNC}, "256, 1"),  # in shared memory as well
    ],
)
def test_the_compiler_is_told_of_few_blocks_that_share_the_registers_of_an_sm(
    changed: dict[str, Any], bounds: str
) -> None:
    config = replace(SimtConfig((96, 128, 16), (48, 64)), **changed)
    text = build(gemm := Gemm(96, 256, 32, F32, a=COL), config.schedule(gemm)).cuda
    assert f"__launch_bounds__({bounds})" in text


@pytest.mark.parametrize(("columns", "narrow"), [(8, 0), (9, 16), (16, 16), (17, 32), (33, 48), (48, 48), (49, 0)])
def test_few_columns_have_tiles_as_narrow(columns: int, narrow: int) -> None:
    """Of warps with eight rows of lanes, beside the tiles of all problems."""
    few, many = (simt_core(Gemm(4000, n, 4000, F32, b=COL)) for n in (columns, 4000))
    added = few[few.lanes_m == 8]
    added = added[added.n < 64]
    assert set(added.n.tolist()) == ({narrow} if narrow else set())
    assert len(few) - len(added) == len(many)


@pytest.mark.parametrize(("columns", "warp"), [(16, (64, 16)), (32, (32, 32)), (48, (64, 16))])
def test_narrow_tiles_sum_as_others(columns: int, warp: tuple[int, int]) -> None:
    gemm = Gemm(131, columns - 3, 53, F32)
    operands = make_operands(gemm)
    narrow = SimtConfig((128, columns, 16), warp, lanes_m=8, stages=3, copied=1, columns_together=1, **BY_ASYNC)  # type: ignore[arg-type]
    wide = SimtConfig((64, 64, 16), (32, 32))
    expected, _ = run_on_simulator(build(gemm, wide.schedule(gemm)), operands)
    found, run = run_on_simulator(build(gemm, narrow.schedule(gemm)), operands)
    assert not run.findings and np.array_equal(found, expected)


def test_a_ring_of_few_accumulators_is_short() -> None:
    core = simt_core(Gemm(4000, 4000, 4000, F32, b=COL))
    by_async = core[(core.a_transport == "cp_async") & (core.k == 16)]
    short = by_async.warp_m * by_async.warp_n == 32 * 32
    assert set(by_async.stages[short].tolist()) == {3} and set(by_async.stages[~short].tolist()) == {4}
