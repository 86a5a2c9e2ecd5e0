"""v01: the fast thread index on columns: coalesced."""

from tilewright.ir.program import Level
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Epilogue, Reorder, Schedule, Split


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        Split("m", 32, into=("m_block", "m_thread")),
        Split("n", 32, into=("n_block", "n_thread")),
        Reorder("m_block", "n_block", "m_thread", "n_thread"),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Bind("m_thread", Level.BLOCK_Y),
        Bind("n_thread", Level.BLOCK_X),
        Accumulate(over="k"),
        Epilogue(),
    )


V01 = Rung(
    ladder="hierarchy",
    number=1,
    label="v01",
    slug="columns",
    idea="the fast thread index runs along the columns",
    schedule=schedule,
    claims=(
        Claim(
            "a warp stores 128 bytes of C: 4 sectors a request", lambda c, g: c.global_stores.sectors_per_request == 4
        ),
    ),
    builds_on="v00",
    original_tflops={"NVIDIA H200": 4.754},
)
