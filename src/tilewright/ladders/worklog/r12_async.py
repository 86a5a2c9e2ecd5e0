"""Rung 12: two buffers filled by asynchronous copies, one barrier a step.

The transposed A tile takes 4-byte copies, which is its price; B goes 16 bytes at a time.
"""

from tilewright.ir.program import Route
from tilewright.ladders.claims import ONE_BARRIER
from tilewright.ladders.rung import Rung
from tilewright.ladders.worklog import r10_warp_tiled
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Relayout, Schedule, Transfer


def schedule(gemm: Gemm) -> Schedule:
    return r10_warp_tiled.schedule(gemm).insert(
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", 2),
        after=Relayout("B_tile", rows="k"),
    )


ASYNC = Rung(
    ladder="worklog",
    number=12,
    slug="async",
    idea="two shared buffers filled by cp.async while the other is used",
    schedule=schedule,
    claims=(ONE_BARRIER,),
    builds_on="10",
    original_tflops={"NVIDIA H200": 20.248},
)
