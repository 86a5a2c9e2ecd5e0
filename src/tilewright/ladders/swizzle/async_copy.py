"""async copy: the B tile by cp.async; A still through registers, because it is transposed on the way."""

from tilewright.ir.program import Route
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, ONE_BARRIER, TWO_WAVEFRONTS
from tilewright.ladders.rung import Rung
from tilewright.ladders.swizzle import conflict_free
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Prefetch, Schedule, Transfer


def schedule(gemm: Gemm) -> Schedule:
    return conflict_free.schedule(gemm).replace(Prefetch("B_tile"), Transfer("B_tile", Route.ASYNC))


ASYNC_COPY = Rung(
    ladder="swizzle",
    number=3,
    label="async_copy",
    slug="async_copy",
    idea="the B tile is copied asynchronously, 16 bytes at once",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        TWO_WAVEFRONTS,
        ONE_BARRIER,
    ),
    builds_on="conflict_free",
)
