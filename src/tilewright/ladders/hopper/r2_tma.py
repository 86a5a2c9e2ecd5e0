"""2: TMA. One thread issues the tile copies, and an mbarrier signals their completion; a ring of four stages."""

from tilewright.dtypes import BF16
from tilewright.ladders.hopper.claims import ONE_BARRIER, brought, tensor_cores
from tilewright.ladders.hopper.tiles import Tiles, by_engine, nest, staged, stored
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Schedule

TILES = Tiles()
STAGES = 4


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm),
        *by_engine(),
        Pipeline("k_tile", STAGES),
        *stored(gemm),
    )


TMA = Rung(
    ladder="hopper",
    number=2,
    slug="tma",
    idea="TMA: one thread issues the tile copies; mbarriers signal their completion",
    schedule=schedule,
    claims=(tensor_cores(TILES), brought(TILES), ONE_BARRIER),
    builds_on="1",
    problem={"dtype": BF16, "out": BF16},
)
