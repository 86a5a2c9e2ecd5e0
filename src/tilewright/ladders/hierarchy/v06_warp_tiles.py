"""v06: warp tiles of 64 x 32, lanes 8 down and 4 across, single accesses."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Claim, Rung
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
)


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_lanes")),
        Split("n_in", 32, into=("n_warp", "n_lanes")),
        Split("m_lanes", 8, into=("m_lane", "m_reg")),
        Split("n_lanes", 8, into=("n_lane", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_warp", "n_warp", "m_lane", "n_lane", "k_tile", "k_in", "m_reg", "n_reg"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("m_lane", "n_lane", into="lane"),
        Bind("lane", Level.LANE),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Relayout("A_tile", rows="k"),
        Relayout("B_tile", rows="k"),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Unroll("k_in"),
        Epilogue(),
    )


V06 = Rung(
    ladder="hierarchy",
    number=9,
    label="v06",
    slug="warp_tiles",
    idea="2-D warp tiles; lanes 8 (M) by 4 (N)",
    schedule=schedule,
    claims=(
        Claim("each result takes K/4 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 4),
        TWO_BARRIERS,
    ),
    builds_on="v04",
)
