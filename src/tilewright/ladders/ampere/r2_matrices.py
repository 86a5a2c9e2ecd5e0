"""2: ldmatrix. A warp loads four matrices of eight rows at once; where rows run across k, transposed on the way."""

from tilewright.dtypes import F16
from tilewright.kernels.mma_steps import matrices, nest, staged
from tilewright.ladders.ampere.claims import TENSOR_CORES, TWO_BARRIERS, matrices_of
from tilewright.ladders.ampere.r1_fragments import SKEW_BYTES, TILES
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Relayout, Schedule


def schedule(gemm: Gemm) -> Schedule:
    skew = SKEW_BYTES // gemm.dtype.bytes
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm, TILES),
        *matrices(gemm),
        Relayout("A_tile", pad=skew),
        Relayout("B_tile", pad=skew),
    )


MATRICES = Rung(
    ladder="ampere",
    number=2,
    slug="matrices",
    idea="ldmatrix: a warp loads four matrices of eight rows with one instruction",
    schedule=schedule,
    claims=(
        TENSOR_CORES,
        TWO_BARRIERS,
        Claim("6 ldmatrix for 16 mma", lambda c, g: matrices_of(c, g, 6, 16)),
    ),
    builds_on="1",
    problem={"dtype": F16, "out": F16},
)
