"""v05: 16-byte accesses everywhere, the A tile transposed."""

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
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 8, into=("n_thread", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg", "n_reg"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
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


V05 = Rung(
    ladder="hierarchy",
    number=8,
    label="v05",
    slug="vectorised",
    idea="every access moves 16 bytes; the A tile is transposed",
    schedule=schedule,
    claims=(
        Claim("each result takes K/16 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 16),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="v04_vectorised",
    original_tflops={"NVIDIA H200": 33.405},
)
