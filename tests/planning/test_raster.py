"""How many rows of tiles are visited together: held against a cache that keeps what was asked for last."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from planned import alignment_of

from tests.frontend.test_gated import piece_of
from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, DType
from tilewright.kernels.columns import Columns
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request
from tilewright.planning.estimates import estimated
from tilewright.planning.packing import Shards
from tilewright.planning.ranking import whole_space
from tilewright.planning.raster import first_out, goes_back, rows_together, visited
from tilewright.problem import Gemm, Order
from tilewright.problem.block_scales import BlockScales
from tilewright.units import ceil_div
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
ROWS = (16, 8, 4, 2)
TALL = WgmmaConfig((256, 128, 64), 1, cluster=(1, 2), raster_rows=16)
PING_PONG = WgmmaConfig((128, 192, 64), ping_pong=True, cluster=(2, 1), raster_rows=16)
ALONE = replace(PING_PONG, cluster=(1, 1))


def problem(m: int, n: int, k: int, dtype: DType = BF16) -> Gemm:
    return Gemm(m, n, k, dtype, out=BF16, b=Order.COL)


def read_bytes(config: WgmmaConfig, gemm: Gemm, rows: int, stays: tuple[str, ...] = ("A", "B", "C")) -> int:
    """What memory is asked for, where waves of blocks visit tiles in order, and the L2 keeps half of itself: what was
    asked for last, by whole rows of A, columns of B, and tiles of C. stays: of what nothing leaves first."""
    high, wide = ceil_div(gemm.m, config.m), ceil_div(gemm.n, config.n)
    strip = rows * config.cluster_m
    order = [
        (row, column)
        for first in range(0, high, strip)
        for column in range(wide)
        for row in range(first, min(first + strip, high))
    ]
    sizes = {"A": config.m * gemm.k * gemm.dtype.bytes, "B": config.n * gemm.k * gemm.dtype.bytes}
    sizes["C"] = config.m * config.n * gemm.out.bytes
    kept: OrderedDict[tuple[str, object], int] = OrderedDict()
    held = asked = 0
    for first in range(0, len(order), H200.sm_count):
        wave = order[first : first + H200.sm_count]
        names = [("A", row) for row, _ in wave] + [("B", column) for _, column in wave] + [("C", tile) for tile in wave]
        for name in dict.fromkeys(names):
            if name not in kept:
                held += sizes[name[0]]
                asked += sizes[name[0]] * (name[0] != "C")
            kept[name] = sizes[name[0]]
            kept.move_to_end(name, last=name[0] in stays)
        while held > 0.5 * H200.l2_bytes:
            held -= kept.popitem(last=False)[1]
    return asked


def asked_along_k(config: WgmmaConfig, gemm: Gemm) -> int:
    """The same, where all blocks of a wave go through k at one pace: by sixteenths of k, of what waves of 128 blocks
    ask for."""
    high, wide, parts = ceil_div(gemm.m, config.m), ceil_div(gemm.n, config.n), 16
    order = list[tuple[int, int]]()
    for group, first in enumerate(range(0, high, config.raster_rows)):
        columns = range(wide) if not config.serpentine or group % 2 == 0 else range(wide)[::-1]
        order += [(row, n) for n in columns for row in range(first, min(first + config.raster_rows, high))]
    sizes = {"A": config.m * gemm.k * gemm.dtype.bytes // parts, "B": config.n * gemm.k * gemm.dtype.bytes // parts}
    kept: OrderedDict[tuple[str, int, int], int] = OrderedDict()
    held = asked = 0
    for number, first in enumerate(range(0, len(order), 128)):
        wave = order[first : first + 128]
        for part in range(parts) if not config.serpentine or number % 2 == 0 else range(parts)[::-1]:
            for name in dict.fromkeys([("A", row, part) for row, _ in wave] + [("B", n, part) for _, n in wave]):
                asked += sizes[name[0]] * (name not in kept)
                held += sizes[name[0]] * (name not in kept)
                kept[name] = sizes[name[0]]
                kept.move_to_end(name)
            while held > 0.5 * H200.l2_bytes:
                held -= kept.popitem(last=False)[1]
    return asked


@pytest.mark.parametrize(
    ("gemm", "least", "most"),
    [
        (problem(8192, 8192, 8192), 0.85, 0.95),  # measured: 944 of 1074 MB
        (problem(16384, 4096, 12288), 0.85, 0.98),
        (problem(6000, 18432, 6144), 0.6, 0.85),
        (problem(8192, 8192, 16384, E4M3), 0.8, 0.95),
    ],
    ids=str,
)
def test_what_was_read_last_is_asked_for_first(gemm: Gemm, least: float, most: float) -> None:
    plain = replace(TALL, tile=(128, 256, 64), cluster=(1, 1))
    found = visited(PlanConfig(plain), gemm, H200).kernel
    assert isinstance(found, WgmmaConfig) and found.serpentine
    share = asked_along_k(found, gemm) / asked_along_k(replace(found, serpentine=False), gemm)
    assert least < share < most


@pytest.mark.parametrize("k", [512, 2048, 4096])
def test_strips_that_stay_are_summed_in_the_order_of_k(k: int) -> None:
    assert not goes_back(replace(PING_PONG, raster_rows=8), problem(8192, 8192, k), H200)


def test_sums_in_one_order_and_scales_of_blocks_keep_the_order_of_k() -> None:
    gemm = problem(8192, 8192, 8192)
    assert not visited(PlanConfig(PING_PONG), gemm, H200, fixed_order=True).kernel.serpentine  # type: ignore[union-attr]
    for fixed in (False, True):
        request = Request(gemm, alignment_of(gemm), fixed_order=fixed)
        kernels = [plan.kernel for plan, _ in zip(estimated(request, H200), range(20), strict=False)]
        goes = {one.serpentine for one in kernels if isinstance(one, WgmmaConfig)}
        assert goes <= {False} if fixed else True in goes
    tensors = problem(16384, 16384, 16384, E4M3)
    assert goes_back(PING_PONG, tensors, H200)
    blocks = replace(tensors, block_scales=BlockScales(1, 128))
    assert not goes_back(PING_PONG, blocks, H200)
    config = replace(PING_PONG, tile=(128, 128, 128), promote_every=128, serpentine=True)
    assert any("in the order of k" in one for one in config.reasons_against(blocks))


@pytest.mark.parametrize(
    "config", [TALL, PING_PONG, replace(PING_PONG, cluster=(1, 1)), replace(TALL, tile=(64, 256, 64))]
)
@pytest.mark.parametrize(
    "gemm",
    [
        problem(8192, 8192, 8192, E4M3),
        problem(8192, 8192, 8192),
        problem(16384, 4096, 8192),
        problem(4096, 28672, 4096),
        problem(4096, 4096, 4096),
        problem(1024, 14336, 4096),
        problem(8192, 8192, 512),
    ],
    ids=str,
)
def test_no_other_number_of_rows_asks_for_much_less(gemm: Gemm, config: WgmmaConfig) -> None:
    """In half a millisecond memory gives 2 GB: less than 70 MB are no reason."""
    told = {rows: read_bytes(config, gemm, rows) for rows in ROWS}
    assert told[int(rows_together(config, gemm, H200))] <= max(1.25 * min(told.values()), min(told.values()) + 70e6)


@pytest.mark.parametrize(
    ("k", "rows", "first"), [(512, 16, ""), (2560, 16, "B"), (3072, 8, ""), (4096, 8, "B"), (8192, 8, "")]
)
def test_strips_that_the_l2_keeps_are_as_high_as_they_may_be(k: int, rows: int, first: str) -> None:
    """Of A and B are 64 MiB at k = 4096. B leaves the L2 first where a strip of A stays, and B beside it would not
    let it; not where both stay, nor where neither does. Strips of 4096 rows have 21 MB at k = 2560, 25 at 3072."""
    plan = PlanConfig(PING_PONG)
    found = visited(plan, problem(8192, 8192, k), H200)
    kernel = replace(PING_PONG, raster_rows=rows, evict_first=first, serpentine=k == 8192)
    assert found == replace(plan, kernel=kernel)


@pytest.mark.parametrize(
    ("kernel", "gemm", "high"),
    [
        (ALONE, problem(12288, 21888, 2048), 4096),
        (replace(PING_PONG, tile=(128, 208, 64)), problem(12288, 21888, 2560), 4096),
        (ALONE, problem(3072, 14336, 3584), 4096),  # of which 3072 are in C: 22 MB
        (ALONE, problem(3328, 14336, 3584), 2048),  # 24 MB
        (ALONE, problem(2400, 21888, 2048), 2048),  # little of A is below a strip
        (ALONE, problem(12288, 3072, 2048), 2048),  # B stays by itself
        (ALONE, problem(12288, 21888, 4096, E4M3), 2048),
        (replace(ALONE, ping_pong=False, consumers=3, tile=(192, 160, 64)), problem(12288, 21888, 2560), 3072),
    ],
)
def test_strips_are_twice_as_high_where_they_stay(kernel: WgmmaConfig, gemm: Gemm, high: int) -> None:
    found = visited(PlanConfig(kernel), gemm, H200).kernel
    assert isinstance(found, WgmmaConfig) and found.raster_rows * found.cluster_m * found.m == high
    assert high < 4096 or found.evict_first == "B"
    assert visited(PlanConfig(found), gemm, H200).kernel == found


@pytest.mark.parametrize(("cluster", "consumers", "first"), [((1, 1), 3, "B"), ((1, 2), 3, ""), ((1, 2), 2, "B")])
def test_b_stays_beside_clusters_of_three_consumers(cluster: tuple[int, int], consumers: int, first: str) -> None:
    """They fall behind each other: what has left is asked for again."""
    kernel = replace(TALL, tile=(192, 160, 64), consumers=consumers, cluster=cluster)
    found = visited(PlanConfig(kernel), problem(8192, 14336, 4096), H200).kernel
    assert isinstance(found, WgmmaConfig) and (found.evict_first, found.serpentine) == (first, False)


def test_what_leaves_first_besides_is_kept() -> None:
    gemm = problem(8192, 8192, 4096)
    for before, after in (("C", "BC"), ("B", "B"), ("A", "A"), ("AC", "AC")):
        plan = PlanConfig(replace(PING_PONG, evict_first=before))
        found = visited(plan, gemm, H200).kernel
        assert isinstance(found, WgmmaConfig) and found.evict_first == after
        assert visited(PlanConfig(found), gemm, H200).kernel == found


@pytest.mark.parametrize(("subtile", "first"), [(64, "BC"), (32, "BC"), (0, "B")])
def test_stores_by_tma_leave_the_l2_with_b(subtile: int, first: str) -> None:
    """What threads store has no hint."""
    gemm = problem(16384, 24576, 4096)
    plan = PlanConfig(replace(PING_PONG, subtile=subtile, subtile_stages=1, raster_rows=8))
    found = visited(plan, gemm, H200).kernel
    assert isinstance(found, WgmmaConfig) and found.evict_first == first


def test_plans_that_a_tuner_measures_have_the_same_hints() -> None:
    gemm = problem(8192, 8192, 4096)
    space = whole_space(gemm, H200, alignment_of(gemm), family="wgmma")
    found: dict[int, set[str]] = {}
    for kernel in (one.kernel for _, one in space):
        assert isinstance(kernel, WgmmaConfig)
        if (kernel.tile, kernel.ping_pong, kernel.cluster) == (PING_PONG.tile, True, (2, 1)):
            found.setdefault(kernel.raster_rows, set()).add(kernel.evict_first)
    assert found == {4: {"B", "BC"}, 16: {""}}
    for first, after in (("", "B"), ("C", "BC"), ("A", "A"), ("AC", "AC"), ("B", "B")):
        one = Columns.of([replace(PING_PONG, raster_rows=8)], WgmmaConfig.columns)
        assert first_out(one, np.array([first]), gemm, H200).tolist() == [after]


def test_a_cache_that_b_leaves_first_asks_for_less() -> None:
    gemm = problem(4096, 14336, 4096)
    tall = visited(PlanConfig(TALL), gemm, H200).kernel
    assert isinstance(tall, WgmmaConfig) and tall.evict_first == "B"
    told = [read_bytes(tall, gemm, tall.raster_rows, kept) for kept in (("A", "B", "C"), ("A", "C"))]
    assert told[1] < 0.7 * told[0]


def test_tiles_that_are_visited_row_by_row_stay_so() -> None:
    plan = PlanConfig(replace(PING_PONG, persistent=False, raster_rows=1))
    assert visited(plan, problem(8192, 8192, 8192), H200) == plan


@pytest.mark.parametrize(
    ("m", "count", "cluster", "flat"),
    [(2048, 1, (1, 1), True), (2176, 1, (1, 1), False), (1024, 2, (2, 1), True), (1100, 2, (2, 1), False)],
)
def test_blocks_that_all_run_at_once_have_a_tile_each(m: int, count: int, cluster: tuple[int, int], flat: bool) -> None:
    """16 x 8 tiles fill 128 of 132 SMs, 17 x 8 need a second wave; so do problems of a batch, and whole clusters."""
    kernel = replace(TALL, tile=(128, 256, 64), cluster=cluster)
    assert kernel.persistent and kernel.raster_rows > 1
    found = visited(PlanConfig(kernel), problem(m, 2048, 2048), H200, count).kernel
    assert isinstance(found, WgmmaConfig) and (found.persistent, found.raster_rows == 1) == (not flat, flat)
    assert visited(PlanConfig(found), problem(m, 2048, 2048), H200, count).kernel == found


@pytest.mark.parametrize(
    ("sizes", "cluster", "down"),
    [
        ((577, 3072), (1, 1), True),  # 5 x 24 tiles
        ((577, 3072), (1, 2), True),
        ((500, 3072), (2, 1), False),  # clusters share the tiles of B
        ((100, 3072), (1, 1), False),  # one row of tiles
        ((2816, 640), (1, 1), False),  # A is the longer operand
    ],
)
def test_blocks_that_all_run_at_once_go_down_columns_where_b_is_longer(
    sizes: tuple[int, int], cluster: tuple[int, int], down: bool
) -> None:
    kernel = replace(TALL, tile=(128, 128, 64), consumers=2, cluster=cluster)
    found = visited(PlanConfig(kernel), problem(*sizes, 4096), H200).kernel
    assert isinstance(found, WgmmaConfig) and not found.persistent and (found.raster_rows > 1) is down


def test_warpgroups_in_ping_pong_take_tiles_in_turn_in_one_wave_too() -> None:
    kernel = visited(PlanConfig(PING_PONG), problem(1024, 1024, 2048), H200).kernel
    assert isinstance(kernel, WgmmaConfig) and kernel.persistent


def test_a_plan_is_told_once() -> None:
    gemm = problem(2048, 2048, 2048)
    plans = [plan for plan, _ in zip(estimated(Request(gemm, alignment_of(gemm)), H200), range(200), strict=False)]
    assert len(set(plans)) == len(plans)


def test_choices_visit_strips_but_where_ranks_have_an_order() -> None:
    gemm = problem(8192, 8192, 8192)
    request = Request(gemm, alignment_of(gemm))
    assert all(plan == visited(plan, gemm, H200) for plan, _ in zip(estimated(request, H200), range(20), strict=False))
    shared = replace(request, shards=Shards((4096, 4096), 0))
    kernels = [plan.kernel for plan, _ in zip(estimated(shared, H200), range(20), strict=False)]
    assert {one.raster_rows for one in kernels if isinstance(one, WgmmaConfig)} <= {1, 16}


def test_gated_products_visit_strips_of_both_products() -> None:
    gemm = piece_of(8192, 14336, 4096, BF16).request.gemm
    two = replace(PING_PONG, tile=(128, 96, 64), accumulators=2)
    wide = problem(8192, 2 * 14336, 4096)
    assert rows_together(two, gemm, H200) == rows_together(PING_PONG, wide, H200) == 8
    first = {}
    for cluster in ((1, 1), (1, 2), (2, 1)):
        kernel = visited(PlanConfig(replace(two, cluster=cluster)), gemm, H200).kernel
        assert isinstance(kernel, WgmmaConfig)
        first[cluster] = kernel.evict_first
    assert first == {(1, 1): "B", (1, 2): "", (2, 1): ""}
