"""What TMA reads or writes may be the first to leave the L2: a hint that changes no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16
from tilewright.errors import ScheduleError
from tilewright.ir.async_stmt import TmaLoad, TmaStore
from tilewright.ir.buffer import Space
from tilewright.ir.program import Route
from tilewright.ir.visit import walk
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.candidates import leaves_first
from tilewright.problem import Gemm, Order, make_operands
from tilewright.schedule import Schedule, Stage, Transfer
from tilewright.toolchain import Build, build, run_on_simulator

GEMM = Gemm(200, 136, 192, BF16, out=BF16, b=Order.COL)


@pytest.mark.cross_section("operand", "cluster", every=2)
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_only_the_loads_of_one_operand_carry_the_hint(operand: str, cluster: tuple[int, int]) -> None:
    def built(first: Any) -> Build:
        config = WgmmaConfig((64, 64, 64), 1, cluster=cluster, stages=3, raster_rows=4, evict_first=first)
        return build(GEMM, config.schedule(GEMM))

    hinted, plain = built(operand), built("")
    loads = {stmt.map.operand: stmt.evict_first for _, stmt in walk(hinted.kernel.body) if isinstance(stmt, TmaLoad)}
    assert loads == {name: name == operand for name in "AB"}
    assert "L2::evict_first" in hinted.source.text and "L2::evict_first" not in plain.source.text
    (found, run), (expected, _) = (run_on_simulator(one, make_operands(GEMM)) for one in (hinted, plain))
    assert not run.errors and np.array_equal(found, expected)


@pytest.mark.parametrize("swap_ab", [False, True])
def test_what_is_stored_may_leave_first_beside_an_operand(swap_ab: bool) -> None:
    gemm = Gemm(200, 136, 192, BF16, out=BF16, b=Order.COL)
    tile, subtile = ((64, 64, 64), 32) if not swap_ab else ((64, 64, 64), 64)

    def built(first: Any) -> Build:
        config = WgmmaConfig(tile, 1, stages=3, raster_rows=4, swap_ab=swap_ab, subtile=subtile, evict_first=first)
        return build(gemm, config.schedule(gemm))

    hinted, plain = built("BC"), built("B")
    for one, first in ((hinted, True), (plain, False)):
        boxes = [stmt for _, stmt in walk(one.kernel.body) if isinstance(stmt, TmaLoad | TmaStore)]
        assert {stmt.map.operand: stmt.evict_first for stmt in boxes} == {"A": False, "B": True, "C": first}
    assert "bulk_group.L2::cache_hint" in hinted.source.text and "bulk_group.L2" not in plain.source.text
    (found, run), (expected, _) = (run_on_simulator(one, make_operands(gemm)) for one in (hinted, plain))
    assert not run.errors and np.array_equal(found, expected)


def test_the_hint_is_for_what_tma_copies() -> None:
    with pytest.raises(ScheduleError, match="the hint is for what TMA copies"):
        Schedule(Stage("A", Space.SHARED, under="k"), Transfer("A_tile", Route.ASYNC, evict_first=True)).apply(GEMM)


def test_an_operand_with_one_or_two_readers_of_each_tile_leaves_first() -> None:
    by_row, by_column = WgmmaConfig((64, 64, 64), 1, raster_rows=1), WgmmaConfig((64, 64, 64), 1, raster_rows=16)

    def first(config: WgmmaConfig, rows: int, columns: int) -> str:
        return str(leaves_first(config, Gemm(64 * rows, 64 * columns, 64, BF16, out=BF16)))

    assert [first(by_column, rows, 40) for rows in (1, 2, 3)] == ["B", "B", ""]
    assert [first(by_row, rows, columns) for rows, columns in ((1, 40), (2, 40), (40, 2))] == ["B", "", "A"]


@pytest.mark.parametrize(("count", "first"), [(1, "B"), (57, "B"), (120, "B"), (121, ""), (1000, "")])
def test_b_of_a_batch_leaves_first_where_a_and_c_then_stay(count: int, first: str) -> None:
    """48 x 1336 and 48 x 1392 have 0.26 MB: 121 of them more than 30 MiB. Groups have one reader, and a record of their
    own."""
    kernel, gemm = WgmmaConfig((48, 192, 64), 1, raster_rows=16, swap_ab=True), Gemm(48, 1336, 1392, BF16, out=BF16)
    rows = gemm.m * (gemm.n + gemm.k) * 2
    assert (count * rows > 30 << 20) is (count > 1 and first == "")
    assert str(leaves_first(kernel, gemm, count)) == first
    assert str(leaves_first(kernel, gemm, count, readers=1)) == "B"


def test_a_result_leaves_first_where_the_l2_does_not_hold_it() -> None:
    staged, narrow, alone = (WgmmaConfig((128, 256, 64), raster_rows=16, subtile=subtile) for subtile in (64, 32, 0))
    large, odd, parts = (Gemm(8192, n, 512, BF16, out=BF16) for n in (8192, 8191, 8192 + 32))
    small = Gemm(1024, 1024, 512, BF16, out=BF16)
    assert [str(leaves_first(staged, gemm)) for gemm in (large, odd, parts, small)] == ["C", "", "", ""]
    assert (
        str(leaves_first(alone, large)) == str(leaves_first(narrow, large)) == ""
        and str(leaves_first(staged, small, count=64)) == "C"
    )
    assert str(leaves_first(staged, Gemm(256, 1 << 18, 512, BF16, out=BF16))) == "BC"
