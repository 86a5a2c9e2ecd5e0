"""3: roles. A warpgroup of its own only copies, with few registers; the other only multiplies, with many."""

from tilewright.dtypes import BF16
from tilewright.kernels.wgmma_steps import WgmmaTile, loaded_by_tma, nest, staged, stored_per_thread
from tilewright.ladders.hopper.claims import NO_BARRIER, brought, tensor_cores
from tilewright.ladders.rung import Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Schedule, Specialize

TILES = WgmmaTile()
STAGES = 6


def schedule(gemm: Gemm) -> Schedule:
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", STAGES),
        Specialize(),
        *stored_per_thread(gemm),
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
