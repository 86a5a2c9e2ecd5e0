"""Ladder `worklog`: fp32 on CUDA cores, from one thread an element to asynchronous copies."""

from tilewright.ladders.rung import Rung
from tilewright.ladders.worklog.r1_naive import NAIVE
from tilewright.ladders.worklog.r2_coalesced import COALESCED
from tilewright.ladders.worklog.r3_shared import SHARED
from tilewright.ladders.worklog.r4_thread_tile_1d import THREAD_TILE_1D
from tilewright.ladders.worklog.r5_thread_tile_2d import THREAD_TILE_2D
from tilewright.ladders.worklog.r6_vectorised import VECTORISED
from tilewright.ladders.worklog.r7_interleaved_b import INTERLEAVED_B
from tilewright.ladders.worklog.r8_padded_b import PADDED_B
from tilewright.ladders.worklog.r9_autotuned import AUTOTUNED
from tilewright.ladders.worklog.r10_warp_tiled import WARP_TILED
from tilewright.ladders.worklog.r11_split_roles import SPLIT_ROLES
from tilewright.ladders.worklog.r12_async import ASYNC
from tilewright.ladders.worklog.r13_best import BEST_RUNG

WORKLOG: tuple[Rung, ...] = (
    NAIVE,
    COALESCED,
    SHARED,
    THREAD_TILE_1D,
    THREAD_TILE_2D,
    VECTORISED,
    INTERLEAVED_B,
    PADDED_B,
    AUTOTUNED,
    WARP_TILED,
    SPLIT_ROLES,
    ASYNC,
    BEST_RUNG,
)
