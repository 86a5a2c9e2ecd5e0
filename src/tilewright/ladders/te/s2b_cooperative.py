"""Step 2b: the copies split over the 16 x 16 threads, a run of elements each."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Pattern
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Reorder, Schedule, Split, Stage


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
        Distribute("A_tile", pattern=Pattern.BLOCKED),
        Distribute("B_tile", pattern=Pattern.BLOCKED),
        Epilogue(),
    )


S2B = Rung(
    ladder="te",
    number=3,
    label="2b",
    slug="cooperative",
    idea="the copies are split over the threads, each a run of 8 elements",
    schedule=schedule,
    claims=(
        Claim("each result takes K/64 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 64),
        Claim(
            "threads 8 elements apart touch 32 sectors a request", lambda c, g: c.global_loads.sectors_per_request == 32
        ),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="2",
    problem={"a": Order.COL, "b": Order.ROW},
)
