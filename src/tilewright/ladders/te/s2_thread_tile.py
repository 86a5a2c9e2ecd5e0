"""Step 2: 8 x 8 results a thread, tiles of A and B cached in shared memory and registers.

Without cooperative fetch every thread of the block copies the whole tile: right, and very slow.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Accumulate, Bind, Epilogue, Reorder, Schedule, Split, Stage


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
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Epilogue(),
    )


S2 = Rung(
    ladder="te",
    number=2,
    label="2",
    slug="thread_tile",
    idea="thread tiles of 8 x 8, A and B cached in shared memory and registers; every thread copies whole tiles",
    schedule=schedule,
    claims=(
        Claim(
            "each result takes 4K loads from global memory: every thread copies whole tiles",
            lambda c, g: c.per_result(Space.GLOBAL) == 4 * g.k,
        ),
        TWO_BARRIERS,
    ),
    builds_on="1",
    problem={"a": Order.COL, "b": Order.ROW},
)
