"""Step 2b: the copies split over the 16 x 16 threads, a run of elements each."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Pattern
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.ladders.te import s2_thread_tile
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Distribute, Schedule, Stage


def schedule(gemm: Gemm) -> Schedule:
    return s2_thread_tile.schedule(gemm).insert(
        Distribute("A_tile", pattern=Pattern.BLOCKED),
        Distribute("B_tile", pattern=Pattern.BLOCKED),
        after=Stage("B", Space.REGISTER, under="k_in"),
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
        TWO_BARRIERS,
    ),
    builds_on="2",
    problem={"a": Order.COL, "b": Order.ROW},
)
