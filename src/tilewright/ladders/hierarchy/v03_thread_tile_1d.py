"""v03: a column of 8 results a thread, the value of B in a register."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TWO_BARRIERS
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


V03 = Rung(
    ladder="hierarchy",
    number=4,
    label="v03",
    slug="thread_tile_1d",
    idea="each thread computes a column of 8 results",
    schedule=schedule,
    claims=(
        Claim(
            "each result takes 9K/8 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == 9 * g.k / 8
        ),
        TWO_BARRIERS,
    ),
    builds_on="v02",
    original_tflops={"NVIDIA H200": 17.167},
)
