"""Scales of blocks on the hardware, bit for bit as the simulator has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.dtypes import BF16, E4M3
from tilewright.kernels.wgmma import WgmmaConfig, deepest_ring
from tilewright.problem import Gemm, Order, make_operands
from tilewright.problem.block_scales import BlockScales
from tilewright.runtime.driver import open_gpu
from tilewright.toolchain import build, run_on_gpu, run_on_simulator

pytestmark = pytest.mark.gpu

TILE = WgmmaConfig((128, 192, 128), 2, raster_rows=16, subtile=32, promote_every=128)
KINDS: dict[str, tuple[WgmmaConfig, int]] = {
    "cooperative": (TILE, 128),
    "fragments in turn": (replace(TILE, tile=(256, 128, 128), subtile=16, cluster=(1, 2)), 128),
    "ping-pong": (replace(TILE, tile=(64, 192, 128), subtile=16, ping_pong=True), 128),
    "columns of their own": (replace(TILE, tile=(128, 128, 128)), 1),
    "swap-AB, fragments in turn": (replace(TILE, tile=(88, 256, 128), subtile=64, swap_ab=True), 1),
}


@pytest.mark.parametrize("lie", ["by threads", "side", "k"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_simulator(kind: str, lie: str) -> None:
    """Tiles that end outside of C, a last block of k that is not whole, a ring that goes round; scales that TMA loads,
    and that it cannot."""
    config, columns = KINDS[kind]
    m, n, k = 300, 328, 1104
    steps_a, steps_b = (1, 302 if lie == "by threads" else 304), (12, 1) if lie == "k" and columns > 1 else (1, 328)
    scales = BlockScales(1, columns, 128, steps_a, steps_b).lying(m, n, k, (0, 0))
    assert scales.by_tma is (lie != "by threads")
    gemm = Gemm(m, n, k, E4M3, out=BF16, b=Order.COL, block_scales=scales)
    config = replace(config, stages=int(deepest_ring(config, 1, gemm)))
    assert not config.reasons_against(gemm)
    built, operands = build(gemm, config.schedule(gemm)), make_operands(gemm)
    expected, _ = run_on_simulator(built, operands)
    np.testing.assert_array_equal(run_on_gpu(built, open_gpu(), operands), expected)
