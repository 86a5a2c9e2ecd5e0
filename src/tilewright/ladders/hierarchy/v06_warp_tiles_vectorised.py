"""v06 with 16-byte accesses."""

from tilewright.ir.buffer import Space
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.hierarchy import v06_warp_tiles
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Schedule, Stage, Vectorize


def schedule(gemm: Gemm) -> Schedule:
    return (
        v06_warp_tiles.schedule(gemm)
        .replace(Distribute("A_tile"), Distribute("A_tile", vector=4))
        .replace(Distribute("B_tile"), Distribute("B_tile", vector=4))
        .insert(
            Vectorize("A_frag", 4),
            Vectorize("B_frag", 4),
            Vectorize("C", 4),
            after=Stage("B", Space.REGISTER, under="k_in"),
        )
    )


V06_VECTORISED = Rung(
    ladder="hierarchy",
    number=10,
    label="v06_vectorised",
    slug="warp_tiles_vectorised",
    idea="every access moves 16 bytes",
    schedule=schedule,
    claims=(
        Claim("each result takes K/16 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 16),
        TWO_BARRIERS,
    ),
    builds_on="v05",
    original_tflops={"NVIDIA H200": 38.671},
)
