"""Groups whose sizes are known on the device only: ragged rows, ragged k, empty groups, none at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lowering.work_items import (
    MMA,
    check_counted_groups,
    check_groups_along_k,
    check_groups_along_m,
    part_of,
    persisted,
)
from tilewright.dtypes import BF16, E4M3, F32
from tilewright.errors import LaunchError, LoweringError
from tilewright.frontend.ragged import spans_of
from tilewright.ir.async_stmt import TmaLoad, TmaStore
from tilewright.ir.kernel import MOST_GROUPS, Variant
from tilewright.ir.program import Route
from tilewright.ir.visit import walk
from tilewright.ir.work import Problems
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent, skinny
from tilewright.problem import Gemm, Operands, Order, check, make_operands
from tilewright.problem.block_scales import BlockScales
from tilewright.problem.epilogue import Epilogue, Scale
from tilewright.schedule import Schedule
from tilewright.toolchain import build, grid_of


def schedule_at(gemm: Gemm, config: WgmmaConfig) -> Schedule:
    return at_depth(config, gemm).schedule(gemm)


KINDS: dict[str, WgmmaConfig] = {
    "cooperative": persistent(128, 128, 2, subtile=64),
    "cluster": clustered(persistent(64, 128, 1, subtile=64)),
    "ping-pong": replace(PING_PONG, tile=(128, 128, 64), subtile=64, stages=3),
    "from registers": persistent(64, 64, 1, subtile=0),
    "swap-AB": replace(skinny(32, 64), persistent=True, stages=4),
}
UNALIGNED = {
    "whole rows": persistent(64, 256, 1, subtile=256, subtile_stages=1),
    "swap-AB": replace(skinny(32, 64), persistent=True, stages=4, subtile=64),
}
ROWS = {"ragged": [130, 0, 1, 64, 0, 77, 28], "empty": [0, 0, 0], "one": [300], "first and last empty": [0, 128, 64, 0]}


@pytest.mark.cross_section("name", "rows", every=6, at=1)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", KINDS)
def test_groups_along_m(name: str, rows: str) -> None:
    gemm = Gemm(320, 136, 200, BF16, out=BF16)
    built = check_groups_along_m(gemm, schedule_at(gemm, KINDS[name]), ROWS[rows], resident_blocks=4)
    stores = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, TmaStore)]
    assert all(stmt.map.ragged for stmt in stores)


@pytest.mark.cross_section("name", "out", "n", every=3)
@pytest.mark.parametrize("n", [131, 261])
@pytest.mark.parametrize("out", [BF16, F32])
@pytest.mark.parametrize("name", ["cooperative", "ping-pong", "whole rows", "swap-AB"])
def test_unaligned_rows_of_groups_are_stored_by_warps(name: str, out: Any, n: int) -> None:
    """In whole rows, wherever a group begins and ends."""
    config = UNALIGNED.get(name) or KINDS[name]
    gemm = Gemm(320, n, 72, BF16, out=out, b=Order.COL, lda=72, ldb=72, ldc=n)
    built = check_groups_along_m(gemm, schedule_at(gemm, config), ROWS["ragged"], resident_blocks=4)
    assert not any(isinstance(stmt, TmaStore) for _, stmt in walk(built.kernel.body))
    staged = next(one for one in built.program.staged if one.operand == "C")
    assert staged.finished and staged.route is Route.MATRICES


def test_many_groups_of_few_rows() -> None:
    gemm = Gemm(200, 64, 64, BF16, out=BF16, beta=0.5)
    check_groups_along_m(gemm, schedule_at(gemm, KINDS["from registers"]), [3, 0, 1] * 50, resident_blocks=7)


@pytest.mark.cross_section("name", every=2)
@pytest.mark.parametrize("name", KINDS)
def test_groups_along_m_in_several_launches(name: str) -> None:
    gemm = Gemm(320, 136, 72, BF16, out=BF16)
    check_groups_along_m(gemm, schedule_at(gemm, KINDS[name]), ROWS["ragged"], of_a_launch=3, resident_blocks=4)


def test_more_groups_than_a_launch_counts_are_refused() -> None:
    gemm = Gemm(256, 128, 128, BF16, out=BF16)
    built = replace(build(gemm, schedule_at(gemm, KINDS["cooperative"])), problems=Problems.GROUPED_M)
    assert grid_of(built.kernel, gemm, batch=MOST_GROUPS)[0] == 2 + MOST_GROUPS
    with pytest.raises(LaunchError, match="at most 512 groups along m, not 513"):
        grid_of(built.kernel, gemm, batch=MOST_GROUPS + 1)


def test_a_launch_has_a_block_for_each_tile_that_there_may_be() -> None:
    """Each group may end inside a row of tiles."""
    gemm = Gemm(256, 136, 128, BF16, out=BF16)
    built = replace(build(gemm, schedule_at(gemm, KINDS["cooperative"])), problems=Problems.GROUPED_M)
    assert grid_of(built.kernel, gemm, batch=5) == ((2 + 5) * 2, 1, 1)


FP8_TILE = WgmmaConfig((64, 128, 128), 1, stages=3, subtile=64)
FP8_KINDS: dict[str, WgmmaConfig | SimtConfig] = {
    "wgmma": FP8_TILE,
    "two consumers": replace(FP8_TILE, tile=(128, 64, 128), consumers=2, subtile=32, promote_every=128),
    "ping-pong": replace(FP8_TILE, consumers=2, ping_pong=True, promote_every=128),
    "swap-AB": WgmmaConfig((32, 64, 128), 1, stages=3, swap_ab=True, promote_every=128),
    "per thread": replace(FP8_TILE, subtile=0, promote_every=128),
    "CUDA cores": SimtConfig((64, 64, 16), (32, 32), unroll=8, raster_rows=8, persistent=True),
}
SCALES: dict[str, tuple[tuple[Scale, ...], tuple[Scale, ...]]] = {
    "rows and columns": (("m", "n"), ("n",)),
    "tensors": (("a", "b"), ("b",)),
    "rows and a tensor": (("m", "b"), ("b",)),
}


@pytest.mark.cross_section("kind", "scales", every=5)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("kind", FP8_KINDS)
def test_groups_of_fp8_have_scales_of_their_own(kind: str, scales: str) -> None:
    scale, own = SCALES[scales]
    gemm = Gemm(180, 136, 144, E4M3, out=BF16, b=Order.COL, epilogue=Epilogue(scale=scale, own=own))
    config = FP8_KINDS[kind]
    every = config.promote_every if isinstance(config, WgmmaConfig) else 0
    options = {"promote_every": every, "resident_blocks": 4, "variant": Variant(alignment_bytes=16)}
    check_groups_along_m(gemm, config.schedule(gemm), [70, 0, 1, 64, 30], **options)


@pytest.mark.cross_section("kind", "side", every=2)
@pytest.mark.parametrize("side", [1, 128])
@pytest.mark.parametrize("kind", ["wgmma", "ping-pong", "swap-AB"])
def test_groups_of_fp8_have_scales_of_blocks_of_their_own(kind: str, side: int) -> None:
    blocks = BlockScales(1, side, 128, steps_a=(1, 180), own=("block_scale_b",))
    gemm = Gemm(180, 136, 272, E4M3, out=BF16, b=Order.COL, block_scales=blocks)
    config = replace(FP8_KINDS[kind], promote_every=128)
    if side == 1 and kind != "swap-AB":  # a thread holds a scale for each of its columns
        config = replace(config, tile=(64, 64, 128))
    check_groups_along_m(gemm, config.schedule(gemm), [70, 0, 1, 64, 30], promote_every=128, resident_blocks=4)


COUNTS = [5, 0, 40, 17, 1, -3, 99]
"""Of groups that have room for 40 rows."""


@pytest.mark.parametrize("kind", [*KINDS, "mma.sync", "simt"])
def test_groups_that_use_the_first_rows_of_their_room(kind: str) -> None:
    gemm = Gemm(40 * len(COUNTS), 136, 72, BF16, out=BF16)
    if kind == "simt":
        schedule = SimtConfig((64, 64, 16), (32, 32), unroll=8, persistent=True, raster_rows=8).schedule(gemm)
    elif kind == "mma.sync":
        schedule = persisted(replace(MMA, store="quad_shuffle").schedule(gemm))
    else:
        schedule = schedule_at(gemm, KINDS[kind])
    of_a_launch = 3 if kind in ("cluster", "simt") else 0
    built = check_counted_groups(gemm, schedule, COUNTS, 40, of_a_launch=of_a_launch, resident_blocks=4)
    assert [one.name for one in built.kernel.parameters if one.name.startswith("group")] == ["group_counts", "groups"]


def test_counted_groups_compile_without_spills() -> None:
    gemm = Gemm(1024, 256, 256, BF16, out=BF16)
    for name in ("cooperative", "ping-pong", "swap-AB"):
        built = replace(build(gemm, schedule_at(gemm, KINDS[name])), problems=Problems.COUNTED_M)
        assert built.compile("sm_90a").resources.spill_load_bytes == 0


WRONG_ENDS: dict[str, tuple[list[int], list[int], list[int]]] = {  # the groups of 0, 10, ... 110; lengths along k
    "negative": ([-5, 40, 80], [1] * 4 + [2] * 4 + [-1] * 4, [0, 40, 40]),
    "too large": ([40, 200, 2**31 - 1], [0] * 4 + [1] * 8, [40, 80, 0]),
    "descending": ([50, 30, 80], [0] * 5 + [-1] * 7, [50, 0, 50]),
    "far apart": ([2**31 - 1, -(2**31), 30], [0] * 12, [120, 0, 30]),
    "as before": ([50, 20, 20], [0] * 5 + [-1] * 7, [50, 0, 0]),
}
"""Offsets that are none, and what they come to: the group of every tenth row, -1 for none, and terms along k."""


@pytest.mark.cross_section("kind", "ends", every=3)
@pytest.mark.parametrize("ends", WRONG_ENDS)
@pytest.mark.parametrize("kind", ["cooperative", "swap-AB", "mma.sync", "simt"])
def test_offsets_that_are_none_leave_no_matrix(kind: str, ends: str) -> None:
    """Ends are limited to the rows, and groups that begin before the end of another are empty."""
    gemm = Gemm(120, 64, 64, BF16, out=BF16)
    if kind == "simt":
        schedule = SimtConfig((64, 64, 16), (32, 32), unroll=8, persistent=True, raster_rows=8).schedule(gemm)
    elif kind == "mma.sync":
        schedule = persisted(replace(MMA, store="quad_shuffle").schedule(gemm))
    else:
        schedule = schedule_at(gemm, KINDS[kind])
    built = replace(build(gemm, schedule, variant=Variant(alignment_bytes=16)), problems=Problems.GROUPED_M)
    given, groups, _ = WRONG_ENDS[ends]
    whole = make_operands(gemm)
    each = [make_operands(gemm, seed=seed).b for seed in range(3)]
    operands = Operands(gemm, whole.a, np.concatenate(each), whole.c)
    run = built.simulate(
        operands, batching={"B_step": 64 * 64, "groups": 3}, group_ends=given, resident_blocks=3, listeners=()
    )
    for number, group in enumerate(groups):
        rows, part = slice(640 * number, 640 * (number + 1)), replace(gemm, m=10)
        if group < 0:
            np.testing.assert_array_equal(run.c[rows], whole.c[rows])
            continue
        one = Operands(part, whole.a[rows], each[group], whole.c)
        verdict = check(one, BF16.decode(run.c[rows].reshape(10, 64)))
        assert verdict.ok, (number, verdict.message)


def test_a_group_is_empty_before_an_end_that_another_warp_has_read() -> None:
    gemm = Gemm(120, 64, 64, BF16, out=BF16)
    built = replace(build(gemm, schedule_at(gemm, KINDS["from registers"])), problems=Problems.GROUPED_M)
    ends = [0] * 20 + [70] + [50] * 14 + [60, 20, 80, 90, 120]
    spans = spans_of(ends, 120)
    used = [group for group, rows in enumerate(spans) if rows.stop > rows.start]
    assert used == [20, 38, 39]  # those between begin before 70, also the one that ends at 80
    whole = make_operands(gemm)
    each = [make_operands(gemm, seed=seed).b for seed in range(len(ends))]
    operands = Operands(gemm, whole.a, np.concatenate(each), whole.c)
    batching = {"B_step": 64 * 64, "groups": len(ends)}
    run = built.simulate(operands, batching=batching, group_ends=ends, resident_blocks=3, listeners=())
    for group in used:
        rows = spans[group]
        elements = slice(64 * rows.start, 64 * rows.stop)
        count = rows.stop - rows.start
        one = Operands(replace(gemm, m=count), whole.a[elements], each[group], whole.c)
        verdict = check(one, BF16.decode(run.c[elements].reshape(count, 64)))
        assert verdict.ok, (group, verdict.message)


@pytest.mark.parametrize("ends", WRONG_ENDS)
def test_wrong_offsets_along_k_sum_what_there_is(ends: str) -> None:
    gemm = Gemm(64, 64, 120, BF16, out=BF16, a=Order.COL)
    built = replace(build(gemm, schedule_at(gemm, KINDS["cooperative"])), problems=Problems.GROUPED_K)
    given, _, lengths = WRONG_ENDS[ends]
    whole = make_operands(gemm)
    operands = Operands(gemm, whole.a, whole.b, np.tile(whole.c, 3))
    batching = {"C_step": 64 * 64, "groups": 3}
    run = built.simulate(operands, batching=batching, group_ends=given, resident_blocks=3, listeners=())
    for group, length in enumerate(lengths):
        begin = min(max(given[group - 1], 0), 120) if group else 0
        end = begin + length
        part = replace(gemm, k=end - begin)
        factors = (part_of(gemm, name, one, "k", begin, end) for name, one in (("A", whole.a), ("B", whole.b)))
        verdict = check(Operands(part, *factors, whole.c), BF16.decode(run.c.reshape(3, 64, 64)[group]))
        assert verdict.ok, verdict.message


@pytest.mark.cross_section("name", "lengths", every=9)
@pytest.mark.parametrize("lengths", ROWS)
@pytest.mark.parametrize("name", KINDS)
def test_groups_along_k(name: str, lengths: str) -> None:
    gemm = Gemm(72, 136, 320, BF16, out=BF16, a=Order.COL, b=Order.ROW, beta=0.5)
    options = {"resident_blocks": 3, "schedule": "warps"}
    built = check_groups_along_k(gemm, schedule_at(gemm, KINDS[name]), ROWS[lengths], **options)
    loads = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, TmaLoad)]
    assert all(stmt.map.ragged for stmt in loads)


def test_kernels_of_groups_compile_without_spills() -> None:
    for problems, orders in ((Problems.GROUPED_M, {}), (Problems.GROUPED_K, {"a": Order.COL})):
        gemm = Gemm(1024, 256, 256, BF16, out=BF16, **orders)  # type: ignore[arg-type]
        for name in ("cooperative", "cluster", "ping-pong"):
            built = replace(build(gemm, schedule_at(gemm, KINDS[name])), problems=problems)
            assert built.compile("sm_90a").resources.spill_load_bytes == 0
    assert [p.name for p in built.source.parameters if p.is_pointer] == ["A", "B", "C", "group_ends"]


@pytest.mark.parametrize(
    ("problems", "point", "orders", "said"),
    [
        (Problems.GROUPED_M, one_tile(64, 128, 1), {}, "need a persistent kernel"),
        (Problems.GROUPED_M, KINDS["cooperative"], {"a": Order.COL}, "A of groups along m is row-major"),
        (Problems.GROUPED_K, KINDS["cooperative"], {}, "A of groups along k is column-major"),
    ],
)
def test_what_groups_cannot_be_is_refused(problems: Problems, point: Any, orders: Any, said: str) -> None:
    gemm = Gemm(256, 256, 256, BF16, out=BF16, **orders)
    with pytest.raises(LoweringError, match=said):
        _ = replace(build(gemm, schedule_at(gemm, point)), problems=problems).kernel
