"""conflict-free: the 8 x 8 thread tile read as four pieces of 4 x 4, and the lanes of a warp in Z order.

Neighbouring lanes then read the same 16 bytes in pairs, and the hardware serves half a warp at once.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, ONE_BARRIER, TWO_WAVEFRONTS
from tilewright.ladders.rung import Rung
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
        Split("m_in", 64, into=("m_piece", "m_threads")),
        Split("n_in", 64, into=("n_piece", "n_threads")),
        Split("m_threads", 4, into=("m_thread", "m_reg")),
        Split("n_threads", 4, into=("n_thread", "n_reg")),
        Split("m_thread", 4, into=("m_warp", "m_z")),
        Split("m_z", 2, into=("m_z1", "m_z0")),
        Split("n_thread", 8, into=("n_warp", "n_z")),
        Split("n_z", 4, into=("n_z2", "n_z10")),
        Split("n_z10", 2, into=("n_z1", "n_z0")),
        Split("k", 8, into=("k_tile", "k_in")),
        Reorder(
            "m_block",
            "n_block",
            "m_warp",
            "n_warp",
            "n_z2",
            "m_z1",
            "n_z1",
            "m_z0",
            "n_z0",
            "k_tile",
            "k_in",
            "m_piece",
            "n_piece",
            "m_reg",
            "n_reg",
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse("n_z2", "m_z1", "n_z1", "m_z0", "n_z0", into="lane"),
        Bind("lane", Level.LANE),
        Bind("m_piece", Level.VTHREAD),
        Bind("n_piece", Level.VTHREAD),
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


CONFLICT_FREE = Rung(
    ladder="swizzle",
    number=2,
    label="conflict_free",
    slug="conflict_free",
    idea="four 4 x 4 pieces a thread and lanes in Z order: no conflicts, and pairs of lanes merge",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        TWO_WAVEFRONTS,
        ONE_BARRIER,
    ),
    builds_on="opt",
)
