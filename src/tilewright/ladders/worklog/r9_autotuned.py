"""Rung 9: tile sizes searched, 256 threads.

Each thread holds several tiles of 8 x 8 (virtual threads), strided over the block's tile. The search is
`tilewright tune`; what stands here is what it found best on an H200 under the original's divisibility rules.
"""

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
        Split("m_in", 64, into=("m_iter", "m_lanes")),
        Split("n_in", 64, into=("n_iter", "n_lanes")),
        Split("m_lanes", 4, into=("m_thread", "m_reg")),
        Split("n_lanes", 4, into=("n_thread", "n_reg")),
        Split("k", 16, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_iter", "n_iter", "m_reg", "n_reg"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Bind("m_iter", Level.VTHREAD),
        Bind("n_iter", Level.VTHREAD),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", transposed=True),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


AUTOTUNED = Rung(
    ladder="worklog",
    number=9,
    slug="autotuned",
    idea="tile sizes are searched under the divisibility rules; several tiles a thread, strided",
    schedule=schedule,
    claims=(
        Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="6",
    original_tflops={"NVIDIA H200": 31.175},
)
