"""Slots of shared memory that have the scales of several blocks of k: filled by TMA with one tile, read with the next
ones, over tiles of C that a block computes one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import E4M3, F32
from tilewright.errors import SimulationError
from tilewright.ir.async_stmt import TmaLoad
from tilewright.ir.stmt import If
from tilewright.ir.visit import walk
from tilewright.kernels.wgmma import WgmmaConfig, deepest_ring, shared_bytes
from tilewright.lowering import block_scales as lowered
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.problem.block_scales import BOX_BLOCKS, BlockScales
from tilewright.toolchain import build

TILE = WgmmaConfig((64, 128, 128), 1, stages=3, subtile=64, promote_every=128)
KINDS: dict[str, WgmmaConfig] = {
    "one consumer": TILE,
    "two consumers": replace(TILE, tile=(128, 64, 128), consumers=2, subtile=32, stages=5),
    "ping-pong": replace(TILE, tile=(64, 96, 128), consumers=2, ping_pong=True, stages=4),
    "cluster": replace(TILE, tile=(64, 96, 128), cluster=(2, 1), subtile=32, stages=4),
}
M, N = 136, 200


def problem(k: int) -> Gemm:
    """Scales of columns of B that lie side by side along k, in lines of 16 bytes."""
    blocks = -(-k // 128)
    scales = BlockScales(1, 128, 128, (1, M), (-(-blocks // 4) * 4, 1)).lying(M, N, k, (0, 0))
    assert scales.lie == ("side", "k")
    return Gemm(M, N, k, E4M3, out=F32, b=Order.COL, block_scales=scales)


def run(gemm: Gemm, config: WgmmaConfig, operands: Any, seed: int) -> Any:
    resident = 2 if config.cluster != (1, 1) else 1
    return build(gemm, config.schedule(gemm)).simulate(operands, resident_blocks=resident, schedule="warps", seed=seed)


@pytest.mark.cross_section("kind", "blocks", every=2)
@pytest.mark.parametrize("blocks", [1, 3, BOX_BLOCKS, BOX_BLOCKS + 1, 2 * BOX_BLOCKS + 3])
@pytest.mark.parametrize("kind", KINDS)
def test_scales_are_there_when_they_are_read_and_stay_until_then(kind: str, blocks: int) -> None:
    """Tiles of few blocks of k, of as many as a slot has, and of more; warps in any order."""
    gemm = problem(128 * blocks - 16)
    operands = make_operands(gemm)
    found = run(gemm, KINDS[kind], operands, seed=blocks)
    assert not found.findings
    verdict = check(operands, gemm.out.decode(found.c).reshape(M, N), promote_every=128)
    assert verdict.ok, verdict.message


@pytest.mark.parametrize("consumers", [1, 2])
def test_in_every_order_of_warps_and_copies(consumers: int) -> None:
    """More blocks of k than a slot has, and a ring that goes round."""
    m, n, k = 64 * consumers, 64, 128 * (BOX_BLOCKS + 1)
    scales = BlockScales(1, 128, 128, (1, m), (12, 1)).lying(m, n, k, (0, 0))
    gemm = Gemm(m, n, k, E4M3, out=F32, b=Order.COL, block_scales=scales)
    tile = replace(TILE, tile=(m, n, 128), consumers=consumers, stages=2, persistent=False, subtile=0)
    found = build(gemm, tile.schedule(gemm)).search_orders(make_operands(gemm))
    assert scales.by_tma and found.ok and found.complete, str(found)


def test_too_few_slots_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many as one slot has blocks of k, the next scales come while those before are read."""
    monkeypatch.setattr(lowered, "slots_of", lambda stages, depth: depth)
    gemm = problem(128 * 2 * BOX_BLOCKS)
    with pytest.raises(SimulationError, match=r"Race on block_scale_b_tile.*written by TMA"):
        run(gemm, KINDS["two consumers"], make_operands(gemm), 0)


def test_a_box_brings_the_scales_of_several_blocks_behind_the_tiles_of_the_first() -> None:
    body = build(gemm := problem(2048), TILE.schedule(gemm)).kernel.body
    loads = [(path, stmt) for path, stmt in walk(body) if isinstance(stmt, TmaLoad)]
    assert [stmt.map.operand for _, stmt in loads] == ["A", "B", "block_scale_a", "block_scale_b"]
    assert loads[-1][1].map.box == (BOX_BLOCKS, 1)
    guards = [stmt for _, stmt in walk(body) if isinstance(stmt, If) and stmt.then == (loads[-1][1],)]
    assert len(guards) == 1


def test_slots_take_room_from_the_ring() -> None:
    gemm = problem(2048)
    for config in (TILE, replace(TILE, tile=(128, 192, 128), consumers=2, subtile=32)):
        stages = int(deepest_ring(config, 1, gemm))
        deepest = replace(config, stages=stages)
        assert build(gemm, deepest.schedule(gemm)).kernel.shared_bytes <= int(shared_bytes(deepest, gemm))
        assert not deepest.reasons_against(gemm)


def test_scales_by_threads_are_the_same_scales() -> None:
    """Bit for bit, wherever the scales of columns lie."""
    gemm, config = problem(1200), KINDS["ping-pong"]
    assert gemm.block_scales is not None
    by_threads = replace(gemm, block_scales=replace(gemm.block_scales, lie=("", "")))
    found = [run(one, config, make_operands(one), 0).c for one in (gemm, by_threads)]
    np.testing.assert_array_equal(*found)
