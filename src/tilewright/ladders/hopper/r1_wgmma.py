"""1: wgmma. A warpgroup multiplies 64 x 128 at once, straight from shared memory; threads copy the tiles there."""

from tilewright.dtypes import BF16
from tilewright.kernels.wgmma_steps import WgmmaTile, nest, staged, stored_per_thread
from tilewright.ladders.hopper.claims import TWO_BARRIERS, tensor_cores
from tilewright.ladders.rung import Claim, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Schedule

TILES = WgmmaTile()


def schedule(gemm: Gemm) -> Schedule:
    vector = 16 // gemm.dtype.bytes
    return Schedule(
        *nest(gemm, TILES),
        *staged(gemm),
        Distribute("A_tile", vector=vector),
        Distribute("B_tile", vector=vector),
        *stored_per_thread(gemm),
    )


WGMMA = Rung(
    ladder="hopper",
    number=1,
    slug="wgmma",
    idea="wgmma: a warpgroup multiplies 64 x 128 tiles straight from shared memory",
    schedule=schedule,
    claims=(
        tensor_cores(TILES),
        TWO_BARRIERS,
        Claim("no bank conflicts on shared stores", lambda c, g: c.shared_stores.excess_wavefronts == 0),
        Claim("no thread loads from shared memory", lambda c, g: c.shared_loads.requests == 0),
    ),
    problem={"dtype": BF16, "out": BF16},
)
