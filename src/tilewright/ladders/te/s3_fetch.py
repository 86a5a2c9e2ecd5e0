"""Step 3: consecutive threads copy consecutive words."""

from tilewright.ir.program import Pattern
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.ladders.te import s2b_cooperative
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import Distribute, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return (
        s2b_cooperative.schedule(gemm)
        .replace(Distribute("A_tile", pattern=Pattern.BLOCKED), Distribute("A_tile"))
        .replace(Distribute("B_tile", pattern=Pattern.BLOCKED), Distribute("B_tile"))
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
        TWO_BARRIERS,
    ),
    builds_on="2b",
    problem={"a": Order.COL, "b": Order.ROW},
)
