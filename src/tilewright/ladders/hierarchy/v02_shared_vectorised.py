"""v02 with 16-byte copies: a quarter of the threads copy, four elements each."""

from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.hierarchy import v02_shared
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return (
        v02_shared.schedule(gemm)
        .replace(Distribute("A_tile"), Distribute("A_tile", vector=4))
        .replace(Distribute("B_tile"), Distribute("B_tile", vector=4))
    )


V02_VECTORISED = Rung(
    ladder="hierarchy",
    number=3,
    label="v02_vectorised",
    slug="shared_vectorised",
    idea="the copies move 16 bytes at once",
    schedule=schedule,
    claims=(
        Claim(
            "a warp copies 512 bytes at once: 16 sectors a request",
            lambda c, g: c.global_loads.sectors_per_request == 16,
        ),
        TWO_BARRIERS,
    ),
    builds_on="v02",
)
