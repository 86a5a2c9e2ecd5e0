"""Rung 10: a warp level between block and thread.

Each warp computes 64 x 64 in four sub-tiles of 64 x 16; inside, lanes are 8 x 4 and each holds 8 x 4 results of each
sub-tile.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import NO_B_CONFLICTS, TWO_BARRIERS
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Unroll,
    Vectorize,
)


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_sub")),
        Split("n_in", 64, into=("n_warp", "n_sub")),
        Split("m_sub", 64, into=("m_iter", "m_lanes")),
        Split("n_sub", 16, into=("n_iter", "n_lanes")),
        Split("m_lanes", 8, into=("m_lane", "m_reg")),
        Split("n_lanes", 4, into=("n_lane", "n_reg")),
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
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


WARP_TILED = Rung(
    ladder="worklog",
    number=10,
    slug="warp_tiled",
    idea="a warp tile between block and thread tile, computed in sub-tiles",
    schedule=schedule,
    claims=(
        NO_B_CONFLICTS,
        TWO_BARRIERS,
    ),
    builds_on="9",
    original_tflops={"NVIDIA H200": 36.342},
)
