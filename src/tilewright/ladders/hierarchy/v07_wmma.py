"""v07: tensor cores. Warps of 64 x 32 in 4 x 2 fragments of 16 x 16, from rows that are skewed by 16 elements.

The accumulators are kept in f16 as in the original; accumulators in f32 and bf16 operands are as legal. Which lane
holds which result is the hardware's affair, so the block stores C through shared memory.
"""

from tilewright.dtypes import F16
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import F16_WMMA, TWO_BARRIERS
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
    Tensorize,
)


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 128, into=("m_block", "m_in")),
        Split("n", 128, into=("n_block", "n_in")),
        Split("m_in", 64, into=("m_warp", "m_own")),
        Split("n_in", 32, into=("n_warp", "n_own")),
        Split("m_own", 16, into=("m_frag", "m_wmma")),
        Split("n_own", 16, into=("n_frag", "n_wmma")),
        Split("k", 16, into=("k_tile", "k_wmma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "m_frag", "n_frag"),
            *("m_wmma", "n_wmma", "k_wmma"),
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize("m_wmma", "n_wmma", "k_wmma", using="wmma.m16n16k16"),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile"),
        Distribute("B_tile"),
        Relayout("A_tile", pad=16),
        Relayout("B_tile", pad=16),
        Stage("A", Space.REGISTER, under="k_tile"),
        Stage("B", Space.REGISTER, under="k_tile"),
        Epilogue(),
        Stage("C", Space.SHARED),
        Distribute("C_tile"),
    )


V07 = Rung(
    ladder="hierarchy",
    number=12,
    label="v07",
    slug="wmma",
    idea="tensor cores by WMMA: fragments of 16 x 16 x 16, shared rows skewed by 16 elements",
    schedule=schedule,
    claims=(
        F16_WMMA,
        TWO_BARRIERS,
    ),
    builds_on="v06",
    problem={"dtype": F16, "accumulate": F16, "out": F16},
)
