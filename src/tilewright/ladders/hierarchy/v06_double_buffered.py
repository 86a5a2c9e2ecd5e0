"""v06 with two buffers: the next tile is loaded into registers while this one is used."""

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
    Prefetch,
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
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", rows="k"),
        Relayout("B_tile", rows="k"),
        Prefetch("A_tile"),
        Prefetch("B_tile"),
        Pipeline("k_tile", 2),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


V06_DOUBLE_BUFFERED = Rung(
    ladder="hierarchy",
    number=11,
    label="v06_double_buffered",
    slug="warp_tiles_double_buffered",
    idea="two shared buffers, the next tile prefetched into registers",
    schedule=schedule,
    claims=(Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1),),
    builds_on="v06_vectorised",
    original_tflops={"NVIDIA H200": 14.6},
)
