"""Step 3: consecutive threads copy consecutive words."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
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
        Distribute("A_tile"),
        Distribute("B_tile"),
        Epilogue(),
    )


S3 = Rung(
    ladder="te",
    number=4,
    label="3",
    slug="coalesced_fetch",
    idea="consecutive threads copy consecutive words",
    schedule=schedule,
    claims=(
        Claim(
            "a warp copies 128 bytes at once: 4 sectors a request", lambda c, g: c.global_loads.sectors_per_request == 4
        ),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="2b",
    problem={"a": Order.COL, "b": Order.ROW},
)
