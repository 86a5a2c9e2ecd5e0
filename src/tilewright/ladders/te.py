"""Ladder `te`: a tensor expression and its schedule, both operands K-major, primitive by primitive."""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Pattern
from tilewright.ladders.hierarchy import one_element_a_thread
from tilewright.ladders.rung import (
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    TWO_BARRIERS,
    Claim,
    Ladder,
    fragments,
    loads,
    on_grid,
    sized,
    wide_copies,
)
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Pipeline,
    Reorder,
    Schedule,
    Split,
    Stage,
    Vectorize,
)

TE = Ladder("te", first=0, a=Order.COL, b=Order.ROW)


@TE.rung(
    "rows of C on blocks, columns on threads; the accumulator is C itself",
    Claim(
        "C is loaded and stored again for each of the K multiply-adds of a result",
        lambda c, g: (
            c.of_origin("C").global_stores.requests * g.k == c.of_origin("C").global_loads.requests * (g.k + 1)
        ),
    ),
    label="0",
)
def naive(gemm: Gemm) -> Schedule:
    """i on blockIdx.x, j on threadIdx.x; the sum is kept in C."""
    return Schedule(
        Split("n", 1024, into=("n_block", "n_thread")),
        Reorder("m", "n_block", "n_thread"),
        Bind("m", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Bind("n_thread", Level.BLOCK_X),
    )


@TE.rung(
    "blocks of 32 x 32 threads; the sum is kept in a register",
    Claim("each result takes 2K loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == 2 * g.k),
    label="1",
)
def blocked(gemm: Gemm) -> Schedule:
    """Blocks of 32 x 32, the sum in a register."""
    return one_element_a_thread(fast="n")


@TE.rung(
    "thread tiles of 8 x 8, A and B cached in shared memory and registers; every thread copies whole tiles",
    Claim(
        "each result takes 4K loads from global memory: every thread copies whole tiles",
        lambda c, g: c.per_result(Space.GLOBAL) == 4 * g.k,
    ),
    TWO_BARRIERS,
    label="2",
)
def thread_tile(gemm: Gemm) -> Schedule:
    """8 x 8 results a thread, tiles of A and B cached in shared memory and registers.

    Without cooperative fetch every thread of the block copies the whole tile: right, and very slow.
    """
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 8, into=("n_thread", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"),
        *on_grid(),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        *fragments("k_in"),
        Epilogue(),
    )


def _copied(gemm: Gemm, pattern: Pattern) -> Schedule:
    copies = (Distribute(tile, pattern=pattern) for tile in ("A_tile", "B_tile"))
    return thread_tile(gemm).insert(*copies, after=Stage("B", Space.REGISTER, under="k_in"))


@TE.rung(
    "the copies are split over the threads, each a run of 8 elements",
    loads(Space.GLOBAL, over=64),
    Claim("threads 8 elements apart touch 32 sectors a request", lambda c, g: c.global_loads.sectors_per_request == 32),
    TWO_BARRIERS,
    label="2b",
)
def cooperative(gemm: Gemm) -> Schedule:
    """The copies split over the 16 x 16 threads, a run of elements each."""
    return _copied(gemm, Pattern.BLOCKED)


@TE.rung(
    "consecutive threads copy consecutive words",
    Claim("a warp copies 128 bytes at once: 4 sectors a request", lambda c, g: c.global_loads.sectors_per_request == 4),
    TWO_BARRIERS,
    label="3",
)
def coalesced_fetch(gemm: Gemm) -> Schedule:
    """Consecutive threads copy consecutive words."""
    return _copied(gemm, Pattern.CYCLIC)


@TE.rung(
    "8 virtual threads an axis: a thread's columns are 16 apart, so a warp reads neighbouring words",
    NO_LOAD_CONFLICTS,
    TWO_BARRIERS,
    label="3v",
)
def virtual_threads(gemm: Gemm) -> Schedule:
    """A thread's rows and columns are strided over the block's tile."""
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 16, into=("m_virtual", "m_threads")),
        Split("n_in", 16, into=("n_virtual", "n_threads")),
        Split("m_threads", 1, into=("m_thread", "m_reg")),
        Split("n_threads", 1, into=("n_thread", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder(
            "m_block", "n_block", "m_virtual", "n_virtual", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"
        ),
        *on_grid(),
        Bind("m_virtual", Level.VTHREAD),
        Bind("n_virtual", Level.VTHREAD),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        *fragments("k_in"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Epilogue(),
    )


@TE.rung(
    "16-byte loads from global and shared memory; 2 x 2 virtual threads",
    NO_LOAD_CONFLICTS,
    loads(Space.SHARED, over=16),
    TWO_BARRIERS,
    label="4",
)
def vectorised(gemm: Gemm) -> Schedule:
    """4-wide global loads, and 2 x 2 virtual threads so that register loads are 4-wide too."""
    larger = sized(virtual_threads(gemm), m_in=64, n_in=64, m_threads=4, n_threads=4)
    vectors = (Vectorize(name, 4) for name in ("A_frag", "B_frag", "C"))
    return wide_copies(larger).insert(*vectors, after=Distribute("B_tile", vector=4))


@TE.rung("both shared tiles have two stages", ONE_BARRIER, label="5")
def double_buffered(gemm: Gemm) -> Schedule:
    """Both shared tiles double buffered."""
    return vectorised(gemm).insert(Pipeline("k_tile", 2), after=Distribute("B_tile", vector=4))
