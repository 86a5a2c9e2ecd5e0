"""Rung 4: each thread computes a column of 8 results.

One value of B, held in a register, serves 8 multiply-adds: shared memory is read 9 times for 8 of them, not 16.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
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


THREAD_TILE_1D = Rung(
    ladder="worklog",
    number=4,
    slug="thread_tile_1d",
    idea="each thread computes a column of 8 results from one value of B held in a register",
    schedule=schedule,
    claims=(
        Claim("each result takes K/32 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 32),
        Claim(
            "each result takes 9K/8 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == 9 * g.k / 8
        ),
        NO_LOAD_CONFLICTS,
        TWO_BARRIERS,
    ),
    builds_on="3",
    original_tflops={"NVIDIA H200": 16.799},
)
