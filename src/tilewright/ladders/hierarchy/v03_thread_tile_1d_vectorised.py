"""v03 with 16-byte copies."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 64, into=("m_block", "m_in")),
        Split("n", 64, into=("n_block", "n_thread")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("k", 8, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_reg"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Stage("B", Space.REGISTER, under="k_in"),
        Unroll("k_in"),
        Epilogue(),
    )


V03_VECTORISED = Rung(
    ladder="hierarchy",
    number=5,
    label="v03_vectorised",
    slug="thread_tile_1d_vectorised",
    idea="the copies move 16 bytes at once",
    schedule=schedule,
    claims=(
        Claim("each result takes K/128 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 128),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="v03",
)
