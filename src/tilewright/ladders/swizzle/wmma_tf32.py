"""wmma tf32: tensor cores by WMMA m16n16k8, f32 in memory rounded to tf32, accumulators in f32."""

from tilewright.dtypes import F32, TF32
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TF32_WMMA, TWO_BARRIERS
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
        Split("k", 16, into=("k_tile", "k_in")),
        Split("k_in", 8, into=("k_step", "k_wmma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step", "m_frag", "n_frag"),
            *("m_wmma", "n_wmma", "k_wmma"),
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize("m_wmma", "n_wmma", "k_wmma", using="wmma.m16n16k8"),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", pad=8),
        Relayout("B_tile", pad=8),
        Stage("A", Space.REGISTER, under="k_step"),
        Stage("B", Space.REGISTER, under="k_step"),
        Epilogue(),
        Stage("C", Space.SHARED),
        Distribute("C_tile", vector=4),
    )


WMMA_TF32 = Rung(
    ladder="swizzle",
    number=5,
    label="wmma_tf32",
    slug="wmma_tf32",
    idea="tensor cores by WMMA 16 x 16 x 8: operands rounded to tf32, accumulators in f32",
    schedule=schedule,
    claims=(
        TF32_WMMA,
        TWO_BARRIERS,
    ),
    builds_on="opt",
    problem={"dtype": F32, "product": TF32},
)
