"""Rung 7: the B tile stored permuted, so that a warp's reads of one register column touch neighbouring words.

Column 8q + r of a row lies at 16r + q: the 16 threads that each read their r-th column read 16 words in a row.
"""

from tilewright.ladders.claims import NO_B_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Rung
from tilewright.ladders.worklog import r6_vectorised
from tilewright.layout.arrangement import Interleaved
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Relayout, Schedule, Vectorize


def schedule(gemm: Gemm) -> Schedule:
    return (
        r6_vectorised.schedule(gemm)
        .replace(Relayout("B_tile", rows="k"), Relayout("B_tile", rows="k", arrangement=Interleaved(8)))
        .replace(Vectorize("B_frag", 4))
    )


INTERLEAVED_B = Rung(
    ladder="worklog",
    number=7,
    slug="interleaved_b",
    idea="the B tile is stored permuted: reads of one register column fall in different banks",
    schedule=schedule,
    claims=(
        NO_B_CONFLICTS,
        TWO_BARRIERS,
    ),
    builds_on="6",
    original_tflops={"NVIDIA H200": 28.004},
)
