"""What several rungs of ladder `hopper` claim."""

from __future__ import annotations

from tilewright.kernels.wgmma_steps import DEPTH_BYTES, WgmmaTile, tma_stores
from tilewright.ladders.rung import Claim, Counts
from tilewright.problem.gemm import Gemm

WARPS = 4
"""Warps that run one wgmma together."""


def tensor_cores(tiles: WgmmaTile) -> Claim:
    """Every multiply-add is one of wgmma's."""

    def holds(counts: Counts, gemm: Gemm) -> bool:
        each = 64 * tiles.n * (DEPTH_BYTES // gemm.dtype.bytes)
        return counts.instructions[f"{gemm.multiplied.sass}GMMA"] * each == gemm.m * gemm.n * gemm.k * WARPS

    return Claim(f"wgmma of 64 x {tiles.n} does all the multiply-adds", holds)


def brought(tiles: WgmmaTile) -> Claim:
    """TMA loads every tile once, and no thread loads anything."""
    flops = 2 * tiles.m * tiles.n / (tiles.m + tiles.n)

    def holds(counts: Counts, gemm: Gemm) -> bool:
        copied = gemm.m * gemm.n * gemm.k * (1 / tiles.m + 1 / tiles.n) * gemm.dtype.bytes
        return counts.bulk_loads.size_bytes == copied and counts.global_loads.requests == 0

    return Claim(f"TMA loads A and B, an element for {flops:.4g} FLOP; no thread loads them", holds)


TWO_BARRIERS = Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2)
ONE_BARRIER = Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1)
NO_BARRIER = Claim("no barrier of the block inside the loop over k", lambda c, g: c.barriers_per_k_step == 0)
BY_TMA = Claim(
    "TMA stores C of 2-byte elements; no thread does",
    lambda c, g: not tma_stores(g) or (c.global_stores.requests == 0 and c.bulk_stores.boxes > 0),
)
NO_STORE_CONFLICTS = Claim("no bank conflicts of stmatrix", lambda c, g: c.shared_stores.excess_wavefronts == 0)
