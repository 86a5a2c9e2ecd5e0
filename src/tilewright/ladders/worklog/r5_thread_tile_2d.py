"""Rung 5: each thread computes an outer product of 8 x 8 results.

8 values of A and 8 of B, held in registers, serve 64 multiply-adds: a quarter of a load for each.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
    # A matrix smaller than the large tile would leave most of each block idle.
    tile = 128 if min(gemm.m, gemm.n) >= 128 else 64
    return Schedule(
        Split("m", tile, into=("m_block", "m_in")),
        Split("n", tile, into=("n_block", "n_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 8, into=("n_thread", "n_reg")),
        Split("k", 8, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Unroll("k_in"),
        Epilogue(),
    )


THREAD_TILE_2D = Rung(
    ladder="worklog",
    number=5,
    slug="thread_tile_2d",
    idea="each thread computes an outer product of 8 x 8 results from registers",
    schedule=schedule,
    claims=(
        Claim("each result takes K/64 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 64),
        Claim("each result takes K/4 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 4),
        TWO_BARRIERS,
    ),
    builds_on="4",
    original_tflops={"NVIDIA H200": 25.936},
)
