"""Groups whose sizes are known on the device only: ragged rows, ragged k, empty groups, none at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lowering.work_items import check_groups_along_k, check_groups_along_m
from tilewright.dtypes import BF16
from tilewright.errors import LaunchError, LoweringError
from tilewright.ir.async_stmt import TmaLoad, TmaStore
from tilewright.ir.kernel import MOST_GROUPS
from tilewright.ir.visit import walk
from tilewright.ir.work import Problems
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent, skinny
from tilewright.problem import Gemm, Order
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
ROWS = {"ragged": [130, 0, 1, 64, 0, 77, 28], "empty": [0, 0, 0], "one": [300], "first and last empty": [0, 128, 64, 0]}


@pytest.mark.cross_section("name", "rows", every=6, at=1)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", KINDS)
def test_groups_along_m(name: str, rows: str) -> None:
    gemm = Gemm(320, 136, 200, BF16, out=BF16)
    built = check_groups_along_m(gemm, schedule_at(gemm, KINDS[name]), ROWS[rows], resident_blocks=4)
    stores = [stmt for _, stmt in walk(built.kernel.body) if isinstance(stmt, TmaStore)]
    assert all(stmt.map.ragged for stmt in stores)


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


@pytest.mark.cross_section("name", "lengths", every=6)
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
