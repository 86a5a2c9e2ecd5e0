"""Step 1: blocks of 32 x 32, the sum in a register."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Accumulate, Bind, Epilogue, Reorder, Schedule, Split


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "m_thread", "n_thread"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        Accumulate(over="k"),
        Epilogue(),
    )


S1 = Rung(
    ladder="te",
    number=1,
    label="1",
    slug="blocked",
    idea="blocks of 32 x 32 threads; the sum is kept in a register",
    schedule=schedule,
    claims=(
        Claim("each result takes 2K loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == 2 * g.k),
    ),
    builds_on="0",
    problem={"a": Order.COL, "b": Order.ROW},
)
