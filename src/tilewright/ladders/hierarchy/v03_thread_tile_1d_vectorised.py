"""v03 with 16-byte copies."""

from tilewright.ir.buffer import Space
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.hierarchy import v03_thread_tile_1d
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return (
        v03_thread_tile_1d.schedule(gemm)
        .replace(Distribute("A_tile"), Distribute("A_tile", vector=4))
        .replace(Distribute("B_tile"), Distribute("B_tile", vector=4))
    )


V03_VECTORISED = Rung(
    ladder="hierarchy",
    number=5,
    label="v03_vectorised",
    slug="thread_tile_1d_vectorised",
    idea="the copies move 16 bytes at once",
    schedule=schedule,
    claims=(
        Claim("each result takes K/128 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 128),
        TWO_BARRIERS,
    ),
    builds_on="v03",
)
