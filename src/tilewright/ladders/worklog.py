"""Ladder `worklog`: fp32 on CUDA cores, from one thread an element to asynchronous copies."""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Route
from tilewright.ladders import worklog_points as points
from tilewright.ladders.rung import (
    B_TAKES_EIGHT,
    COALESCED_STORES,
    NINE_EIGHTHS,
    NO_B_CONFLICTS,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    SCATTERED_STORES,
    TWO_BARRIERS,
    Choices,
    Claim,
    Ladder,
    fragments,
    in_vectors,
    loads,
    on_grid,
    sized,
    staged,
)
from tilewright.layout.arrangement import Interleaved
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Transfer,
    Unroll,
    Vectorize,
)

WORKLOG = Ladder("worklog")


@WORKLOG.rung(
    "one thread computes one element of C; neighbouring threads stand in neighbouring rows",
    Claim(
        "a warp reads 32 rows of A at once: 32 sectors a request",
        lambda c, g: c.of_origin("A").global_loads.sectors_per_request == 32,
    ),
    Claim(
        "every thread of a warp reads the same element of B",
        lambda c, g: c.of_origin("B").global_loads.sectors_per_request == 1,
    ),
    SCATTERED_STORES,
    Claim("each result takes 2K loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == 2 * g.k),
)
def naive(gemm: Gemm) -> Schedule:
    """One thread for each element of C, and threads numbered down the rows.

    A warp's 32 threads hold 32 rows: each reads its own row of A, K elements from the next, and writes its own row of
    C.
    """
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "n_thread", "m_thread"),
        Bind("m_block", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Bind("m_thread", Level.BLOCK_X),
        Bind("n_thread", Level.BLOCK_Y),
        Accumulate(over="k"),
        Epilogue(),
    )


@WORKLOG.rung(
    "neighbouring threads stand in neighbouring columns, so a warp reads one row segment of B",
    Claim(
        "a warp reads one element of A: 1 sector a request",
        lambda c, g: c.of_origin("A").global_loads.sectors_per_request == 1,
    ),
    Claim(
        "a warp reads 128 bytes of B: 4 sectors a request",
        lambda c, g: c.of_origin("B").global_loads.sectors_per_request == 4,
    ),
    COALESCED_STORES,
    Claim("each result still takes 2K loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == 2 * g.k),
)
def coalesced(gemm: Gemm) -> Schedule:
    """The same work, threads numbered along the rows of C.

    A warp now reads 32 neighbouring elements of B, 128 bytes in one request, and one element of A for all its threads.
    """
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "m_thread", "n_thread"),
        Bind("m_block", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k"),
        Epilogue(),
    )


