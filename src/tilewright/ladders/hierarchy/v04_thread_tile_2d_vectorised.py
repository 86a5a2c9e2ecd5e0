"""v04 with 16-byte copies."""

from tilewright.ir.buffer import Space
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.hierarchy import v04_thread_tile_2d
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return (
        v04_thread_tile_2d.schedule(gemm)
        .replace(Distribute("A_tile"), Distribute("A_tile", vector=4))
        .replace(Distribute("B_tile"), Distribute("B_tile", vector=4))
    )


V04_VECTORISED = Rung(
    ladder="hierarchy",
    number=7,
    label="v04_vectorised",
    slug="thread_tile_2d_vectorised",
    idea="the copies move 16 bytes at once",
    schedule=schedule,
    claims=(
        Claim("each result takes K/256 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 256),
        TWO_BARRIERS,
    ),
    builds_on="v04",
)
