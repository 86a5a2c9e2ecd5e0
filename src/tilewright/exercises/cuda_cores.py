"""Exercises on CUDA cores: memory, barriers, banks."""

from __future__ import annotations

from tilewright.exercises.counts import (
    NO_LOAD_CONFLICTS,
    NO_LOADS_TO_REGISTERS,
    NO_STORE_CONFLICTS,
    barriers,
    global_loads,
    sectors_per_load,
    shared_loads_per_fma,
)
from tilewright.exercises.exercise import Exercise, Gap
from tilewright.ir.stmt import Barrier
from tilewright.problem.gemm import Gemm

GEMM = Gemm(128, 128, 64)
EDGES = Gemm(65, 33, 19)

COALESCE = Exercise(
    name="coalesce",
    title="A warp loads neighbouring columns, not rows",
    page="docs/tutorial.md, step 2",
    gemm=GEMM,
    edges=EDGES,
    goals=(sectors_per_load(2.5),),
    hints=(
        "A warp is 32 threads whose block.x coordinates follow one another. Which loop is bound to BLOCK_X?",
        "B[k, n] and B[k, n + 1] are neighbours. So the 32 threads of a warp should differ in n, not in m.",
        "The order of the last two loops decides which one block.x counts faster. Reorder them, Fuse them into one "
        "loop and bind that to BLOCK_X, or bind n_thread to BLOCK_X.",
    ),
)
TILES = Exercise(
    name="tiles",
    title="Tiles of A and B are loaded once for a block",
    page="docs/tutorial.md, step 3",
    gemm=GEMM,
    edges=EDGES,
    goals=(global_loads(4), NO_LOAD_CONFLICTS, NO_STORE_CONFLICTS),
    hints=(
        "A block can only copy what a part of k needs: cut k into tiles of 32, and let the outer loop, k_tile, enclose "
        "the inner one.",
        "Stage('A', Space.SHARED, under='k_tile') copies a tile of A when a k_tile begins, and the same for B.",
        "Without Distribute every thread copies the whole tile. Distribute('A_tile') shares the copy out over the "
        "threads. The sum must be kept over the outer loop: Accumulate(over='k_tile').",
    ),
)
RACE = Exercise(
    name="race",
    title="Mend a race: the barriers of a tiled kernel are gone",
    page="docs/tutorial.md, step 3, and docs/watch.md",
    gemm=Gemm(64, 64, 96),
    goals=(barriers(2),),
    hints=(
        "Who reads A_tile, and who wrote it? Two threads that touch one element need a barrier between them, in both "
        "directions: written before read, and read before overwritten.",
        "A tile is complete when all threads have stored their elements of A_tile and of B_tile.",
        "The second iteration overwrites the tiles of the first. So one barrier stands between the stores and the "
        "loop over k_in, the other before the first store of an iteration.",
    ),
    gap=Gap("worklog/3", "barrier", lambda stmt: isinstance(stmt, Barrier)),
)
THREAD_TILE = Exercise(
    name="thread_tile",
    title="A thread computes 8 x 8 results from registers",
    page="docs/tutorial.md, step 5",
    gemm=GEMM,
    edges=EDGES,
    goals=(shared_loads_per_fma(1 / 4), global_loads(1)),
    hints=(
        "A tile of a x b results takes a + b loads for a * b multiply-adds. For 1/4, a = b = 8 will do.",
        "Cut n as m is cut: a block of 128 x 128, n_in into n_thread and n_reg. Which loops does Reorder end with?",
        "B and A both need Stage(..., Space.REGISTER, under='k_in'), so each element is loaded once for 8 results.",
    ),
)
VECTORS = Exercise(
    name="vectors",
    title="Every access moves 16 bytes",
    page="docs/tutorial.md, step 6",
    gemm=GEMM,
    edges=EDGES,
    goals=(global_loads(1 / 4), shared_loads_per_fma(1 / 16)),
    hints=(
        "Copies from global memory get wider by Distribute('A_tile', vector=4).",
        "Vectorize('A_frag', 4) is refused while the 8 elements of A that a thread needs lie in 8 rows of A_tile.",
        "Relayout('A_tile', rows='k') stores the tile transposed: a row for each k. Then m runs along it.",
    ),
)
CONFLICTS = Exercise(
    name="conflicts",
    title="Remove the bank conflicts of the loads of B",
    page="docs/tutorial.md, step 9",
    gemm=GEMM,
    edges=EDGES,
    goals=(NO_LOAD_CONFLICTS, shared_loads_per_fma(1 / 16), global_loads(1 / 4)),
    hints=(
        "`tilewright explain FILE` names the access and the lanes that share a bank. Eight lanes load 128 bytes in a "
        "wavefront: all banks, if their vectors follow one another.",
        "The 8 columns of a thread need not be neighbours. Two pieces of 4 columns, half a tile apart, are 8 as well.",
        "Cut n_in twice: Split('n_in', 64, into=('n_iter', 'n_lanes')), Split('n_lanes', 4, into=('n_thread', "
        "'n_reg')), and Bind('n_iter', Level.VTHREAD). The same for m keeps A as it is.",
    ),
)
STORES = Exercise(
    name="stores",
    title="Store a transposed tile without bank conflicts",
    page="docs/tutorial.md, step 9, and `tilewright relayout --help`",
    gemm=GEMM,
    edges=EDGES,
    goals=(NO_STORE_CONFLICTS, NO_LOAD_CONFLICTS, shared_loads_per_fma(1 / 16), global_loads(1 / 4)),
    hints=(
        "A thread loads 4 neighbouring k of one row m, and stores them to 4 rows of A_tile. Which words do the lanes "
        "of a warp store to?",
        "A pad moves the rows to other banks, but by the same amount for all lanes. An XOR of the column with the row "
        "moves each row differently.",
        "`tilewright relayout FILE A_tile` searches a layout that no access conflicts with, and proves it.",
    ),
)
WARP_TILE = Exercise(
    name="warp_tile",
    title="3 loads from shared memory for 64 multiply-adds",
    page="docs/tutorial.md, step 10",
    gemm=GEMM,
    edges=EDGES,
    goals=(shared_loads_per_fma(3 / 64), NO_LOAD_CONFLICTS, global_loads(1 / 4)),
    hints=(
        "With vectors of 4, a thread tile of a x b takes (a + b) / 4 loads for a * b multiply-adds. 8 x 16 gives 3/64.",
        "Half as many threads, then: a warp can have 64 x 64 results, as 8 x 4 lanes with 8 x 16 results each.",
        "Split m_in and n_in by 64 into warps, then n_sub by 16 into 4 pieces of 4 columns; "
        "Bind('warp', Level.WARP), Bind('lane', Level.LANE).",
    ),
)
ASYNC_COPY = Exercise(
    name="async_copy",
    title="cp.async fills one tile while the other is multiplied",
    page="docs/tutorial.md, step 12",
    gemm=GEMM,
    edges=EDGES,
    goals=(NO_LOADS_TO_REGISTERS, barriers(1), NO_LOAD_CONFLICTS),
    hints=(
        "Transfer('A_tile', Route.ASYNC) lets cp.async copy a tile.",
        "With one copy of the tile there is nothing to do meanwhile. How many tiles must shared memory hold?",
        "Pipeline('k_tile', 2) gives each tile two stages, and places the waits.",
    ),
)

CUDA_CORES = (COALESCE, TILES, RACE, THREAD_TILE, VECTORS, CONFLICTS, STORES, WARP_TILE, ASYNC_COPY)
