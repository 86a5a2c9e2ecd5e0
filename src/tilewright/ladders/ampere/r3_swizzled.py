"""3: XOR-swizzled tiles. The 16-byte chunks of a row are permuted by its number, so no matrix meets a bank twice."""

from tilewright.dtypes import F16
from tilewright.kernels.mma_steps import matrices, nest, staged, swizzled
from tilewright.ladders.ampere.claims import (
    NO_LOAD_CONFLICTS,
    NO_STORE_CONFLICTS,
    TENSOR_CORES,
    TWO_BARRIERS,
    matrices_of,
)
from tilewright.ladders.ampere.r1_fragments import TILES
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm, TILES),
        *matrices(gemm),
        *swizzled(gemm, TILES),
    )


SWIZZLED = Rung(
    ladder="ampere",
    number=3,
    slug="swizzled",
    idea="chunks of 16 bytes permuted by an XOR with their row, instead of a skew: no bank conflicts, no padding",
    schedule=schedule,
    claims=(
        TENSOR_CORES,
        TWO_BARRIERS,
        NO_LOAD_CONFLICTS,
        NO_STORE_CONFLICTS,
        Claim("6 ldmatrix for 16 mma", lambda c, g: matrices_of(c, g, 6, 16)),
    ),
    builds_on="2",
    problem={"dtype": F16, "out": F16},
)
