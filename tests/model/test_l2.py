"""The estimate of L2 traffic: what it must be in plain cases, and how far it is from Nsight Compute."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.device.catalog import A100, H200, RTX_4090
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder
from tilewright.ladders import find_rung
from tilewright.model import l2
from tilewright.model.l2 import Strips, estimate_l2, strips_of
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Raster, Reorder, Schedule, Split, Stage
from tilewright.toolchain import build, grid_of
from tilewright.units import MIB

RECORDED = Path(__file__).parents[2] / "benchmarks/results/l2_hit_rate_h200.json"
ROWS: list[dict[str, Any]] = json.loads(RECORDED.read_text())["rows"]


def schedule(*raster: Raster) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 64, into=("n_block", "n_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 4, into=("n_thread", "n_reg")),
        Split("k", 8, into=("k_tile", "k_in")),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        *raster,
    )


STAGED = Schedule(
    Accumulate("k_tile"),
    *(Stage("A", Space.SHARED, under="k_tile"), Stage("B", Space.SHARED, under="k_tile")),
    *(Distribute("A_tile"), Distribute("B_tile")),
)


def staged(*raster: Raster) -> Schedule:
    order = Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg")
    return schedule(*raster) + Schedule(order) + STAGED


def strips(gemm: Gemm, steps: Schedule) -> Strips | None:
    built = build(gemm, steps)
    return strips_of(built.program, built.kernel, grid_of(built.kernel, gemm))


def square(side: int, strip_bytes: int = 4 * MIB) -> Strips:
    return Strips([(row, column) for row in range(side) for column in range(side)], strip_bytes, strip_bytes, 0)


class TestEstimate:
    def test_what_fits_is_read_once(self) -> None:
        """Eight strips of A and of B, 64 MiB in all, through a cache that holds them."""
        roomy = replace(RTX_4090, l2_bytes=128 * MIB)
        found = estimate_l2(square(8), roomy, 2)
        assert found.dram_read_bytes == 16 * 4 * MIB
        assert found.requested_bytes == found.looked_up_bytes == 64 * 2 * 4 * MIB
        assert found.hit_rate == pytest.approx(1 - 16 / 128)

    def test_one_block_reads_all_from_dram(self) -> None:
        found = estimate_l2(square(1), RTX_4090, 1)
        assert found.dram_read_bytes == found.requested_bytes and found.hit_rate == 0

    def test_a_cache_without_room_serves_only_blocks_that_run_together(self) -> None:
        """On one SM, one block at a time: nobody shares, nothing is kept."""
        tiny = replace(RTX_4090, l2_bytes=0, sm_count=1)
        found = estimate_l2(square(4), tiny, 1)
        assert found.dram_read_bytes == found.requested_bytes

    def test_a_line_of_the_far_half_is_looked_up_twice_and_kept_twice(self) -> None:
        one, two = (replace(H200, l2_bytes=1 << 40, l2_partitions=parts) for parts in (1, 2))
        whole, halves = estimate_l2(square(16), one, 1), estimate_l2(square(16), two, 1)
        assert whole.dram_read_bytes == halves.dram_read_bytes
        extra = halves.looked_up_bytes - whole.looked_up_bytes
        # Each half asks the other once for each of its lines, if its own SMs want it: all want B, half want a row of A.
        assert whole.dram_read_bytes / 2 < extra < whole.dram_read_bytes
        assert halves.hit_rate < whole.hit_rate

    def test_a_younger_block_falls_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two blocks of one SM that share a strip of A read it from DRAM twice, unless they run side by side."""
        small = replace(RTX_4090, sm_count=1, l2_bytes=MIB)
        pair = Strips([(0, 0), (0, 1)], 4 * MIB, 4 * MIB, 0)
        assert estimate_l2(pair, small, 2).dram_read_bytes > 15 * MIB
        monkeypatch.setattr(l2, "YOUNGER_PACE", 1.0)
        assert estimate_l2(pair, small, 2).dram_read_bytes == 12 * MIB

    def test_writes_hit(self) -> None:
        quiet = estimate_l2(square(4), H200, 2)
        writing = estimate_l2(replace(square(4), c_bytes=MIB), H200, 2)
        assert writing.hit_bytes - quiet.hit_bytes == writing.looked_up_bytes - quiet.looked_up_bytes == 16 * MIB


class TestStrips:
    def test_blocks_in_the_order_of_launch(self) -> None:
        found = strips(Gemm(256, 256, 64), staged())
        assert found is not None
        assert found.tiles == [(row, column) for row in range(2) for column in range(4)]
        assert (found.a_bytes, found.b_bytes, found.c_bytes) == (128 * 64 * 4, 64 * 64 * 4, 128 * 64 * 4)

    def test_a_raster_order_is_followed(self) -> None:
        found = strips(Gemm(384, 256, 64), staged(Raster(RasterOrder.SNAKE, 2)))
        assert found is not None
        down = [(row, column) for row in range(3) for column in (0, 1)]
        up = [(row, column) for row in (2, 1, 0) for column in (2, 3)]
        assert found.tiles == down + up

    @pytest.mark.parametrize("order", RasterOrder)
    def test_every_tile_is_visited_once(self, order: RasterOrder) -> None:
        found = strips(Gemm(1100, 700, 64), staged(Raster(order)))
        assert found is not None
        assert sorted(found.tiles) == [(row, column) for row in range(9) for column in range(11)]

    def test_there_is_no_estimate_where_blocks_read_again_and_again(self) -> None:
        gemm = Gemm(256, 256, 64)
        assert strips(gemm, schedule()) is None
        assert strips(gemm, find_rung("worklog/1").schedule(gemm)) is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['rung']}-{row['size']}")
def test_it_is_as_far_from_nsight_compute_as_the_page_says(row: dict[str, Any]) -> None:
    rung, size = find_rung(row["rung"]), row["size"]
    found = strips(rung.gemm(size, size, size), rung.schedule(rung.gemm(size, size, size)))
    assert found is not None
    estimate = estimate_l2(found, H200, 2)
    assert abs(100 * estimate.hit_rate - row["lts__t_sector_hit_rate.pct"]) < 2.5
    assert estimate.dram_read_bytes == pytest.approx(row["dram__bytes_read.sum"], rel=0.03)


def test_halves_are_those_of_large_gpus() -> None:
    assert (H200.l2_partitions, A100.l2_partitions, RTX_4090.l2_partitions) == (2, 2, 1)
