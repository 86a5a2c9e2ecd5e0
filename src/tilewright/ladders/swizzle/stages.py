"""multi-stage: rings of two, three and four stages filled by cp.async.

The stage number is a counter that starts again, not a remainder: three stages cost no division.
"""

from functools import partial

from tilewright.dtypes import F32, TF32
from tilewright.ir.program import Route
from tilewright.ladders.claims import ONE_BARRIER, PAST_REGISTERS, TF32_WMMA
from tilewright.ladders.rung import Rung
from tilewright.ladders.swizzle import wmma_tf32
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Relayout, Schedule, Transfer


def schedule(gemm: Gemm, stages: int) -> Schedule:
    return wmma_tf32.schedule(gemm).insert(
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", stages),
        after=Relayout("B_tile", pad=8),
    )


def ring(stages: int, number: int, builds_on: str) -> Rung:
    """The rung whose ring has so many stages."""
    words = {2: "two", 3: "three", 4: "four"}
    return Rung(
        ladder="swizzle",
        number=number,
        label=f"stages_{stages}",
        slug=f"stages_{stages}",
        idea=f"a ring of {words[stages]} stages, filled by cp.async",
        schedule=partial(schedule, stages=stages),
        claims=(
            TF32_WMMA,
            PAST_REGISTERS,
            ONE_BARRIER,
        ),
        builds_on=builds_on,
        problem={"dtype": F32, "product": TF32},
    )


STAGES_2 = ring(2, 6, "wmma_tf32")
STAGES_3 = ring(3, 7, "stages_2")
STAGES_4 = ring(4, 8, "stages_3")
