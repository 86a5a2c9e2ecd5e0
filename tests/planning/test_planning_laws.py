"""Laws of planning, each held against the same thing written out for one kernel, at sizes that decide."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from math import ceil, inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import alignment_of, asked, paper_dispatcher
from test_boundaries import GPUS, made_up_network
from test_candidates import GATED

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F16, F32, TF32
from tilewright.errors import LaunchError
from tilewright.ir.kernel import Variant
from tilewright.kernels.columns import Columns
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.reduce import ReduceConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.lowering.variants import MAX_INDEX
from tilewright.model.time import DRAM_SHARE
from tilewright.planning import candidates, clusters, coded, coded_wgmma, folding, gated, ragged, sharing, skinny
from tilewright.planning.account import account_of
from tilewright.planning.assembly import Request, part_length, plan_of
from tilewright.planning.cost import (
    block_clocks,
    exchange,
    first_cut,
    gemv,
    groups,
    launches,
    narrow_copies,
    plans,
    promising,
    warp_terms,
)
from tilewright.planning.cost import coded as cost_of_coded
from tilewright.planning.estimates import is_ruled_out, is_shared, needs_workspace, registers_of
from tilewright.planning.kernels import Shape, variant_of, weakest
from tilewright.planning.on_paper import PaperKernels, order_of_plan
from tilewright.planning.packing import Alignment, Groups, Packing, Shards, fitted, padded, padded_bytes, whole_pieces
from tilewright.planning.ranking import Priced, Ranking
from tilewright.problem import Gemm, Order
from tilewright.problem.coded_product import CodedProduct, CodedWeight
from tilewright.problem.epilogue import Epilogue
from tilewright.problem.functions import Operation
from tilewright.problem.weight_codes import E4M3_CODES, INT4
from tilewright.units import ceil_div, round_up
from tilewright.winners.plan_config import PlanConfig

H200, A100 = device("H200"), device("A100 SXM 80 GB")
SIMT = SimtConfig((64, 64, 16), (32, 32), unroll=8)
MMA = MmaConfig((64, 64, 32), (32, 32), stages=3)
WGMMA = WgmmaConfig((128, 64, 64), consumers=1, stages=3)
SMALL = st.integers(1, 40)


def columns(*kernels: Any) -> Columns:
    return Columns.of(kernels, kernels[0].columns)


# -- sharing out k -----------------------------------------------------------------------------------------------------


@given(tiles=SMALL, k_tiles=SMALL, slots=SMALL, count=st.integers(1, 3), parts=st.sampled_from((1, 2, 5)))
def test_blocks_of_split_k_take_all_of_k_and_no_more_than_a_step_too_much(
    tiles: int, k_tiles: int, slots: int, count: int, parts: int
) -> None:
    blocks, steps = exchange.shared_out(columns(replace(WGMMA, split_k=parts)), tiles, k_tiles, slots, count)
    assert blocks.tolist() == [tiles * parts * count]
    assert (parts * steps >= k_tiles).all() and (parts * (steps - 1) < k_tiles).all()


@given(tiles=SMALL, k_tiles=SMALL, slots=SMALL)
def test_blocks_of_stream_k_are_no_more_than_run_at_once_or_are_worth_it(tiles: int, k_tiles: int, slots: int) -> None:
    streams = columns(replace(SIMT, persistent=True, stream_k=True), SIMT)
    (blocks, whole), (steps, plain) = exchange.shared_out(streams, tiles, k_tiles, slots)
    assert (whole, plain) == (tiles, k_tiles)
    assert blocks == min(slots, max(tiles, tiles * k_tiles // 4))
    assert steps == ceil(tiles * k_tiles / blocks)


def test_what_an_exchange_of_sums_costs() -> None:
    """1000 clocks and what a block sends to others; of stream-K a tile that is written and read by each block, and once
    more for each block between the first and the last of a tile, at 64 bytes a clock."""
    alone, two, eight = (replace(WGMMA, persistent=False, cluster_k=size) for size in (1, 2, 8))
    found = exchange.exchange_clocks(columns(alone, two, eight))
    sent = 128 * 64 * 4
    assert found[0] == 0
    assert found[1] == pytest.approx(1000 + sent / 2 / 14, rel=0.2) and found[2] > found[1]
    streams = columns(replace(SIMT, persistent=True, stream_k=True), SIMT)
    for per_sm in (1, 3):
        assert exchange.exchange_clocks(streams, per_sm).tolist() == [1000 + per_sm * 8 * 64 * 64 / 24, 0]
        in_turn = exchange.exchange_clocks(streams, per_sm, 3) - exchange.exchange_clocks(streams, per_sm)
        assert in_turn == pytest.approx([3 * (1000 + 8 * 64 * 64 / 64), 0])


@given(most=st.lists(st.integers(0, 130), min_size=1, max_size=6))
def test_each_kernel_stands_alone_and_with_every_count_of_parts_up_to_its_most(most: list[int]) -> None:
    c = columns(*[replace(MMA, raster_rows=1 + at) for at in range(len(most))])
    found = sharing.with_split_k("mma", c, np.array(most), Gemm(64, 64, 4096, BF16), H200)
    expected = [
        (1 + at, int(parts))
        for at, limit in enumerate(most)
        for parts in sharing._SPLIT_K.tolist()
        if parts == 1 or parts <= limit
    ]
    assert list(zip(found.raster_rows.tolist(), found.split_k.tolist(), strict=True)) == expected


@given(tiles=st.integers(1, 132), most=st.integers(0, 400))
def test_parts_of_fma_kernels_fill_the_sms(tiles: int, most: int) -> None:
    """No more parts leave the busiest SM as many blocks, or they are a power of two."""
    gemm = Gemm(64 * tiles, 64, 1 << 20)
    parts = sharing.with_split_k("simt", columns(SIMT), np.array([most]), gemm, H200).split_k.tolist()
    assert parts[0] == 1 and parts == sorted(set(parts)) and max(parts[1:], default=0) <= most
    for count in parts[1:]:
        busiest = ceil_div(tiles * count, 132)
        assert tiles * (count + 1) > 132 * busiest or count & (count - 1) == 0


@pytest.mark.parametrize(("tiles", "parts"), [(12, {11, 22, 33}), (3, {44, 88}), (105, {1, 2, 3, 5, 6, 7, 8})])
def test_few_tiles_are_split_in_as_many_parts_as_sms_have_room_for(tiles: int, parts: set[int]) -> None:
    gemm = Gemm(64 * tiles, 64, 1 << 20)
    found = sharing.with_split_k("simt", columns(SIMT), np.array([140]), gemm, H200).split_k.tolist()
    assert parts <= {*found}


@pytest.mark.parametrize("kind", ["simt", "mma", "wgmma"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 127), (64, 64, 128), (128, 256, 4096), (2048, 2048, 1024), (1, 1, 99999)]
)
def test_parts_are_as_many_as_sms_have_room_for_and_sums_are_worth(kind: str, m: int, n: int, k: int) -> None:
    kernel: Any = {"simt": SIMT, "mma": MMA, "wgmma": replace(WGMMA, persistent=False)}[kind]
    gemm = Gemm(m, n, k, F32 if kind == "simt" else BF16)
    (found,) = sharing.most_parts(kind, columns(kernel), gemm, H200)
    tiles = ceil_div(m, kernel.m) * ceil_div(n, kernel.n)
    per_sm = max(1, int(block_clocks.blocks_per_sm(kind, columns(kernel), gemm, H200)[0]))
    least = {"simt": 4, "mma": 8, "wgmma": 8}[kind]
    waves = {"simt": 8, "mma": 2, "wgmma": 2}[kind]
    assert max(1, found) == max(1, min(waves * 132 * per_sm // tiles, k // (least * kernel.k)))


def test_persistent_kernels_and_those_that_stage_c_share_no_sum() -> None:
    gemm = Gemm(128, 64, 65536, BF16)
    table = columns(WGMMA, replace(WGMMA, persistent=False), replace(WGMMA, persistent=False, subtile=32))
    assert (sharing.most_parts("wgmma", table, gemm, H200) > 0).tolist() == [False, True, False]


@pytest.mark.parametrize(("depth", "tiles", "streams"), [(255, 1, 0), (256, 1, 1), (256, 8, 1), (256, 4096, 0)])
def test_stream_k_is_for_long_sums_of_few_waves(depth: int, tiles: int, streams: int) -> None:
    gemm = Gemm(64, 64 * tiles, depth, F32)
    found = sharing.streaming_k(columns(replace(SIMT, lanes_m=8)), gemm, H200)
    assert len(found) <= streams
    assert [int((one.stream_k > 0).all()) for one in found] == [1] * len(found)


@given(k=st.integers(1, 10_000), parts=st.integers(1, 40), depth=st.sampled_from((16, 32, 64)))
def test_parts_are_whole_steps_that_hold_all_of_k(k: int, parts: int, depth: int) -> None:
    length = part_length(Gemm(8, 8, k), PlanConfig(SIMT.with_split_k(parts)), depth)
    assert length % depth == 0 and length * parts >= k and length < k / parts + depth + 1


# -- what moves bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [H200, A100], ids=lambda spec: spec.name)
def test_launches_that_move_bytes_take_a_start_and_their_bytes(spec: Any) -> None:
    start = 3e-6 - (1e-6 if spec is H200 else 0.0)
    rate = DRAM_SHARE * spec.dram_gb_per_s * 1e9
    assert launches.launch_seconds(spec) == pytest.approx(start)
    for size, starts in ((0, 1), (10**6, 1), (10**9, 2), (10**6, 0)):
        assert launches.moving(size, spec, starts) == pytest.approx(starts * start + size / rate)
    assert launches.around_us(10**6, spec) == pytest.approx(1e6 * (start + 1e6 / rate) + 1.0)
    assert launches.around_us(10**6, spec, packs=True) == pytest.approx(1e6 * (start + 1e6 / rate) + 2.5)
    gemm = Gemm(300, 200, 100, BF16, out=F16)
    assert launches.reduction_seconds(gemm, gemm, spec, 3) == pytest.approx(start + (3 * 4 + 2) * 300 * 200 / rate)
    c = columns(SIMT, SIMT.with_split_k(3))
    sizes = launches.Sizes.of(gemm, c, Packing())
    assert launches.finishing_seconds(c, sizes, gemm, spec).tolist() == pytest.approx(
        [0.0, start + 14 * 300 * 200 / rate]
    )
    early = -0.6e-6 if spec is H200 else 2.5e-6
    for packed, elements in (("A", 300 * 100), ("B", 100 * 200), ("AB", 300 * 100 + 100 * 200)):
        found = launches.packing_seconds("simt", c, gemm, spec, Packing(frozenset(packed)), 5)
        assert found == pytest.approx(start + 2 * 5 * 2 * elements / rate + early)
    padded_ = Packing(frozenset("AB"), tile_multiples=True)
    (found, _) = launches.packing_seconds("simt", c, gemm, spec, padded_)
    assert found == pytest.approx(start + 2 * 2 * (320 * 112 + 112 * 256) / rate + early)


def test_sizes_of_a_padded_problem_are_multiples_of_each_tile() -> None:
    gemm, c = Gemm(65, 64, 17, F32, beta=0.5), columns(SIMT, replace(SIMT, tile=(128, 64, 16), warp_tile=(64, 32)))
    padded_ = launches.Sizes.of(gemm, c, Packing(tile_multiples=True))
    assert [np.asarray(one).tolist() for one in (padded_.m, padded_.n, padded_.k)] == [[128, 128], [64, 64], [32, 32]]
    plain = launches.Sizes.of(gemm, c, Packing())
    assert (plain.m, plain.n, plain.k) == (65, 64, 17)
    assert plain.tiles(c).tolist() == [2, 1]
    assert plain.compulsory_bytes(gemm) == 4 * (65 * 17 + 17 * 64) + 2 * 4 * 65 * 64
    assert padded_.at(np.array([1])) == (padded_.m[[1]], padded_.n[[1]], padded_.k[[1]])


@pytest.mark.parametrize("n", [64, 65, 65_535, 65_536])
@pytest.mark.parametrize("b", [Order.ROW, Order.COL])
@pytest.mark.parametrize("stores", [4, 16])
def test_by_how_much_longer_simt_kernels_take(n: int, b: Order, stores: int) -> None:
    gemm = Gemm(64, n, 16, F32, b=b)
    sizes = launches.Sizes.of(gemm, columns(SIMT), Packing())
    (found,) = np.atleast_1d(warp_terms._simt_share(columns(SIMT), gemm, sizes, np.array([stores])))
    far = b is Order.COL or n * 4 >= 256 << 10
    edges = 1.1 if stores < 16 else 1.0 if n % 64 == 0 else 1.035
    assert found == pytest.approx((1.03 if far else 1.0) * edges - 1)


def test_copies_of_a_thread_into_a_stage() -> None:
    """Of 64 x 64 x 32 with four warps: 32 bytes of k of each row and column, by as many bytes as rows allow."""
    gemm = Gemm(1, 1, 1, BF16)
    for a, b, packed in ((16, 16, ""), (2, 16, ""), (2, 4, "A"), (8, 2, "AB")):
        around = launches.Around(Packing(frozenset(packed)), a, b, 16, 1)
        wide_a, wide_b = (16 if name in packed else own for name, own in (("A", a), ("B", b)))
        expected = (64 / wide_a + 64 / wide_b) * 32 * 2 / (32 * 4)
        assert sum(narrow_copies.copies_of_a_thread(columns(MMA), gemm, around)).tolist() == [expected]
        assert around.loads_bytes == min(wide_a, wide_b)
        assert around.stores_bytes == (16, 16)
    assert launches.Around(Packing(), 16, 16, 4, 1).stores_bytes == (4, 16)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 511, 512, 513, 1000])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_rows_of_a_copy_begin_at_16_bytes_and_long_ones_at_lines(length: int, dtype: Any) -> None:
    each = (128 if length * dtype.bytes >= 1024 else 16) // dtype.bytes
    assert padded(length, dtype) == ceil(length / each) * each
    assert padded_bytes(3, length, dtype) == ceil(3 * padded(length, dtype) * dtype.bytes / 256) * 256
    assert whole_pieces(length, dtype) == ceil(length / (16 // dtype.bytes)) * (16 // dtype.bytes)
    assert whole_pieces(0, dtype) == 16 // dtype.bytes


def test_a_measured_plan_is_packed_as_the_problem_needs() -> None:
    measured = PlanConfig(WGMMA, frozenset("A"), frozenset())
    assert fitted(measured, Gemm(8, 8, 8, BF16), Alignment(16, 16, 16)).packed == frozenset()
    assert fitted(measured, Gemm(8, 8, 8, BF16), Alignment(8, 16, 16)).packed == frozenset("A")
    assert fitted(measured, Gemm(8, 8, 8, BF16), Alignment(16, 8, 16)).packed == frozenset("B")
    simt = PlanConfig(SIMT, frozenset("B"), frozenset("B"))
    turned = fitted(simt, Gemm(8, 8, 8, F32, b=Order.COL), Alignment(16, 16, 16))
    assert (turned.packed, turned.transposed) == (frozenset("B"), frozenset("B"))
    plain = fitted(simt, Gemm(8, 8, 8, F32), Alignment(16, 16, 16))
    assert (plain.packed, plain.transposed) == (frozenset(), frozenset())
    whole = fitted(replace(simt, tile_multiples=True), Gemm(8, 8, 8, F32, a=Order.COL), Alignment(4, 4, 4))
    assert whole.tile_multiples and whole.transposed == frozenset()
    held = PlanConfig(replace(WGMMA, tile=(128, 64, 32), left_in_registers=True), frozenset("B"))
    tf32 = Gemm(64, 64, 64, F32, product=TF32, a=Order.COL, b=Order.ROW)
    kept, moved = (fitted(held, tf32, Alignment(size, 16, 16)) for size in (16, 8))
    assert kept.packed == frozenset("B") and getattr(kept.kernel, "left_in_registers", False)
    assert moved.packed == frozenset("AB") and not getattr(moved.kernel, "left_in_registers", True)


# -- tables ------------------------------------------------------------------------------------------------------------


@given(size=st.integers(0, 5000), tile=st.integers(1, 512))
def test_tiles_along_a_side(size: int, tile: int) -> None:
    assert promising.tiles_along(size, np.array([tile])).tolist() == [ceil(size / tile)]


@given(sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=12))
def test_the_next_smaller_size_of_its_kind_in_boxes_as_wide(sizes: list[tuple[int, int, int]]) -> None:
    found = candidates._next_smaller(*(np.array(column) for column in zip(*sizes, strict=True)))
    for (size, kind, boxes), least in zip(sizes, found.tolist(), strict=True):
        smaller = [(other, more) for other, its, more in sizes if its == kind and other < size]
        alike = [other for other, more in smaller if more <= boxes or 1.5 * other < size]
        assert least == max(alike, default=0)


@pytest.mark.parametrize(("b", "wider"), [(Order.ROW, True), (Order.COL, False)])
def test_a_side_may_have_a_wider_tile_for_the_sake_of_its_boxes(b: Order, wider: bool) -> None:
    """Of 136 columns that run along n a tile of 144 comes in boxes of 16 columns, one of 160 in boxes of 32, one of 192
    in boxes of 64: 53 x 872 x 136 x 1456 takes 50.9 us with 160 and 59.3 with 112 x 192 under swap-AB (H200)."""
    c = candidates.table_of("wgmma", Gemm(872, 136, 1456, BF16, b=b, out=BF16), H200, 53)
    assert ({160, 192} <= set(c.n[c.swap_ab == 0].tolist())) is wider


def test_tiles_are_visited_in_rows_where_b_does_not_stay_and_a_row_is_longer_than_a_wave() -> None:
    small = replace(H200, sm_count=10, l2_bytes=64 * 16 * 4 * 11)
    for n, k, expected in ((64 * 11, 16, 1), (64 * 11, 17, 4), (64 * 10, 18, 1), (64 * 11 + 1, 16, 4)):
        gemm = Gemm(64 * 4, n, k, F32)
        found = candidates._raster_rows(gemm, small, columns(SIMT)) * np.ones(1)
        assert found.tolist() == [expected], (n, k)
    assert candidates._raster_rows(Gemm(64 * 17, 64 * 11, 17, F32), small, columns(SIMT)).tolist() == [16]


@pytest.mark.parametrize(("m", "deep"), [(8, 0), (9, 1), (16, 1), (17, 0)])
@pytest.mark.parametrize("b", [Order.ROW, Order.COL])
def test_some_rows_have_a_kernel_whose_copies_run_far_ahead(m: int, deep: int, b: Order) -> None:
    """On GPUs that nothing was measured on: where rows nearly fill its tile, of f32 whose rows of B run along n."""
    table = candidates.table_of("simt", Gemm(m, 512, 512, F32, b=b), A100)
    assert int((table.stages > 2).sum()) == (deep if b is Order.ROW else 0)
    half = candidates.table_of("simt", Gemm(m, 512, 512, F16, b=b), device("T4"))
    assert (half.stages == 2).all()
    long = table.unroll == 16
    assert set(zip(table.m[long].tolist(), table.n[long].tolist(), strict=True)) == {(128, 256), (256, 128)}


@pytest.mark.parametrize("length", [1, 32, 64, 65, 96, 97, 4096])
def test_a_ring_has_one_stage_more_than_a_sum_fills_at_most(length: int) -> None:
    c = columns(*(replace(MMA, stages=stages) for stages in (2, 3, 4, 6)))
    most = max(2, 1 + ceil(length / 32))
    assert candidates._filled(c, length).stages.tolist() == [min(stages, most) for stages in (2, 3, 4, 6)]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_clusters_and_ping_pong_of_a_problem_have_tiles_for_all(rows: int) -> None:
    """A cluster is no larger than the tiles, ping-pong has more of them than SMs, sides fill their tile."""
    gemm = Gemm(128 * rows, 4096, 256, BF16, b=Order.COL, out=BF16)
    alone = candidates.table_of("wgmma", gemm, H200)
    assert (alone.cluster_m * alone.cluster_n == 1).all()
    c = clusters.in_clusters(alone, gemm, H200)
    tiles = np.ceil(gemm.m / c.m) * np.ceil(gemm.n / c.n)
    assert (c.cluster_m <= np.ceil(gemm.m / c.m)).all() and (c.cluster_n <= np.ceil(gemm.n / c.n)).all()
    assert (c.cluster_m == np.ceil(gemm.m / c.m)).any()
    assert (tiles[c.ping_pong > 0] > 132).all() and (c.tiles == tiles).all()
    both = (c.cluster_m > 1) & (c.cluster_n > 1)
    assert set(c.cluster_m[both] * c.cluster_n[both]) == {4, 8} and not c.persistent[both].any()
    assert (tiles[both] <= 132).all() and both[tiles == 128].any()
    narrow = candidates.table_of("wgmma", replace(gemm, m=64), H200)
    assert (narrow.least_m < 64).all() and narrow.m.max() >= 64


@pytest.mark.parametrize(("count", "kept"), [(1, [1, 1]), (66, [1, 1]), (67, [1, 0])])
def test_blocks_of_a_batch_with_one_tile_each_are_no_more_than_sms(count: int, kept: list[int]) -> None:
    c = columns(WGMMA, replace(WGMMA, persistent=False))
    c = c.with_columns(tiles=np.array([2, 2]), per_sm=np.array([1, 1]), k_tile_work=np.array([1.0, 1.0]))
    work = first_cut.load_of(c, Gemm(256, 64, 64, BF16), H200, count).work
    assert np.isfinite(work).tolist() == kept


@pytest.mark.parametrize("m", [96, 97, 128])
@pytest.mark.parametrize("k", [32, 33])
def test_copies_between_k_steps_are_for_large_threads_whose_k_has_no_edge(m: int, k: int) -> None:
    large = SimtConfig((96, 128, 16), (48, 64), unroll=16)
    small, long = SimtConfig((64, 128, 16), (32, 64), unroll=16), SimtConfig((96, 128, 16), (48, 64), unroll=8)
    gemm = Gemm(m, 128, k, F32)
    c = candidates.with_simt_options(columns(large, small, long), gemm, H200, 1)
    assert c.interleaved_copies.tolist() == [int(k == 32), 0, 0]
    streamed = replace(large, persistent=True, stream_k=True)
    assert not candidates.with_simt_options(columns(streamed), gemm, H200, 1).interleaved_copies.any()


@pytest.mark.parametrize(("tiles", "parts", "early"), [(33, 1, 1), (34, 1, 0), (1, 2, 0)])
def test_simt_kernels_of_few_blocks_start_under_the_one_before(tiles: int, parts: int, early: int) -> None:
    c = columns(SIMT.with_split_k(parts))
    found = candidates.with_simt_options(c, Gemm(64, 64 * tiles, 64, F32), H200, 1)
    assert found.dependent_launch.tolist() == [early]


# -- one kernel for a class of problems --------------------------------------------------------------------------------


def test_offsets_fit_31_bits_up_to_the_last_one() -> None:
    shape = Shape({"m": 64, "n": 64, "k": 16}, reads_vectors=True)
    config = PlanConfig(SIMT)
    k = (MAX_INDEX - 64 - 64) // (64 + 64)
    for more, near in ((0, True), (64, False)):
        gemm = Gemm(64, 64, 16, F32, a=Order.ROW, lda=k + more)
        reach = (64 + 64) * gemm.lda + 16 + 16
        assert variant_of(gemm, Alignment(16, 16, 16), shape, config).near == (reach <= MAX_INDEX) == near
    split = replace(config, kernel=SIMT.with_split_k(300))
    gemm = Gemm(1 << 14, 1 << 9, 16, F32)
    assert variant_of(gemm, Alignment(16, 16, 16), shape, config).near
    assert not variant_of(gemm, Alignment(16, 16, 16), shape, split).near


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 16), (65, 64, 16), (64, 65, 16), (64, 64, 17), (128, 64, 48)])
def test_sizes_are_exact_together_or_not_at_all(m: int, n: int, k: int) -> None:
    shape = Shape({"m": 64, "n": 64, "k": 16}, reads_vectors=True)
    found = variant_of(Gemm(m, n, k, F32), Alignment(4, 8, 16), shape, PlanConfig(SIMT))
    assert found.exact == (frozenset("mnk") if (m % 64, n % 64, k % 16) == (0, 0, 0) else frozenset())


VARIANTS = st.builds(
    Variant,
    exact=st.sampled_from((frozenset(), frozenset("mnk"))),
    alignment_bytes=st.sampled_from((1, 4, 8, 16)),
    near=st.booleans(),
    result_bytes=st.sampled_from((1, 4, 8, 16)),
    whole=st.booleans(),
    overwrites=st.booleans(),
    b_bytes=st.sampled_from((0, 1, 4, 8, 16)),
)


@given(st.lists(VARIANTS, min_size=1, max_size=4))
def test_the_weakest_of_some_variants_is_true_of_each(variants: list[Variant]) -> None:
    found = weakest(variants)
    for one in variants:
        assert found.exact <= one.exact and found.near <= one.near and found.overwrites <= one.overwrites
        assert all(found.aligned_bytes(name) <= one.aligned_bytes(name) for name in ("A", "B", "C"))
        assert not found.whole or one.whole or one.exact
    assert weakest([variants[0]]).near == variants[0].near
    if all(one == variants[0] for one in variants):
        assert (found.exact, found.near, found.overwrites) == (one.exact, one.near, one.overwrites)


def test_kernels_that_agree_in_what_takes_registers_spill_alike() -> None:
    alike = {"dependent_launch": False, "raster_rows": 7, "stages": 2, "subtile_stages": 1, "evict_first": "A"}
    for name, value in alike.items():
        assert registers_of(PlanConfig(replace(WGMMA, **{name: value}))) == registers_of(PlanConfig(WGMMA)), name
    others = {"swap_ab": True, "persistent": False, "promote_every": 128, "subtile": 32, "tile": (128, 128, 64)}
    for name, value in others.items():
        assert registers_of(PlanConfig(replace(WGMMA, **{name: value}))) != registers_of(PlanConfig(WGMMA)), name
    told = {one.name for one in fields(WgmmaConfig)}
    assert set(alike) | set(others) <= told
    simt = PlanConfig(SIMT)
    assert registers_of(simt) == simt != registers_of(replace(simt, kernel=replace(SIMT, raster_rows=2)))


def test_which_plans_need_a_workspace() -> None:
    for kernel in (SIMT, MMA, WGMMA):
        assert not needs_workspace(PlanConfig(kernel))
        assert needs_workspace(PlanConfig(kernel.with_split_k(2))) and needs_workspace(
            PlanConfig(kernel, frozenset("A"))
        )
    assert needs_workspace(PlanConfig(replace(SIMT, persistent=True, stream_k=True)))
    assert not needs_workspace(PlanConfig(GemvConfig())) and needs_workspace(PlanConfig(GemvConfig(split_k=2)))
    gemm = Gemm(64, 64, 64, BF16)
    without = Request(gemm, Alignment(16, 16, 16), without_workspace=True)
    assert is_ruled_out(without, PlanConfig(SIMT.with_split_k(2))) and not is_ruled_out(without, PlanConfig(SIMT))
    assert not is_ruled_out(replace(without, without_workspace=False), PlanConfig(SIMT.with_split_k(2)))


@pytest.mark.parametrize("rows", [(256, 256), (256, 200), (200, 256), (128, 0), (64, 192)])
def test_which_products_ranks_can_share(rows: tuple[int, ...]) -> None:
    arriving, summed = Shards(rows, 0), Shards(rows, 0, summed=True)
    starts = [start for start in arriving.starts if start < sum(rows)]
    kernels = {
        "plain": PlanConfig(WGMMA),
        "two consumers": PlanConfig(replace(WGMMA, consumers=2)),
        "ping-pong": PlanConfig(replace(WGMMA, tile=(128, 128, 64), consumers=2, ping_pong=True)),
        "not persistent": PlanConfig(replace(WGMMA, persistent=False)),
        "cluster": PlanConfig(replace(WGMMA, persistent=False, cluster_k=2)),
        "two rows": PlanConfig(replace(WGMMA, cluster=(2, 1))),
        "split": PlanConfig(replace(WGMMA, persistent=False).with_split_k(2)),
        "A packed": PlanConfig(WGMMA, frozenset("A")),
        "B packed": PlanConfig(WGMMA, frozenset("B")),
        "mma": PlanConfig(MMA),
    }
    arrive = {"plain", "two consumers", "ping-pong", "two rows", "B packed"}
    for name, config in kernels.items():
        assert is_shared(arriving, config) == (name in arrive), name
        tile_rows = 256 if name == "two rows" else 128
        whole = all(start % tile_rows == 0 for start in starts)
        assert is_shared(summed, config) == (whole and name in arrive | {"A packed"}), name
        request = Request(Gemm(sum(rows), 64, 64, BF16), Alignment(16, 16, 16), shards=arriving)
        assert is_ruled_out(request, config) == (name not in arrive)
    assert arriving.starts == tuple(sum(rows[:at]) for at in range(len(rows) + 1))
    last = replace(summed, rank=len(rows) - 1)
    assert last.numbers == (len(rows), len(rows) - 1, max(rows))
    assert arriving.numbers == (len(rows), 0)


def test_a_workspace_of_8_gib_is_the_largest() -> None:
    kernels = PaperKernels(H200)
    most = 1 << 31
    for n, fits in ((most // 2048, True), (most // 2048 + 4, False)):
        gemm = Gemm(1024, n, 64, F32)
        request = Request(gemm, Alignment(16, 16, 16))
        if fits:
            assert plan_of(kernels, request, PlanConfig(SIMT.with_split_k(2))).scratch_bytes == 8 << 30
        else:
            with pytest.raises(LaunchError, match=r"would need a workspace of 8\.0 GiB"):
                plan_of(kernels, request, PlanConfig(SIMT.with_split_k(2)))
    streams = replace(SIMT, persistent=True, stream_k=True, raster_rows=8)
    plan_of(kernels, Request(Gemm(1 << 15, 1 << 15, 64, F32), Alignment(16, 16, 16)), PlanConfig(streams))
    with pytest.raises(LaunchError, match=r"would need a workspace of 8\.0 GiB"):
        plan_of(kernels, Request(Gemm(1 << 15, 1 << 16, 64, F32), Alignment(16, 16, 16)), PlanConfig(streams))


# -- folds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 31, 32, 33, 48, 49, 511, 512, 513, 5000])
@pytest.mark.parametrize("length", [1, 3, 4, 1000])
def test_partial_results_are_folded_by_eights_until_32_are_left(parts: int, length: int) -> None:
    """Each launch reads what the one before has written, all of it, once; rows of 16 bytes are read in vectors."""
    made: list[tuple[Any, Any]] = []
    kernels: Any = SimpleNamespace(
        overlaps=True, auxiliary=lambda config, problem: made.append((config, problem)) or (config, problem)
    )
    gemm = Gemm(8, 8, 8)
    found = folding.Folding(kernels, gemm, 0)
    found._lines(Operation.PLUS, (5, 0), parts, length, (2, 0))
    expected, left = [], parts
    while left > 32:
        whole, rest = divmod(left, 8)
        expected += [(whole, 8)] + [(1, rest)] * (rest > 0)
        left = whole + (rest > 0)
    expected.append((1, left))
    assert [(problem.m, problem.parts) for _, problem in made] == expected
    for (config, problem), step in zip(made, found.steps, strict=True):
        assert problem.n == length
        assert step.moved_bytes == problem.compulsory_bytes
        assert config == ReduceConfig.of(problem, 16 if length % 4 == 0 else 4, overlapped=True)
    assert found.steps[-1].pointers[1] == (2, 0) and found.steps[0].pointers[0] == (5, 0)


# -- networks ----------------------------------------------------------------------------------------------------------


@given(values=st.lists(st.floats(-2, 12), min_size=4, max_size=4))
def test_a_plan_gets_what_the_ramps_say_that_it_is_on(values: list[float]) -> None:
    found = made_up_network(4, 0.5).logarithms(np.array([values]))[0]
    expected = 0.0625
    for at, value in enumerate(values):
        knots = 0.5, 3.0 + at % 3, 5.5 + at % 5
        first, second, both = (
            min(1.0, max(0.0, (value - low) / (high - low))) for low, high in (knots[:2], knots[1:], knots[::2])
        )
        expected += 0.5 * (2 + at) * (first + second) - 0.5 * at * both
    assert found == pytest.approx(expected, abs=1e-9)


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "fewer", "more"), [(1, 1, 2), (7, 4, 10), (8, 4, 12), (127, 64, 190), (128, 64, 192), (512, 448, 576)]
)
def test_a_kernel_of_small_groups_is_chosen_for_fewer_and_more_rows_as_well(rows: int, fewer: int, more: int) -> None:
    typical = Gemm(rows, 64, 64, BF16)
    found = groups._sizes_of(typical, "m")
    assert [one.m for _, one in found] == [rows, fewer, more]
    assert [share for share, _ in found] == pytest.approx([0.4, 0.3, 0.3])


@pytest.mark.parametrize(("rows", "along"), [(513, "m"), (1000, "m"), (64, "k"), (1000, "k")])
def test_other_groups_are_priced_as_they_are(rows: int, along: str) -> None:
    typical = Gemm(rows, 64, 64, BF16)
    assert groups._sizes_of(typical, along) == ((1.0, typical),)


def test_large_groups_may_end_anywhere_and_only_ping_pong_hides_the_search_for_the_next() -> None:
    """By the terms alone, a kernel beside its own estimate as a product of as many groups."""
    kernels = [
        WgmmaConfig((128, 128, 64), ping_pong=True, raster_rows=16, subtile=32),
        WgmmaConfig((128, 128, 64), ping_pong=True, raster_rows=16, subtile=32, cluster=(2, 1)),
        WgmmaConfig((128, 128, 64), raster_rows=16, subtile=32),
    ]
    c, spec = Columns.of(kernels, WgmmaConfig.columns), device("H200")
    for rows, uneven in ((1024, 0.25), (128, 0.0)):
        typical = Gemm(rows, 4096, 2048, BF16, out=BF16, b=Order.COL)
        found = groups.tma_groups_seconds(c, typical, Groups(8, "m", 4096 * 2048), spec, 128)
        plain = sum(
            share
            * plans.plan_seconds("wgmma", [(c, launches.Around(Packing(), 16, 16, 128, 8))], one, spec, corrected=64)[0]
            * (1 + 0.02 * np.ceil(one.m / c.m / c.cluster_m) * c.m * c.cluster_m / one.m)
            for share, one in groups._sizes_of(typical, "m")
        )
        ends = 1 + uneven * np.array([128, 256, 128]) / 2 / rows
        assert found / plain == pytest.approx(ends * [1, 1, 1.04])


@pytest.mark.parametrize(
    ("total", "count", "expected", "size"), [(100, 3, 0, 34), (2, 3, 0, 1), (0, 3, 0, 1), (99, 3, 9, 9)]
)
def test_a_typical_group(total: int, count: int, expected: int, size: int) -> None:
    along_m = ragged._typical(Gemm(total, 64, 32, BF16), Groups(count, "m", 0, expected=expected))
    along_k = ragged._typical(Gemm(64, 32, total, BF16), Groups(count, "k", 0, expected=expected))
    assert (along_m.m, along_m.k) == (size, 32) and (along_k.m, along_k.k) == (64, size)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 128, 200])
def test_rows_of_tiles_of_a_group(rows: int) -> None:
    whole = ceil_div(rows, 64)
    ends = max(1.0, rows / 64 + 0.5)
    assert groups._lines_of_tiles(rows, np.array([64]), Groups(2, "m", 0)).tolist() == [(whole + ends) / 2]
    assert groups._lines_of_tiles(rows, np.array([64]), Groups(2, "k", 0)).tolist() == [whole]
    c = columns(replace(WGMMA, tile=(64, 64, 64), cluster=(2, 1)))
    assert groups._rows_asked(c, Gemm(rows, 64, 64, BF16)).tolist() == [ceil_div(rows, 128) * 128]


# -- two sums ----------------------------------------------------------------------------------------------------------


def test_halves_of_tiles_that_have_some() -> None:
    gemm = Gemm(256, 256, 256, BF16, out=BF16, epilogue=Epilogue(function=GATED))
    wide = PlanConfig(replace(WGMMA, tile=(128, 128, 64), subtile=128, consumers=2))
    half: Any = gated._halved(wide, gemm)
    assert (half.kernel.tile, half.kernel.accumulators, half.kernel.subtile) == ((128, 64, 64), 2, 64)
    assert gated._halved(replace(wide, packed=frozenset("A")), gemm) is None
    assert gated._halved(PlanConfig(SIMT), gemm) is None
    mma: Any = gated._halved(PlanConfig(MmaConfig((64, 128, 32), (32, 64), stages=3)), gemm)
    assert (mma.kernel.tile, mma.kernel.warp_tile, mma.kernel.accumulators) == ((64, 64, 32), (32, 32), 2)


# -- skinny and coded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [255, 256, 511, 512, 8192, 100_000])
@pytest.mark.parametrize("n", [64, 1000, 60_000])
def test_a_sum_is_split_where_outputs_are_too_few(n: int, k: int) -> None:
    gemm = Gemm(1, n, k, F32)
    found = skinny.skinny_for(gemm, alignment_of(gemm), H200)
    assert found is not None
    least = gemv.gemv_seconds(found.config, gemm, H200)
    for parts in (1, 2, 3, 8):
        other = skinny.skinny_for(gemm, alignment_of(gemm), None, parts=parts)
        if other is not None and parts <= k // 256 and other.parts in {found.parts, 1}:
            assert least <= gemv.gemv_seconds(other.config, gemm, H200) * (1 + 1e-9)
    assert found.parts == 1 or found.part_of_k >= 256 // 2
    assert found.whole == (found.parts == 1) and found.parts * max(found.part_of_k, k * found.whole) >= k


def test_memory_and_sms_overlap_in_part() -> None:
    assert gemv.overlapped(1.0, 1.0) == pytest.approx(2**0.5)
    assert gemv.overlapped(3.0, 0.0) == pytest.approx(3.0)
    gemm = Gemm(1, 4096, 4096, BF16)
    bytes_ = (4096 + 4096 * 4096) * 2 + 4096 * 4
    assert gemv.dram_seconds(gemm, H200, 3) == pytest.approx(3 * bytes_ / (0.963 * 4800e9))


@pytest.mark.parametrize("m", [1, 8, 9, 16, 17, 32, 33, 64, 65, 128])
@pytest.mark.parametrize("codes", [INT4, E4M3_CODES], ids=str)
def test_kernels_for_coded_weights_fit_the_problem(m: int, codes: Any) -> None:
    for (n, k), spec in product(((16, 64), (112, 128), (4096, 4096), (1000, 2048)), (H200, A100)):
        one = CodedProduct(m, CodedWeight(n, k, codes, 64), BF16, BF16)
        found = list(coded.candidates(one, spec))
        assert found and len(found) == len(set(found))
        few = next(rows for rows in (8, 16, 32) if m <= rows or rows == 32)
        for config in found:
            assert config.rows in ({few, 64} if m > 32 else {few})
            assert config.warps_k == 1 or config.stage_k <= k or len(found) == 1
            assert cost_of_coded.sm_clocks(config, one, spec) > 0
            assert config.warps_n * config.warps_k <= 16
        for config in coded_wgmma.wgmma_candidates(one, spec):
            whole = round_up(m, 8)
            assert config.rows in (whole, round_up(ceil_div(whole, 2), 8))
            assert not (config.groups_k > 1 and config.rows <= 8)
            assert n % config.vector == 0 and config.vector * 2 <= 16
        least = 9 if codes is INT4 else 1
        assert bool(list(coded_wgmma.wgmma_candidates(one, H200))) == (m >= least)
        assert not list(coded_wgmma.wgmma_candidates(replace(one, m=129), H200))


def test_twice_the_bytes_of_a_coded_weight_take_longer() -> None:
    for n, k in ((4096, 4096), (1024, 8192)):
        small, large = (CodedProduct(16, CodedWeight(n, depth, INT4), BF16, BF16) for depth in (k, 2 * k))
        config = coded.chosen_config(small, H200)
        few, many = (cost_of_coded.product_clocks(config, one, H200) for one in (small, large))
        assert few < many < 2 * few


# -- rankings and dispatchers ------------------------------------------------------------------------------------------


def ranking_of(*seconds: list[float]) -> Ranking:
    tables = []
    for number, some in enumerate(seconds):
        c = columns(*(replace(SIMT, raster_rows=1 + at) for at in range(len(some))))
        tables.append(Priced("simt", c, Packing(frozenset("A" if number else "")), np.array(some)))
    return Ranking(tables)


@given(st.lists(st.lists(st.sampled_from((1.0, 2.0, 3.0, 4.5, inf)), min_size=1, max_size=9), min_size=1, max_size=3))
def test_a_ranking_is_all_that_is_finite_the_least_first(seconds: list[list[float]]) -> None:
    found = ranking_of(*seconds)
    whole = sorted(one * 1e6 for some in seconds for one in some if one < inf)
    assert [us for us, _ in found] == whole == [us for us, _ in found[:]]
    assert len(found) == len(whole) and found.priced == sum(map(len, seconds))
    for at in range(len(whole)):
        assert found[at] == found[:][at] and found[at:][0] == found[at]
    for us, config in found:
        table = 1 if config.packed else 0
        rows = [
            some[config.kernel.raster_rows - 1] for some in seconds[table:] if len(some) >= config.kernel.raster_rows
        ]
        assert us / 1e6 in rows
    for most in (1, 2, 4):
        each = found.of_each_table(most)
        assert len(each) <= max(most, 1) and [us for us, _ in each] == sorted(us for us, _ in each)


def test_no_more_than_so_many_plans_are_tried_or_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = paper_dispatcher(GPUS["H200"])
    request = asked(512, 512, 512, "bf16", "NN")
    assert [len(dispatcher.candidates(request, most, 60.0)) for most in (1, 2, 5)] == [1, 2, 5]
    found = dispatcher.candidates(request, 5, 60.0)
    assert found[0] is dispatcher.plan(request) and len({plan.words for plan in found}) == 5
    assert len(dispatcher.candidates(request, 5, 0.0)) == 2
    assert not dispatcher.is_measured(request)
    dispatcher.keep(request, found[3])
    assert dispatcher.is_measured(request) and dispatcher.plan(request) is found[3]
    assert account_of(dispatcher, request, found[3]).chosen_by == "measured by autotune"
    assert account_of(dispatcher, request, found[2]).chosen_by == "the estimate"
    dispatcher.forget()
    assert not dispatcher.is_measured(request) and dispatcher.known(request) is None


def test_what_is_kept_is_so_much_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.planning.dispatch._KEPT_PLANS", 2)
    dispatcher = paper_dispatcher(GPUS["H200"])
    requests = [asked(size, 64, 64, "bf16", "NN") for size in (64, 128, 192, 256)]
    plans = [dispatcher.plan(request) for request in requests]
    for at, (request, plan) in enumerate(zip(requests, plans, strict=True)):
        dispatcher.keep(request, plan)
        kept = [dispatcher.is_measured(one) for one in requests[: at + 1]]
        assert kept[-1] and sum(kept) == 1 + at % 2
    groups = [tuple(requests[:count]) for count in (1, 2, 3)]
    for at, group in enumerate(groups):
        dispatcher.group(group)
        known = [dispatcher.known_group(one) is not None for one in groups[: at + 1]]
        assert known[-1] and sum(known) == 1 + at % 2


def test_the_order_of_a_sum_by_few_rows_tells_who_shares_it() -> None:
    gemm = Gemm(1, 4096, 8192, BF16)
    for parts in (1, 4):
        found = order_of_plan(gemm, alignment_of(gemm), PlanConfig(GemvConfig(split_k=parts)))
        assert any(one.startswith("blocks, ") for one in found.shared_by) == (parts > 1)
        assert len(found.shared_by) == 2 + (parts > 1)
        assert "1 of k each in turn" in found.shared_by[0]
    k_major = Gemm(1, 4096, 8192, BF16, b=Order.COL)
    assert (
        "1 of k each in turn"
        not in order_of_plan(k_major, Alignment(16, 16, 16), PlanConfig(GemvConfig())).shared_by[0]
    )
