"""v07 with 16-byte accesses."""

from tilewright.dtypes import F16
from tilewright.ladders.claims import F16_WMMA, TWO_BARRIERS
from tilewright.ladders.hierarchy import v07_wmma
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return (
        v07_wmma.schedule(gemm)
        .replace(Distribute("A_tile"), Distribute("A_tile", vector=8))
        .replace(Distribute("B_tile"), Distribute("B_tile", vector=8))
        .replace(Distribute("C_tile"), Distribute("C_tile", vector=16 // gemm.accumulate.bytes))
    )


V07_VECTORISED = Rung(
    ladder="hierarchy",
    number=13,
    label="v07_vectorised",
    slug="wmma_vectorised",
    idea="every access moves 16 bytes",
    schedule=schedule,
    claims=(
        F16_WMMA,
        TWO_BARRIERS,
    ),
    builds_on="v07",
    original_tflops={"NVIDIA H200": 118.8},
    problem={"dtype": F16, "accumulate": F16, "out": F16},
)
