"""Ladder `swizzle`: from a double-buffered kernel to conflict-free reads, asynchronous copies and block order;
then tf32 tensor cores, rings of several stages, and a folded grid.
"""

from tilewright.ladders.rung import Rung
from tilewright.ladders.swizzle.async_copy import ASYNC_COPY
from tilewright.ladders.swizzle.base import BASE
from tilewright.ladders.swizzle.block_order import BLOCK_ORDER
from tilewright.ladders.swizzle.conflict_free import CONFLICT_FREE
from tilewright.ladders.swizzle.layers import LAYERS
from tilewright.ladders.swizzle.opt import OPT
from tilewright.ladders.swizzle.stages import STAGES_2, STAGES_3, STAGES_4
from tilewright.ladders.swizzle.wmma_tf32 import WMMA_TF32

SWIZZLE: tuple[Rung, ...] = (
    BASE,
    OPT,
    CONFLICT_FREE,
    ASYNC_COPY,
    BLOCK_ORDER,
    WMMA_TF32,
    STAGES_2,
    STAGES_3,
    STAGES_4,
    LAYERS,
)
