"""Rung 11: two buffers, and the halves of the block alternate: one copies the next tile while the other computes."""

from tilewright.ladders.rung import Claim, Rung
from tilewright.ladders.worklog import r10_warp_tiled
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Relayout, Schedule, Split, Unroll


def schedule(gemm: Gemm) -> Schedule:
    return (
        r10_warp_tiled.schedule(gemm)
        .replace(Split("n", 128, into=("n_block", "n_in")), Split("n", 256, into=("n_block", "n_in")))
        .replace(Split("m_in", 64, into=("m_warp", "m_sub")), Split("m_in", 128, into=("m_warp", "m_sub")))
        .replace(Split("n_in", 64, into=("n_warp", "n_sub")), Split("n_in", 32, into=("n_warp", "n_sub")))
        .replace(Split("n_sub", 16, into=("n_iter", "n_lanes")), Split("n_sub", 32, into=("n_iter", "n_lanes")))
        .replace(Split("n_lanes", 4, into=("n_lane", "n_reg")), Split("n_lanes", 8, into=("n_lane", "n_reg")))
        .insert(Pipeline("k_tile", 2, alternating=True), after=Relayout("B_tile", rows="k"))
        .replace(Unroll("k_in"))
    )


SPLIT_ROLES = Rung(
    ladder="worklog",
    number=11,
    slug="split_roles",
    idea="two shared buffers; one half of the threads copies the next tile while the other half computes",
    schedule=schedule,
    claims=(Claim("three barriers for two steps over k", lambda c, g: c.barriers_per_k_step == 3),),
    builds_on="10",
    original_tflops={"NVIDIA H200": 37.74},
)
