"""v01: the fast thread index on columns: coalesced."""

from tilewright.ir.program import Level
from tilewright.ladders.hierarchy import v00_rows
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Bind, Schedule


def schedule(gemm: Gemm) -> Schedule:
    return (
        v00_rows.schedule(gemm)
        .replace(Bind("m_thread", Level.BLOCK_X), Bind("m_thread", Level.BLOCK_Y))
        .replace(Bind("n_thread", Level.BLOCK_Y), Bind("n_thread", Level.BLOCK_X))
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
