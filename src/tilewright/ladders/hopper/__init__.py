"""Ladder `hopper`: wgmma, TMA, warp roles and clusters, rung by rung, up to cuBLAS and beyond (sm_90a)."""

from tilewright.ladders.hopper.r1_wgmma import WGMMA
from tilewright.ladders.hopper.r2_tma import TMA
from tilewright.ladders.hopper.r3_producer import PRODUCER
from tilewright.ladders.hopper.r4_shared_b import SHARED_B
from tilewright.ladders.hopper.r5_persistent import PERSISTENT
from tilewright.ladders.hopper.r6_tma_store import TMA_STORE
from tilewright.ladders.hopper.r7_multicast import MULTICAST
from tilewright.ladders.hopper.r8_ping_pong import PING_PONG
from tilewright.ladders.hopper.r9_best import BEST
from tilewright.ladders.rung import Rung

HOPPER: tuple[Rung, ...] = (
    WGMMA,
    TMA,
    PRODUCER,
    SHARED_B,
    PERSISTENT,
    TMA_STORE,
    MULTICAST,
    PING_PONG,
    BEST,
)
