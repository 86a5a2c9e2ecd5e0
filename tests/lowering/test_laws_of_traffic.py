"""What kernels move: each element of A and B once for each tile that multiplies it, each of C once, nothing in vain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lowering.traffic import Traffic, check_product
from tilewright.dtypes import BF16
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_presets import PING_PONG, at_depth, clustered, one_tile, persistent
from tilewright.problem import Gemm, Order, make_operands
from tilewright.toolchain import Build, build

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
    operands = make_operands(built.gemm)
    traffic = Traffic(operands)
    built.simulate(operands, listeners=(traffic,), **options)
    return traffic


@pytest.mark.cross_section("name", "size", "orders", every=8)
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
