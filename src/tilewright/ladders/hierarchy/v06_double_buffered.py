"""v06 with two buffers: the next tile is loaded into registers while this one is used."""

from tilewright.ladders.claims import ONE_BARRIER
from tilewright.ladders.hierarchy import v06_warp_tiles_vectorised
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Prefetch, Relayout, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return v06_warp_tiles_vectorised.schedule(gemm).insert(
        Prefetch("A_tile"), Prefetch("B_tile"), Pipeline("k_tile", 2), after=Relayout("B_tile", rows="k")
    )


V06_DOUBLE_BUFFERED = Rung(
    ladder="hierarchy",
    number=11,
    label="v06_double_buffered",
    slug="warp_tiles_double_buffered",
    idea="two shared buffers, the next tile prefetched into registers",
    schedule=schedule,
    claims=(ONE_BARRIER,),
    builds_on="v06_vectorised",
    original_tflops={"NVIDIA H200": 14.6},
)
