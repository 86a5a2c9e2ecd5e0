"""Step 5: both shared tiles double buffered."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Pipeline,
    Reorder,
    Schedule,
    Split,
    Stage,
    Vectorize,
)


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_virtual", "m_threads")),
        Split("n_in", 64, into=("n_virtual", "n_threads")),
        Split("m_threads", 4, into=("m_thread", "m_reg")),
        Split("n_threads", 4, into=("n_thread", "n_reg")),
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
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Pipeline("k_tile", 2),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Epilogue(),
    )


S5 = Rung(
    ladder="te",
    number=7,
    label="5",
    slug="double_buffered",
    idea="both shared tiles have two stages",
    schedule=schedule,
    claims=(Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1),),
    builds_on="4",
    problem={"a": Order.COL, "b": Order.ROW},
)
