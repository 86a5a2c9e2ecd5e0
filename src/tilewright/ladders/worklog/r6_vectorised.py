"""Rung 6: 16 bytes at once, to and from global and shared memory.

The A tile is stored transposed, so that the 8 values of A that a thread needs for one k lie side by side too.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import B_TAKES_EIGHT, TWO_BARRIERS
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
        Relayout("B_tile", rows="k"),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


VECTORISED = Rung(
    ladder="worklog",
    number=6,
    slug="vectorised",
    idea="every access moves 16 bytes; the A tile is transposed so that its register loads can too",
    schedule=schedule,
    claims=(
        Claim(
            "a warp reads 512 bytes at once: 16 sectors a request",
            lambda c, g: c.global_loads.sectors_per_request == 16,
        ),
        Claim(
            "the A fragments of a warp come in two wavefronts a load",
            lambda c, g: c.of_origin("A_frag").shared_loads.wavefronts_per_request == 2,
        ),
        B_TAKES_EIGHT,
        Claim("each result takes K/256 loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == g.k / 256),
        Claim("each result takes K/16 loads from shared memory", lambda c, g: c.per_result(Space.SHARED) == g.k / 16),
        TWO_BARRIERS,
    ),
    builds_on="5",
    original_tflops={"NVIDIA H200": 31.403},
)
