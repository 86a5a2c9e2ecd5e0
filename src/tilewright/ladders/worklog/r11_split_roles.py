"""Rung 11: two buffers, and the halves of the block alternate: one copies the next tile while the other computes."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Vectorize,
)


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 256, into=("n_block", "n_in")),
        Split("m_in", 128, into=("m_warp", "m_sub")),
        Split("n_in", 32, into=("n_warp", "n_sub")),
        Split("m_sub", 64, into=("m_iter", "m_lanes")),
        Split("n_sub", 32, into=("n_iter", "n_lanes")),
        Split("m_lanes", 8, into=("m_lane", "m_reg")),
        Split("n_lanes", 8, into=("n_lane", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder(
            "m_block",
            "n_block",
            "m_warp",
            "n_warp",
            "m_lane",
            "n_lane",
            "k_tile",
            "k_in",
            "m_iter",
            "n_iter",
            "m_reg",
            "n_reg",
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("m_lane", "n_lane", into="lane"),
        Bind("lane", Level.LANE),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", rows="k"),
        Relayout("B_tile", rows="k"),
        Pipeline("k_tile", 2, alternating=True),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Epilogue(),
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