@WORKLOG.rung(
    "tiles of A and B are copied into shared memory, and read from there 32 times",
    loads(Space.GLOBAL, over=16),
    Claim("each result takes 2K loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == 2 * g.k),
    NO_LOAD_CONFLICTS,
    TWO_BARRIERS,
)
def shared(gemm: Gemm) -> Schedule:
    """Tiles of A and B staged in shared memory.

    Each element of global memory is read once for the 32 threads that need it; two barriers in each step over k keep
    filling and reading apart.
    """
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Split("k", 32, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in"),
        Bind("m_block", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Unroll("k_in"),
        Epilogue(),
    )


@WORKLOG.rung(
    "each thread computes a column of 8 results from one value of B held in a register",
    loads(Space.GLOBAL, over=32),
    NINE_EIGHTHS,
    NO_LOAD_CONFLICTS,
    TWO_BARRIERS,
)
def thread_tile_1d(gemm: Gemm) -> Schedule:
    """Each thread computes a column of 8 results.

    One value of B, held in a register, serves 8 multiply-adds: shared memory is read 9 times for 8 of them, not 16.
    """
    return Schedule(
        Split("m", 64, into=("m_block", "m_in")),
        Split("n", 64, into=("n_block", "n_thread")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("k", 8, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Stage("B", Space.REGISTER, under="k_in"),
        Unroll("k_in"),
        Epilogue(),
    )


def thread_tiles(tile: int, depth: int) -> Schedule:
    """8 x 8 results a thread, in blocks of tile x tile, `depth` elements of k at a time."""
    return Schedule(
        Split("m", tile, into=("m_block", "m_in")),
        Split("n", tile, into=("n_block", "n_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 8, into=("n_thread", "n_reg")),
        Split("k", depth, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"),
        *on_grid(),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        *staged(),
        *fragments("k_in"),
        Unroll("k_in"),
        Epilogue(),
    )


@WORKLOG.rung(
    "each thread computes an outer product of 8 x 8 results from registers",
    loads(Space.GLOBAL, over=64),
    loads(Space.SHARED, over=4),
    TWO_BARRIERS,
)
def thread_tile_2d(gemm: Gemm) -> Schedule:
    """Each thread computes an outer product of 8 x 8 results.

    8 values of A and 8 of B, held in registers, serve 64 multiply-adds: a quarter of a load for each. A matrix smaller
    than the large tile would leave most of each block idle.
    """
    return thread_tiles(128 if min(gemm.m, gemm.n) >= 128 else 64, 8)


@WORKLOG.rung(
    "every access moves 16 bytes; the A tile is transposed so that its register loads can too",
    Claim(
        "a warp reads 512 bytes at once: 16 sectors a request", lambda c, g: c.global_loads.sectors_per_request == 16
    ),
    Claim(
        "the A fragments of a warp come in two wavefronts a load",
        lambda c, g: c.of_origin("A_frag").shared_loads.wavefronts_per_request == 2,
    ),
    B_TAKES_EIGHT,
    loads(Space.GLOBAL, over=256),
    loads(Space.SHARED, over=16),
    TWO_BARRIERS,
)
def vectorised(gemm: Gemm) -> Schedule:
    """16 bytes at once, to and from global and shared memory.

    The A tile is stored transposed, so that the 8 values of A that a thread needs for one k lie side by side too.
    """
    return in_vectors(thread_tile_2d(gemm))


@WORKLOG.rung(
    "the B tile is stored permuted: reads of one register column fall in different banks",
    NO_B_CONFLICTS,
    TWO_BARRIERS,
)
def interleaved_b(gemm: Gemm) -> Schedule:
    """The B tile stored permuted, so that a warp's reads of one register column touch neighbouring words.

    Column 8q + r of a row lies at 16r + q: the 16 threads that each read their r-th column read 16 words in a row.
    """
    return (
        vectorised(gemm)
        .replace(Relayout("B_tile", rows="k"), Relayout("B_tile", rows="k", arrangement=Interleaved(8)))
        .replace(Vectorize("B_frag", 4))
    )


@WORKLOG.rung(
    "instead of a permutation, the rows of the B tile are padded by 5 words",
    Claim(
        "the pad cannot help reads inside one row: a column of B fragments takes four wavefronts, as without it",
        lambda c, g: c.of_origin("B_frag").shared_loads.wavefronts_per_request == 4,
    ),
    TWO_BARRIERS,
    builds_on="6",
)
def padded_b(gemm: Gemm) -> Schedule:
    """Instead of permuting, the B tile's rows padded by 5 words.

    The pad breaks 16-byte alignment, so fragments of B are loaded a word at a time; threads 8 columns apart still meet
    in the same banks, which the pad cannot change inside one row.
    """
    return (
        vectorised(gemm)
        .replace(Relayout("B_tile", rows="k"), Relayout("B_tile", rows="k", pad=5))
        .replace(Vectorize("B_frag", 4))
    )


@WORKLOG.rung(
    "tile sizes are searched under the divisibility rules; several tiles a thread, strided",
    TWO_BARRIERS,
    builds_on="6",
    choices=Choices(points.strided, points.strided_at),
)
def autotuned(gemm: Gemm) -> Schedule:
    """Tile sizes searched, 256 threads.

    Threads stand 16 x 16; each holds several tiles of TM x TN, strided over the block's tile (virtual threads). The
    points are those that the original's rules allow; `tilewright search worklog/9` measures them, and the one that
    stands here was found fastest on an H200 at 4096^3 (benchmarks/results/search_worklog_9.jsonl).
    """
    return points.strided_at(gemm, points.BEST_STRIDED)


@WORKLOG.rung(
    "a warp tile between block and thread tile, computed in sub-tiles",
    NO_B_CONFLICTS,
    TWO_BARRIERS,
)
def warp_tiled(gemm: Gemm) -> Schedule:
    """A warp level between block and thread.

    Each warp computes 64 x 64 in four sub-tiles of 64 x 16; inside, lanes are 8 x 4 and each holds 8 x 4 results of
    each sub-tile.
    """
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_sub")),
        Split("n_in", 64, into=("n_warp", "n_sub")),
        Split("m_sub", 64, into=("m_iter", "m_lanes")),
        Split("n_sub", 16, into=("n_iter", "n_lanes")),
        Split("m_lanes", 8, into=("m_lane", "m_reg")),
        Split("n_lanes", 4, into=("n_lane", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "m_lane", "n_lane", "k_tile", "k_in"),
            *("m_iter", "n_iter", "m_reg", "n_reg"),
        ),
        *on_grid(),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("m_lane", "n_lane", into="lane"),
        Bind("lane", Level.LANE),
        Accumulate(over="k_tile"),
        *staged(vector=4, rows="k"),
        *fragments("k_in", vector=4),
        Unroll("k_in"),
        Epilogue(),
    )


@WORKLOG.rung(
    "two shared buffers; one half of the threads copies the next tile while the other half computes",
    Claim("three barriers for two steps over k", lambda c, g: c.barriers_per_k_step == 3),
)
def split_roles(gemm: Gemm) -> Schedule:
    """Two buffers, and the halves of the block alternate: one copies the next tile while the other computes."""
    return (
        sized(warp_tiled(gemm), n=256, m_in=128, n_in=32, n_sub=32, n_lanes=8)
        .insert(Pipeline("k_tile", 2, alternating=True), after=Relayout("B_tile", rows="k"))
        .replace(Unroll("k_in"))
    )


@WORKLOG.rung(
    "two shared buffers filled by cp.async while the other is used",
    ONE_BARRIER,
    slug="async",
    builds_on="10",
)
def asynchronous(gemm: Gemm) -> Schedule:
    """Two buffers filled by asynchronous copies, one barrier a step.

    The transposed A tile takes 4-byte copies, which is its price; B goes 16 bytes at a time.
    """
    return warp_tiled(gemm).insert(
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", 2),
        after=Relayout("B_tile", rows="k"),
    )


@WORKLOG.rung(
    "128 accumulators per thread, Z-order lanes, two stages, k unrolled, serpentine FMA order; all autotuned",
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    label="best",
    choices=Choices(points.of_best, points.best_at),
)
def best(gemm: Gemm) -> Schedule:
    """All ideas together, as a preset of the family `kernels.simt`.

    128 accumulators per thread, so that shared memory keeps up with the FMA pipes; warps of 8 x 4 or 4 x 8 lanes in Z
    order, whose fragment loads merge in pairs; the next tile fetched while this one is used, one barrier per k tile;
    FMAs in an order that the register file's reuse cache likes; k fully unrolled. `tilewright search worklog/best`
    measures the points.
    """
    return points.best_at(gemm, points.BEST)
