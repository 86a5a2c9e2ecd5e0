"""Step 3, virtual threads: a thread's rows and columns are strided over the block's tile."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Reorder, Schedule, Split, Stage


def schedule(gemm: Gemm) -> Schedule:
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
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Bind("m_virtual", Level.VTHREAD),
        Bind("n_virtual", Level.VTHREAD),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Epilogue(),
    )


S3V = Rung(
    ladder="te",
    number=5,
    label="3v",
    slug="virtual_threads",
    idea="8 virtual threads an axis: a thread's columns are 16 apart, so a warp reads neighbouring words",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        TWO_BARRIERS,
    ),
    builds_on="3",
    problem={"a": Order.COL, "b": Order.ROW},
)
