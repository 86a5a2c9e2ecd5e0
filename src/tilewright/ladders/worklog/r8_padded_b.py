"""Rung 8: instead of permuting, the B tile's rows padded by 5 words.

The pad breaks 16-byte alignment, so fragments of B are loaded a word at a time; threads 8 columns apart still meet in
the same banks, which the pad cannot change inside one row.
"""

from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
from tilewright.ladders.worklog import r6_vectorised
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Relayout, Schedule, Vectorize


def schedule(gemm: Gemm) -> Schedule:
    return (
        r6_vectorised.schedule(gemm)
        .replace(Relayout("B_tile", rows="k"), Relayout("B_tile", rows="k", pad=5))
        .replace(Vectorize("B_frag", 4))
    )


PADDED_B = Rung(
    ladder="worklog",
    number=8,
    slug="padded_b",
    idea="instead of a permutation, the rows of the B tile are padded by 5 words",
    schedule=schedule,
    claims=(
        Claim(
            "the pad cannot help reads inside one row: a column of B fragments takes four wavefronts, as without it",
            lambda c, g: c.of_origin("B_frag").shared_loads.wavefronts_per_request == 4,
        ),
        TWO_BARRIERS,
    ),
    builds_on="6",
    original_tflops={"NVIDIA H200": 23.235},
)
