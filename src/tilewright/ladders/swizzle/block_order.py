"""block order: C is rasterised in a snake through panels of columns, for hits in the L2 cache."""

from tilewright.ir.program import RasterOrder
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, ONE_BARRIER, TWO_WAVEFRONTS
from tilewright.ladders.rung import Rung
from tilewright.ladders.swizzle import async_copy
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Raster, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return async_copy.schedule(gemm).insert(Raster(RasterOrder.SNAKE, group=8), after=Accumulate(over="k_tile"))


BLOCK_ORDER = Rung(
    ladder="swizzle",
    number=4,
    label="block_order",
    slug="block_order",
    idea="C is rasterised in a snake through panels of 8 columns of tiles",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        TWO_WAVEFRONTS,
        ONE_BARRIER,
    ),
    builds_on="async_copy",
)
