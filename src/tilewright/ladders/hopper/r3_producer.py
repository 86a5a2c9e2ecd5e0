"""3: roles. A warpgroup of its own only copies, with few registers; the other only multiplies, with many."""

from tilewright.dtypes import BF16
from tilewright.ladders.hopper.claims import NO_BARRIER, brought, tensor_cores
from tilewright.ladders.hopper.tiles import Tiles, by_engine, nest, staged, stored
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Schedule, Specialize

TILES = Tiles()
STAGES = 6


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm),
        *by_engine(),
        Pipeline("k_tile", STAGES),
        Specialize(),
        *stored(gemm),
    )


PRODUCER = Rung(
    ladder="hopper",
    number=3,
    slug="producer",
    idea="a warpgroup of its own copies, and hands its registers to the one that multiplies",
    schedule=schedule,
    claims=(tensor_cores(TILES), brought(TILES), NO_BARRIER),
    builds_on="2",
    problem={"dtype": BF16, "out": BF16},
)
