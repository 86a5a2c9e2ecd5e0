"""v07 with two buffers: the next tile is loaded into registers while this one is used."""

from tilewright.dtypes import F16
from tilewright.ladders.claims import F16_WMMA, ONE_BARRIER
from tilewright.ladders.hierarchy import v07_wmma_vectorised
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Prefetch, Relayout, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return v07_wmma_vectorised.schedule(gemm).insert(
        Prefetch("A_tile"), Prefetch("B_tile"), Pipeline("k_tile", 2), after=Relayout("B_tile", pad=16)
    )


V07_DOUBLE_BUFFERED = Rung(
    ladder="hierarchy",
    number=14,
    label="v07_double_buffered",
    slug="wmma_double_buffered",
    idea="two shared buffers, the next tile prefetched into registers",
    schedule=schedule,
    claims=(
        F16_WMMA,
        ONE_BARRIER,
    ),
    builds_on="v07_vectorised",
    original_tflops={"NVIDIA H200": 79.7},
    problem={"dtype": F16, "accumulate": F16, "out": F16},
)
