"""Ladder `worklog`: fp32 on CUDA cores, from one thread an element to vectorised register tiles."""

from tilewright.ladders.rung import Rung
from tilewright.ladders.worklog.r1_naive import NAIVE
from tilewright.ladders.worklog.r2_coalesced import COALESCED
from tilewright.ladders.worklog.r3_shared import SHARED
from tilewright.ladders.worklog.r4_thread_tile_1d import THREAD_TILE_1D
from tilewright.ladders.worklog.r5_thread_tile_2d import THREAD_TILE_2D
from tilewright.ladders.worklog.r6_vectorised import VECTORISED

WORKLOG: tuple[Rung, ...] = (NAIVE, COALESCED, SHARED, THREAD_TILE_1D, THREAD_TILE_2D, VECTORISED)
