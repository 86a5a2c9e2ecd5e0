"""Ladder `hopper`: wgmma, the copy engine, warp roles and clusters, rung by rung, up to cuBLAS and beyond (sm_90a)."""

from tilewright.ladders.hopper.r1_wgmma import WGMMA
from tilewright.ladders.hopper.r2_engine import ENGINE
from tilewright.ladders.hopper.r3_producer import PRODUCER
from tilewright.ladders.hopper.r4_shared_b import SHARED_B
from tilewright.ladders.hopper.r5_persistent import PERSISTENT
from tilewright.ladders.hopper.r6_stored_by_engine import STORED_BY_ENGINE
from tilewright.ladders.hopper.r7_multicast import MULTICAST
from tilewright.ladders.hopper.r8_taking_turns import TAKING_TURNS
from tilewright.ladders.hopper.r9_best import BEST
from tilewright.ladders.rung import Rung

HOPPER: tuple[Rung, ...] = (
    WGMMA,
    ENGINE,
    PRODUCER,
    SHARED_B,
    PERSISTENT,
    STORED_BY_ENGINE,
    MULTICAST,
    TAKING_TURNS,
    BEST,
)
