"""Rung 2: the same work, threads numbered along the rows of C.

A warp now reads 32 neighbouring elements of B, 128 bytes in one request, and one element of A for all its threads.
"""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Epilogue, Fuse, Reorder, Schedule, Split


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "m_thread", "n_thread"),
        Bind("m_block", Level.GRID_X),
        Bind("n_block", Level.GRID_Y),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k"),
        Epilogue(),
    )


COALESCED = Rung(
    ladder="worklog",
    number=2,
    slug="coalesced",
    idea="neighbouring threads stand in neighbouring columns, so a warp reads one row segment of B",
    schedule=schedule,
    claims=(
        Claim(
            "a warp reads one element of A: 1 sector a request",
            lambda c, g: c.of_origin("A").global_loads.sectors_per_request == 1,
        ),
        Claim(
            "a warp reads 128 bytes of B: 4 sectors a request",
            lambda c, g: c.of_origin("B").global_loads.sectors_per_request == 4,
        ),
        Claim(
            "a warp stores 128 bytes of C: 4 sectors a request", lambda c, g: c.global_stores.sectors_per_request == 4
        ),
        Claim(
            "each result still takes 2K loads from global memory", lambda c, g: c.per_result(Space.GLOBAL) == 2 * g.k
        ),
    ),
    builds_on="1",
    original_tflops={"NVIDIA H200": 6.228},
)
