"""5: fragments double-buffered: those of the next step over k are loaded while the instructions of this one run."""

from tilewright.dtypes import F16
from tilewright.ir.program import Route
from tilewright.kernels.mma_steps import matrices, nest, staged, swizzled
from tilewright.ladders.ampere.claims import COPIED_ASYNCHRONOUSLY, NO_LOAD_CONFLICTS, ONE_BARRIER, TENSOR_CORES
from tilewright.ladders.ampere.r1_fragments import TILES
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Prefetch, Schedule, Transfer


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm, TILES),
        *matrices(gemm),
        *swizzled(gemm, TILES),
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", 3),
        Prefetch("A_frag"),
        Prefetch("B_frag"),
    )


FRAGMENTS_AHEAD = Rung(
    ladder="ampere",
    number=5,
    slug="fragments_ahead",
    idea="the fragments of the next step over k are loaded while this one is multiplied",
    schedule=schedule,
    claims=(TENSOR_CORES, ONE_BARRIER, NO_LOAD_CONFLICTS, COPIED_ASYNCHRONOUSLY),
    builds_on="4",
    problem={"dtype": F16, "out": F16},
)
