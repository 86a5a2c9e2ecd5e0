"""Rung 1: one thread for each element of C, and threads numbered down the rows.

A warp's 32 threads hold 32 rows: each reads its own row of A, K elements from the next, and writes its own row of C.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Epilogue, Reorder, Schedule, Split


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "n_thread", "m_thread"),
        Bind("m_block", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Bind("m_thread", Level.BLOCK_X),
        Bind("n_thread", Level.BLOCK_Y),
        Accumulate(over="k"),
        Epilogue(),
    )


NAIVE = Rung(
    ladder="worklog",
    number=1,
    slug="naive",
    idea="one thread computes one element of C; neighbouring threads stand in neighbouring rows",
    schedule=schedule,
    claims=(
        Claim(
            "a warp reads 32 rows of A at once: 32 sectors a request",
            lambda c, g: c.of_origin("A").global_loads.sectors_per_request == 32,
        ),
        Claim(
            "every thread of a warp reads the same element of B",
            lambda c, g: c.of_origin("B").global_loads.sectors_per_request == 1,
        ),
        Claim(
            "a warp stores 32 rows of C at once: 32 sectors a request",
            lambda c, g: c.global_stores.sectors_per_request == 32,
        ),
        Claim("each result takes 2K loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == 2 * g.k),
    ),
    original_tflops={"NVIDIA H200": 0.4987},
)
