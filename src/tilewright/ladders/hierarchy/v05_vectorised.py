"""v05: 16-byte accesses everywhere, the A tile transposed."""

from tilewright.ir.buffer import Space
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.hierarchy import v04_thread_tile_2d_vectorised
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Relayout, Schedule, Stage, Vectorize


def schedule(gemm: Gemm) -> Schedule:
    return (
        v04_thread_tile_2d_vectorised.schedule(gemm)
        .insert(Relayout("A_tile", rows="k"), Relayout("B_tile", rows="k"), after=Distribute("B_tile", vector=4))
        .insert(
            Vectorize("A_frag", 4),
            Vectorize("B_frag", 4),
            Vectorize("C", 4),
            after=Stage("B", Space.REGISTER, under="k_in"),
        )
    )


V05 = Rung(
    ladder="hierarchy",
    number=8,
    label="v05",
    slug="vectorised",
    idea="every access moves 16 bytes; the A tile is transposed",
    schedule=schedule,
    claims=(
        Claim("each result takes K/16 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 16),
        TWO_BARRIERS,
    ),
    builds_on="v04_vectorised",
    original_tflops={"NVIDIA H200": 33.405},
)
