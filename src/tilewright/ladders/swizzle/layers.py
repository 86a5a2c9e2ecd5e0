"""block swizzle: the grid folded into layers of 8 columns of tiles, one after another, for hits in the L2 cache."""

from tilewright.dtypes import F32, TF32
from tilewright.ir.program import Level, RasterOrder
from tilewright.ladders.claims import ONE_BARRIER, PAST_REGISTERS, TF32_WMMA
from tilewright.ladders.rung import Rung
from tilewright.ladders.swizzle import stages
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Bind, Raster, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return stages.schedule(gemm, 4).insert(Raster(RasterOrder.LAYERS, group=8), after=Bind("n_block", Level.GRID_X))


LAYERS = Rung(
    ladder="swizzle",
    number=9,
    label="layers",
    slug="layers",
    idea="the grid folded into layers of 8 columns of tiles, for hits in the L2 cache",
    schedule=schedule,
    claims=(
        TF32_WMMA,
        PAST_REGISTERS,
        ONE_BARRIER,
    ),
    builds_on="stages_4",
    problem={"dtype": F32, "product": TF32},
)
