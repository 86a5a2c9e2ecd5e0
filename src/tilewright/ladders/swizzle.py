"""Ladder `swizzle`: from a double-buffered kernel to conflict-free reads, asynchronous copies and block order;
then tf32 tensor cores, rings of several stages, and a folded grid.
"""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import F32, TF32
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder, Route
from tilewright.ladders.hierarchy import one_element_a_thread
from tilewright.ladders.rung import (
    B_TAKES_EIGHT,
    COALESCED_STORES,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    PAST_REGISTERS,
    TF32_WMMA,
    TWO_BARRIERS,
    TWO_WAVEFRONTS,
    Ladder,
    fragments,
    in_vectors,
    on_grid,
    staged,
)
from tilewright.ladders.worklog import thread_tiles
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Tensorize,
    Transfer,
    Unroll,
)

SWIZZLE = Ladder("swizzle", first=0)
TF32_PROBLEM: dict[str, Any] = {"dtype": F32, "product": TF32}


@SWIZZLE.rung("one thread an element, coalesced", COALESCED_STORES, label="base")
def base(gemm: Gemm) -> Schedule:
    """One thread an element, coalesced, 32 x 32 threads."""
    return one_element_a_thread(fast="n")


@SWIZZLE.rung(
    "block tiles, thread tiles, 16-byte accesses and a register-prefetched double buffer",
    ONE_BARRIER,
    B_TAKES_EIGHT,
    label="opt",
)
def opt(gemm: Gemm) -> Schedule:
    """Shared tiles of 128 x 128 x 8, 8 x 8 results a thread, A transposed, 16-byte accesses, and the next tile
    prefetched into registers: one barrier a step.
    """
    return in_vectors(thread_tiles(128, 8)).insert(
        Prefetch("A_tile"), Prefetch("B_tile"), Pipeline("k_tile", 2), after=Relayout("B_tile", rows="k")
    )


@SWIZZLE.rung(
    "four 4 x 4 pieces a thread and lanes in Z order: no conflicts, and pairs of lanes merge",
    NO_LOAD_CONFLICTS,
    TWO_WAVEFRONTS,
    ONE_BARRIER,
    label="conflict_free",
)
def conflict_free(gemm: Gemm) -> Schedule:
    """The 8 x 8 thread tile read as four pieces of 4 x 4, and the lanes of a warp in Z order.

    Neighbouring lanes then read the same 16 bytes in pairs, and the hardware serves half a warp at once.
    """
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_piece", "m_threads")),
        Split("n_in", 64, into=("n_piece", "n_threads")),
        Split("m_threads", 4, into=("m_thread", "m_reg")),
        Split("n_threads", 4, into=("n_thread", "n_reg")),
        Split("m_thread", 4, into=("m_warp", "m_z")),
        Split("m_z", 2, into=("m_z1", "m_z0")),
        Split("n_thread", 8, into=("n_warp", "n_z")),
        Split("n_z", 4, into=("n_z2", "n_z10")),
        Split("n_z10", 2, into=("n_z1", "n_z0")),
        Split("k", 8, into=("k_tile", "k_in")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "n_z2", "m_z1", "n_z1", "m_z0", "n_z0", "k_tile", "k_in"),
            *("m_piece", "n_piece", "m_reg", "n_reg"),
        ),
        *on_grid(),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("n_z2", "m_z1", "n_z1", "m_z0", "n_z0", into="lane"),
        Bind("lane", Level.LANE),
        Bind("m_piece", Level.VTHREAD),
        Bind("n_piece", Level.VTHREAD),
        Accumulate(over="k_tile"),
        *staged(vector=4, rows="k"),
        Prefetch("A_tile"),
        Prefetch("B_tile"),
        Pipeline("k_tile", 2),
        *fragments("k_in", vector=4),
        Unroll("k_in"),
        Epilogue(),
    )


@SWIZZLE.rung(
    "the B tile is copied asynchronously, 16 bytes at once",
    NO_LOAD_CONFLICTS,
    TWO_WAVEFRONTS,
    ONE_BARRIER,
    label="async_copy",
)
def async_copy(gemm: Gemm) -> Schedule:
    """The B tile by cp.async; A still through registers, because it is transposed on the way."""
    return conflict_free(gemm).replace(Prefetch("B_tile"), Transfer("B_tile", Route.ASYNC))


@SWIZZLE.rung(
    "C is rasterised in a snake through panels of 8 columns of tiles",
    NO_LOAD_CONFLICTS,
    TWO_WAVEFRONTS,
    ONE_BARRIER,
    label="block_order",
)
def block_order(gemm: Gemm) -> Schedule:
    """C is rasterised in a snake through panels of columns, for hits in the L2 cache."""
    return async_copy(gemm).insert(Raster(RasterOrder.SNAKE, group=8), after=Accumulate(over="k_tile"))


@SWIZZLE.rung(
    "tensor cores by WMMA 16 x 16 x 8: operands rounded to tf32, accumulators in f32",
    TF32_WMMA,
    TWO_BARRIERS,
    label="wmma_tf32",
    builds_on="opt",
    **TF32_PROBLEM,
)
def wmma_tf32(gemm: Gemm) -> Schedule:
    """Tensor cores by WMMA m16n16k8, f32 in memory rounded to tf32, accumulators in f32."""
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_own")),
        Split("n_in", 32, into=("n_warp", "n_own")),
        Split("m_own", 16, into=("m_frag", "m_wmma")),
        Split("n_own", 16, into=("n_frag", "n_wmma")),
        Split("k", 16, into=("k_tile", "k_in")),
        Split("k_in", 8, into=("k_step", "k_wmma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step", "m_frag", "n_frag"),
            *("m_wmma", "n_wmma", "k_wmma"),
        ),
        *on_grid(),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize("m_wmma", "n_wmma", "k_wmma", using="wmma.m16n16k8"),
        Accumulate(over="k_tile"),
        *staged(vector=4, pad=8),
        *fragments("k_step"),
        Epilogue(),
        Stage("C", Space.SHARED),
        Distribute("C_tile", vector=4),
    )


def ring(gemm: Gemm, stages: int) -> Schedule:
    """A ring of stages filled by cp.async.

    The stage number is a counter that starts again, not a remainder: three stages cost no division.
    """
    return wmma_tf32(gemm).insert(
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", stages),
        after=Relayout("B_tile", pad=8),
    )


OF_A_RING = (TF32_WMMA, PAST_REGISTERS, ONE_BARRIER)


@SWIZZLE.rung("a ring of two stages, filled by cp.async", *OF_A_RING, label="stages_2", **TF32_PROBLEM)
def stages_2(gemm: Gemm) -> Schedule:
    return ring(gemm, 2)


@SWIZZLE.rung("a ring of three stages, filled by cp.async", *OF_A_RING, label="stages_3", **TF32_PROBLEM)
def stages_3(gemm: Gemm) -> Schedule:
    return ring(gemm, 3)


@SWIZZLE.rung("a ring of four stages, filled by cp.async", *OF_A_RING, label="stages_4", **TF32_PROBLEM)
def stages_4(gemm: Gemm) -> Schedule:
    return ring(gemm, 4)


@SWIZZLE.rung(
    "the grid folded into layers of 8 columns of tiles, for hits in the L2 cache",
    *OF_A_RING,
    label="layers",
    **TF32_PROBLEM,
)
def layers(gemm: Gemm) -> Schedule:
    """The grid folded into layers of 8 columns of tiles, one after another, for hits in the L2 cache."""
    return stages_4(gemm).insert(Raster(RasterOrder.LAYERS, group=8), after=Bind("n_block", Level.GRID_X))
