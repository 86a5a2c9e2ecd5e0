"""Step 5: both shared tiles double buffered."""

from tilewright.ladders.claims import ONE_BARRIER
from tilewright.ladders.rung import Rung
from tilewright.ladders.te import s4_vectorised
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Distribute, Pipeline, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return s4_vectorised.schedule(gemm).insert(Pipeline("k_tile", 2), after=Distribute("B_tile", vector=4))


S5 = Rung(
    ladder="te",
    number=7,
    label="5",
    slug="double_buffered",
    idea="both shared tiles have two stages",
    schedule=schedule,
    claims=(ONE_BARRIER,),
    builds_on="4",
    problem={"a": Order.COL, "b": Order.ROW},
)
