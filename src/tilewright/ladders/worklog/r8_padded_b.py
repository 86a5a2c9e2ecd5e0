"""Rung 8: instead of permuting, the B tile's rows padded by 5 words.

The pad breaks 16-byte alignment, so fragments of B are loaded a word at a time; threads 8 columns apart still meet in
the same banks, which the pad cannot change inside one row.
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
        Relayout("B_tile", rows="k", pad=5),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


PADDED_B = Rung(
    ladder="worklog",
    number=8,
    slug="padded_b",
    idea="instead of a permutation, the rows of the B tile are padded by 5 words",
    schedule=schedule,
    claims=(
        Claim(
            "the pad cannot help reads inside one row: a column of B fragments takes four wavefronts, as without it",
            lambda c, g: c.of_origin("B_frag").shared_loads.wavefronts_per_request == 4,
        ),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="6",
    original_tflops={"NVIDIA H200": 23.235},
)
