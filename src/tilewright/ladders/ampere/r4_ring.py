"""4: a ring of stages filled by cp.async, two tiles ahead: copies take no registers and stall no thread."""

from tilewright.dtypes import F16
from tilewright.ir.program import Route
from tilewright.kernels.mma_steps import matrices, nest, staged, swizzled
from tilewright.ladders.ampere.claims import COPIED_ASYNCHRONOUSLY, NO_LOAD_CONFLICTS, ONE_BARRIER, TENSOR_CORES
from tilewright.ladders.ampere.r1_fragments import TILES
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Schedule, Transfer

BEST: Point = {"stages": 3}


def points() -> list[Point]:
    return [{"stages": stages} for stages in (2, 3, 4)]


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm, TILES),
        *matrices(gemm),
        *swizzled(gemm, TILES),
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", point["stages"]),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


RING = Rung(
    ladder="ampere",
    number=4,
    slug="ring",
    idea="a ring of three stages filled by cp.async, two tiles ahead",
    schedule=schedule,
    claims=(TENSOR_CORES, ONE_BARRIER, NO_LOAD_CONFLICTS, COPIED_ASYNCHRONOUSLY),
    builds_on="3",
    problem={"dtype": F16, "out": F16},
    choices=Choices(points, schedule_at),
)
