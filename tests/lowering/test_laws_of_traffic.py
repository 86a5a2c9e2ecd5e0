"""What kernels move: each element of A and B once for each tile that multiplies it, each of C once, nothing in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lowering.traffic import Traffic, check_product
from tests.lowering.work_items import persisted
from tilewright.dtypes import BF16, F16, F32
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.toolchain import Build, build, run_on_simulator

SMALL, PERSISTENT = one_tile(64, 64, 1), persistent(64, 64, 1, subtile=64)
CONFIGS: dict[str, WgmmaConfig] = {
    "one tile": SMALL,
    "one tile, TMA store": one_tile(64, 64, 1, subtile=64),
    "two warpgroups": persistent(128, 64, 2, subtile=32),
    "two warpgroups, a tile": one_tile(128, 64, 2),
    "persistent": PERSISTENT,
    "persistent, registers": persistent(64, 64, 1, subtile=0),
    "pairs": clustered(SMALL),
    "persistent pairs": clustered(PERSISTENT),
    "cluster of 2 x 2": replace(PERSISTENT, cluster=(2, 2), stages=3),
    "pairs along n": replace(PERSISTENT, cluster=(1, 2), stages=3),
    "ping-pong": replace(PING_PONG, tile=(64, 64, 64), subtile=32, stages=3),
    "three stages": replace(PERSISTENT, stages=3),
    "two stages": replace(PERSISTENT, stages=2),
    "swap-AB": WgmmaConfig((16, 64, 64), 1, swap_ab=True, persistent=False),
}
SIZES = {"whole": (128, 128, 128), "edges": (72, 136, 200), "a tile": (64, 64, 64), "short": (128, 64, 8)}
ORDERS = [(Order.ROW, Order.ROW), (Order.COL, Order.COL)]


def traffic_of(built: Build, **options: Any) -> Traffic:
    """Of a run, whose result is right."""
    operands = make_operands(built.gemm)
    traffic = Traffic(operands)
    computed, run = run_on_simulator(built, operands, listeners=(traffic,), **options)
    verdict = check(operands, computed)
    assert verdict.ok and not run.findings, verdict.message
    return traffic


@pytest.mark.cross_section("name", "size", "orders", every=11)
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CONFIGS)
def test_warpgroups_load_each_tile_once(name: str, size: str, orders: tuple[Order, Order]) -> None:
    config = CONFIGS[name]
    gemm = Gemm(*SIZES[size], BF16, out=BF16, a=orders[0], b=orders[1], beta=0.5 if size == "edges" else 0.0)
    built = build(gemm, at_depth(config, gemm).schedule(gemm))
    traffic = traffic_of(built, resident_blocks=2 * built.kernel.cluster)
    check_product(traffic, built)
    tile, cluster = built.kernel.tile, config.cluster
    if not (gemm.m % (tile["m"] * cluster[0]) or gemm.n % (tile["n"] * cluster[1]) or gemm.k % tile["k"]):
        assert not sum(traffic.empty.values())


MMA_TILES = [((32, 32, 32), (16, 16)), ((32, 64, 32), (16, 32)), ((64, 32, 64), (32, 16)), ((16, 64, 64), (16, 16))]
"""Of which each thread copies one vector of A or B, some, or only some threads one."""

IN_PLACE = {"in_place_fragments": True, "n_outer": True}
MMA_WAYS: dict[str, dict[str, Any]] = {
    "fragments ahead": {},
    "in place": {**IN_PLACE, "copy_issue_distance": 1},
    "copies spread": {**IN_PLACE, "interleaved_copies": True},
    "copies at once": {"interleaved_copies": False},
}


@pytest.mark.cross_section("tiles", "stages", "way", "is_persistent", every=7)
@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("way", MMA_WAYS)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("tiles", MMA_TILES, ids=str)
def test_warps_load_each_tile_once(tiles: Any, stages: int, way: str, is_persistent: bool) -> None:
    gemm = Gemm(40, 72, 104, F16, out=F16, beta=0.5)
    schedule = MmaConfig(*tiles, stages=stages, **MMA_WAYS[way]).schedule(gemm)
    built = build(gemm, persisted(schedule) if is_persistent else schedule)
    check_product(traffic_of(built, resident_blocks=2 if is_persistent else None, schedule="warps"), built)


SIMT = SimtConfig((32, 64, 8), (16, 32), unroll=8)
SIMT_WAYS: dict[str, dict[str, Any]] = {
    "registers": {},
    "one block row of 16": {"tile": (16, 64, 8), "warp_tile": (16, 32)},
    "B by cp.async": {"b_transport": "cp_async", "stages": 3},
    "both by cp.async": {"b_transport": "cp_async", "a_transport": "cp_async", "stages": 3},
    "fragments ahead": {"double_buffered_fragments": True},
    "fragments ahead, B by cp.async": {"double_buffered_fragments": True, "b_transport": "cp_async", "stages": 4},
    "copies between steps": {"interleaved_copies": True, "double_buffered_fragments": True},
    "one neighbour": {"copied": 1, "columns_together": 1},
    "two neighbours": {"copied": 2, "columns_together": 2},
    "deep": {"tile": (32, 32, 32), "warp_tile": (16, 32), "unroll": 16},
}


@pytest.mark.cross_section("way", "orders", "is_persistent", every=4)
@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("orders", [(Order.ROW, Order.ROW), (Order.COL, Order.COL), (Order.ROW, Order.COL)])
@pytest.mark.parametrize("way", SIMT_WAYS)
def test_threads_load_each_tile_once(way: str, orders: tuple[Order, Order], is_persistent: bool) -> None:
    gemm = Gemm(36, 68, 44, F32, out=F32, a=orders[0], b=orders[1], beta=0.5)
    schedule = replace(SIMT, **SIMT_WAYS[way]).schedule(gemm)
    built = build(gemm, persisted(schedule) if is_persistent else schedule)
    check_product(traffic_of(built, resident_blocks=2 if is_persistent else None, schedule="warps"), built)
