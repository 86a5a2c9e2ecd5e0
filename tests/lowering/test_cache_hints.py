"""What TMA reads may be the first to leave the L2: a hint that changes no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16
from tilewright.errors import ScheduleError
from tilewright.ir.async_stmt import TmaLoad
from tilewright.ir.buffer import Space
from tilewright.ir.program import Route
from tilewright.ir.visit import walk
from tilewright.kernels.wgmma import WgmmaConfig, read_once
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


def test_the_hint_is_for_what_tma_reads() -> None:
    with pytest.raises(ScheduleError, match="the hint is for what TMA reads"):
        Schedule(Stage("A", Space.SHARED, under="k"), Transfer("A_tile", Route.ASYNC, evict_first=True)).apply(GEMM)


def test_an_operand_with_one_or_two_readers_of_each_tile_is_read_once() -> None:
    by_row, by_column = WgmmaConfig((64, 64, 64), 1, raster_rows=1), WgmmaConfig((64, 64, 64), 1, raster_rows=16)
    assert [str(read_once(by_column, rows, 40)) for rows in (1, 2, 3)] == ["B", "B", ""]
    assert [str(read_once(by_row, rows, columns)) for rows, columns in ((1, 40), (2, 40), (40, 2))] == ["B", "", "A"]
