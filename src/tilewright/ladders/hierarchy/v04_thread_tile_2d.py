"""v04: an outer product of 8 x 8 results a thread, fragments of A and B in registers."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 8, into=("n_thread", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
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


V04 = Rung(
    ladder="hierarchy",
    number=6,
    label="v04",
    slug="thread_tile_2d",
    idea="each thread computes 8 x 8 results from register fragments",
    schedule=schedule,
    claims=(
        Claim("each result takes K/4 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 4),
        TWO_BARRIERS,
    ),
    builds_on="v03",
    original_tflops={"NVIDIA H200": 25.596},
)
