"""v00: one thread an element, the fast thread index on rows (not coalesced)."""

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
        Bind("m_thread", Level.BLOCK_X),
        Bind("n_thread", Level.BLOCK_Y),
        Accumulate(over="k"),
        Epilogue(),
    )


V00 = Rung(
    ladder="hierarchy",
    number=0,
    label="v00",
    slug="rows",
    idea="one thread an element; the fast thread index runs down the rows",
    schedule=schedule,
    claims=(
        Claim(
            "a warp stores 32 rows of C at once: 32 sectors a request",
            lambda c, g: c.global_stores.sectors_per_request == 32,
        ),
    ),
    original_tflops={"NVIDIA H200": 0.499},
)
