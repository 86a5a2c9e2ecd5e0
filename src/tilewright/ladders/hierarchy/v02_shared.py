"""v02: 32 x 32 block tiles in shared memory; what lies outside the matrix loads as zero."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Split("k", 32, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
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


V02 = Rung(
    ladder="hierarchy",
    number=2,
    label="v02",
    slug="shared",
    idea="block tiles of A and B in shared memory",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        TWO_BARRIERS,
    ),
    builds_on="v01",
    original_tflops={"NVIDIA H200": 9.216},
)
