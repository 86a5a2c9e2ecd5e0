"""1: mma.sync. Which lane holds which element is known, so each lane loads its own from shared memory.

Warps of 64 x 32 in 4 x 4 fragments of 16 x 8; rows skewed as for WMMA; results go from registers to C.
"""

from tilewright.dtypes import F16
from tilewright.kernels.mma_steps import MmaTile, nest, pairs, staged
from tilewright.ladders.ampere.claims import TENSOR_CORES, TWO_BARRIERS
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Relayout, Schedule

TILES = MmaTile()
SKEW_BYTES = 32


def schedule(gemm: Gemm) -> Schedule:
    skew = SKEW_BYTES // gemm.dtype.bytes
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm, TILES),
        *pairs(gemm),
        Relayout("A_tile", pad=skew),
        Relayout("B_tile", pad=skew),
    )


FRAGMENTS = Rung(
    ladder="ampere",
    number=1,
    slug="fragments",
    idea="mma.sync: each lane loads its own elements of every fragment from skewed rows",
    schedule=schedule,
    claims=(TENSOR_CORES, TWO_BARRIERS),
    problem={"dtype": F16, "out": F16},
)
