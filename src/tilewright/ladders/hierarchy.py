"""Ladder `hierarchy`: eight versions that follow the memory hierarchy; any shape, padded leading dimensions."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import F16
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders import worklog
from tilewright.ladders.rung import (
    COALESCED_STORES,
    F16_WMMA,
    NINE_EIGHTHS,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    SCATTERED_STORES,
    TWO_BARRIERS,
    Claim,
    Ladder,
    fragments,
    loads,
    on_grid,
    rows_along_k,
    staged,
    wide_copies,
    wide_fragments,
)
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Prefetch,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Tensorize,
    Unroll,
)

HIERARCHY = Ladder("hierarchy", first=0)
F16_PROBLEM: dict[str, Any] = {"dtype": F16, "accumulate": F16, "out": F16}
WIDE_COPIES = "the copies move 16 bytes at once"
WIDE_ACCESSES = "every access moves 16 bytes"
PREFETCHED = "two shared buffers, the next tile prefetched into registers"


def one_element_a_thread(*, fast: str) -> Schedule:
    """A block of 32 x 32 threads, an element each, whose fast index runs along `fast`, m or n."""
    x, y = Level.BLOCK_X, Level.BLOCK_Y
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "m_thread", "n_thread"),
        *on_grid(),
        Bind("m_thread", x if fast == "m" else y),
        Bind("n_thread", x if fast == "n" else y),
        Accumulate(over="k"),
        Epilogue(),
    )


@HIERARCHY.rung(
    "one thread an element; the fast thread index runs down the rows",
    SCATTERED_STORES,
    label="v00",
)
def rows(gemm: Gemm) -> Schedule:
    """The fast thread index on rows: not coalesced."""
    return one_element_a_thread(fast="m")


@HIERARCHY.rung("the fast thread index runs along the columns", COALESCED_STORES, label="v01")
def columns(gemm: Gemm) -> Schedule:
    """The fast thread index on columns: coalesced."""
    return one_element_a_thread(fast="n")


@HIERARCHY.rung(
    "block tiles of A and B in shared memory",
    NO_LOAD_CONFLICTS,
    TWO_BARRIERS,
    label="v02",
)
def shared(gemm: Gemm) -> Schedule:
    """32 x 32 block tiles in shared memory; what lies outside the matrix loads as zero."""
    return (
        worklog.shared(gemm)
        .replace(Bind("m_block", Level.GRID_X), Bind("m_block", Level.GRID_Y))
        .replace(Bind("n_block", Level.GRID_Y), Bind("n_block", Level.GRID_X))
    )


@HIERARCHY.rung(
    WIDE_COPIES,
    Claim(
        "a warp copies 512 bytes at once: 16 sectors a request", lambda c, g: c.global_loads.sectors_per_request == 16
    ),
    TWO_BARRIERS,
    label="v02_vectorised",
)
def shared_vectorised(gemm: Gemm) -> Schedule:
    """A quarter of the threads copy, four elements each."""
    return wide_copies(shared(gemm))


@HIERARCHY.rung(
    "each thread computes a column of 8 results",
    NINE_EIGHTHS,
    TWO_BARRIERS,
    label="v03",
    builds_on="v02",
)
def thread_tile_1d(gemm: Gemm) -> Schedule:
    """A column of 8 results a thread, the value of B in a register."""
    return worklog.thread_tile_1d(gemm)


@HIERARCHY.rung(WIDE_COPIES, loads(Space.GLOBAL, over=128), TWO_BARRIERS, label="v03_vectorised")
def thread_tile_1d_vectorised(gemm: Gemm) -> Schedule:
    return wide_copies(thread_tile_1d(gemm))


@HIERARCHY.rung(
    "each thread computes 8 x 8 results from register fragments",
    loads(Space.SHARED, over=4),
    TWO_BARRIERS,
    label="v04",
    builds_on="v03",
)
def thread_tile_2d(gemm: Gemm) -> Schedule:
    """An outer product of 8 x 8 results a thread, fragments of A and B in registers."""
    return worklog.thread_tiles(128, 16)


@HIERARCHY.rung(WIDE_COPIES, loads(Space.GLOBAL, over=256), TWO_BARRIERS, label="v04_vectorised")
def thread_tile_2d_vectorised(gemm: Gemm) -> Schedule:
    return wide_copies(thread_tile_2d(gemm))


@HIERARCHY.rung(
    "every access moves 16 bytes; the A tile is transposed",
    loads(Space.SHARED, over=16),
    TWO_BARRIERS,
    label="v05",
)
def vectorised(gemm: Gemm) -> Schedule:
    """16-byte accesses everywhere, the A tile transposed."""
    return wide_fragments(rows_along_k(thread_tile_2d_vectorised(gemm)))


@HIERARCHY.rung(
    "2-D warp tiles; lanes 8 (M) by 4 (N)", loads(Space.SHARED, over=4), TWO_BARRIERS, label="v06", builds_on="v04"
)
def warp_tiles(gemm: Gemm) -> Schedule:
    """Warp tiles of 64 x 32, lanes 8 down and 4 across, single accesses."""
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_lanes")),
        Split("n_in", 32, into=("n_warp", "n_lanes")),
        Split("m_lanes", 8, into=("m_lane", "m_reg")),
        Split("n_lanes", 8, into=("n_lane", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_warp", "n_warp", "m_lane", "n_lane", "k_tile", "k_in", "m_reg", "n_reg"),
        *on_grid(),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("m_lane", "n_lane", into="lane"),
        Bind("lane", Level.LANE),
        Accumulate(over="k_tile"),
        *staged(rows="k"),
        *fragments("k_in"),
        Unroll("k_in"),
        Epilogue(),
    )


@HIERARCHY.rung(
    WIDE_ACCESSES,
    loads(Space.SHARED, over=16),
    TWO_BARRIERS,
    label="v06_vectorised",
    builds_on="v05",
)
def warp_tiles_vectorised(gemm: Gemm) -> Schedule:
    return wide_fragments(wide_copies(warp_tiles(gemm)))


@HIERARCHY.rung(PREFETCHED, ONE_BARRIER, label="v06_double_buffered")
def warp_tiles_double_buffered(gemm: Gemm) -> Schedule:
    """The next tile is loaded into registers while this one is used."""
    return warp_tiles_vectorised(gemm).insert(
        Prefetch("A_tile"), Prefetch("B_tile"), Pipeline("k_tile", 2), after=Relayout("B_tile", rows="k")
    )


@HIERARCHY.rung(
    "tensor cores by WMMA: fragments of 16 x 16 x 16, shared rows skewed by 16 elements",
    F16_WMMA,
    TWO_BARRIERS,
    label="v07",
    builds_on="v06",
    **F16_PROBLEM,
)
def wmma(gemm: Gemm) -> Schedule:
    """Tensor cores. Warps of 64 x 32 in 4 x 2 fragments of 16 x 16, from rows that are skewed by 16 elements.

    The accumulators are kept in f16 as in the original; accumulators in f32 and bf16 operands are as legal. Which lane
    holds which result is the hardware's affair, so the block stores C through shared memory.
    """
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_own")),
        Split("n_in", 32, into=("n_warp", "n_own")),
        Split("m_own", 16, into=("m_frag", "m_wmma")),
        Split("n_own", 16, into=("n_frag", "n_wmma")),
        Split("k", 16, into=("k_tile", "k_wmma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "m_frag", "n_frag"),
            *("m_wmma", "n_wmma", "k_wmma"),
        ),
        *on_grid(),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize("m_wmma", "n_wmma", "k_wmma", using="wmma.m16n16k16"),
        Accumulate(over="k_tile"),
        *staged(pad=16),
        *fragments("k_tile"),
        Epilogue(),
        Stage("C", Space.SHARED),
        Distribute("C_tile"),
    )


@HIERARCHY.rung(WIDE_ACCESSES, F16_WMMA, TWO_BARRIERS, label="v07_vectorised", **F16_PROBLEM)
def wmma_vectorised(gemm: Gemm) -> Schedule:
    return wide_copies(wmma(gemm), 8).replace(
        Distribute("C_tile"), Distribute("C_tile", vector=16 // gemm.accumulate.bytes)
    )


@HIERARCHY.rung(PREFETCHED, F16_WMMA, ONE_BARRIER, label="v07_double_buffered", **F16_PROBLEM)
def wmma_double_buffered(gemm: Gemm) -> Schedule:
    """The next tile is loaded into registers while this one is used."""
    return wmma_vectorised(gemm).insert(
        Prefetch("A_tile"), Prefetch("B_tile"), Pipeline("k_tile", 2), after=Relayout("B_tile", pad=16)
    )
