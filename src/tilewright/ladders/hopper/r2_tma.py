"""2: TMA. One thread issues the tile copies, and an mbarrier signals their completion; a ring of four stages."""

from tilewright.dtypes import BF16
from tilewright.kernels.wgmma_steps import WgmmaTile, loaded_by_tma, nest, staged, stored_per_thread
from tilewright.ladders.hopper.claims import ONE_BARRIER, brought, tensor_cores
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Schedule

TILES = WgmmaTile()
STAGES = 4


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", STAGES),
        *stored_per_thread(gemm),
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
