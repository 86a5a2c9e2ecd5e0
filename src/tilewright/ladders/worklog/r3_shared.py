"""Rung 3: tiles of A and B staged in shared memory.

Each element of global memory is read once for the 32 threads that need it; two barriers in each step over k keep
filling and reading apart.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
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


SHARED = Rung(
    ladder="worklog",
    number=3,
    slug="shared",
    idea="tiles of A and B are copied into shared memory, and read from there 32 times",
    schedule=schedule,
    claims=(
        Claim("each result takes K/16 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 16),
        Claim("each result takes 2K loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == 2 * g.k),
        NO_LOAD_CONFLICTS,
        TWO_BARRIERS,
    ),
    builds_on="2",
    original_tflops={"NVIDIA H200": 9.049},
)
