"""v07 with two buffers: the next tile is loaded into registers while this one is used."""

from tilewright.dtypes import F16
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
        Distribute("A_tile", vector=8),
        Distribute("B_tile", vector=8),
        Relayout("A_tile", pad=16),
        Relayout("B_tile", pad=16),
        Prefetch("A_tile"),
        Prefetch("B_tile"),
        Pipeline("k_tile", 2),
        Stage("A", Space.REGISTER, under="k_tile"),
        Stage("B", Space.REGISTER, under="k_tile"),
        Epilogue(),
        Stage("C", Space.SHARED),
        Distribute("C_tile", vector=16 // gemm.accumulate.bytes),
    )


V07_DOUBLE_BUFFERED = Rung(
    ladder="hierarchy",
    number=14,
    label="v07_double_buffered",
    slug="wmma_double_buffered",
    idea="two shared buffers, the next tile prefetched into registers",
    schedule=schedule,
    claims=(
        Claim(
            "tensor cores do all the multiply-adds: each result takes K/16 * 2/256 instructions of a warp",
            lambda c, g: c.instructions["HMMA"] == g.m * g.n * g.k // 2048,
        ),
        Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1),
    ),
    builds_on="v07_vectorised",
    original_tflops={"NVIDIA H200": 79.7},
    problem={"dtype": F16, "accumulate": F16, "out": F16},
)
