"""Rung 7: the B tile stored permuted, so that a warp's reads of one register column touch neighbouring words.

Column 8q + r of a row lies at 16r + q: the 16 threads that each read their r-th column read 16 words in a row.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.layout.arrangement import Interleaved
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
    # A matrix smaller than the large tile would leave most of each block idle.
    tile = 128 if min(gemm.m, gemm.n) >= 128 else 64
    return Schedule(
        Split("m", tile, into=("m_block", "m_in")),
        Split("n", tile, into=("n_block", "n_in")),
        Split("m_in", 8, into=("m_thread", "m_reg")),
        Split("n_in", 8, into=("n_thread", "n_reg")),
        Split("k", 8, into=("k_tile", "k_in")),
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
        Relayout("B_tile", rows="k", arrangement=Interleaved(8)),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


INTERLEAVED_B = Rung(
    ladder="worklog",
    number=7,
    slug="interleaved_b",
    idea="the B tile is stored permuted: reads of one register column fall in different banks",
    schedule=schedule,
    claims=(
        Claim(
            "no bank conflicts on the loads of B fragments",
            lambda c, g: c.of_origin("B_frag").shared_loads.excess_wavefronts == 0,
        ),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="6",
    original_tflops={"NVIDIA H200": 28.004},
)
