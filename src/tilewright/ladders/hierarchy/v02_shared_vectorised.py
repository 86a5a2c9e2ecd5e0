"""v02 with 16-byte copies: a quarter of the threads copy, four elements each."""

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Distribute, Epilogue, Fuse, Reorder, Schedule, Split, Stage, Unroll


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Split("k", 32, into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Unroll("k_in"),
        Epilogue(),
    )


V02_VECTORISED = Rung(
    ladder="hierarchy",
    number=3,
    label="v02_vectorised",
    slug="shared_vectorised",
    idea="the copies move 16 bytes at once",
    schedule=schedule,
    claims=(
        Claim(
            "a warp copies 512 bytes at once: 16 sectors a request",
            lambda c, g: c.global_loads.sectors_per_request == 16,
        ),
        Claim("two barriers a step over k", lambda c, g: c.barriers_per_k_step == 2),
    ),
    builds_on="v02",
)
