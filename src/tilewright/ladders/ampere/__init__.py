"""Ladder `ampere`: tensor cores with fragments of known layout, from lanes that load their own to the full kernel.

Operands of f16, bf16 or f32 rounded to tf32, in any storage order; accumulators in f32, or in f16 where the problem
asks.
"""

from tilewright.ladders.ampere.r1_fragments import FRAGMENTS
from tilewright.ladders.ampere.r2_matrices import MATRICES
from tilewright.ladders.ampere.r3_swizzled import SWIZZLED
from tilewright.ladders.ampere.r4_ring import RING
from tilewright.ladders.ampere.r5_fragments_ahead import FRAGMENTS_AHEAD
from tilewright.ladders.ampere.r6_full import FULL
from tilewright.ladders.rung import Rung

AMPERE: tuple[Rung, ...] = (FRAGMENTS, MATRICES, SWIZZLED, RING, FRAGMENTS_AHEAD, FULL)
