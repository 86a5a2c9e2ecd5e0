"""Each listener alone, fed with events made by hand."""

from __future__ import annotations

import numpy as np
from simulated_kernels import A, at, registers, shared

from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import ZERO, Ref
from tilewright.ir.stmt import Move
from tilewright.simulator.findings import Access, Arithmetic, Branch, Iterations, Listener, Meeting, Site, Wire
from tilewright.simulator.listeners import Divergence, Executions, GlobalTraffic, SharedTraffic
from tilewright.simulator.warps import Lanes, Mask

LANE = np.arange(32)
TILE = shared("tile", 1024)
MOVE = Move(at(registers("a")), Ref(A, (ZERO,)))
SITE = Site(0, (0,), 3, "a[0] <- A[0]", MOVE)


def access(
    buffer: Buffer, offsets: Array, *, width: int = 1, offset: int = 0, active: Array | None = None, store: bool = False
) -> Access:
    lanes = Lanes(np.asarray(offsets, np.int64).reshape(-1))
    pattern = lanes.pattern(None if active is None else Mask(np.asarray(active, np.bool_).reshape(-1)))
    idle = lanes.values.size - pattern.active_lanes
    return Access(SITE, buffer, store, width, pattern, offset, lanes.values.size // 32, idle)


def test_global_traffic() -> None:
    listener = GlobalTraffic()
    listener.accessed(access(A, np.stack([LANE, LANE * 8])))
    assert listener.counts()[SITE] == {
        "requests": 2,
        "lanes": 64,
        "bytes_asked": 256,
        "bytes_used": 256,
        "sectors": 4 + 32,
        "fewest_sectors": 4 + 4,
        "cache_lines": 1 + 8,
    }


def test_a_byte_that_lanes_share_is_used_once() -> None:
    listener = GlobalTraffic()
    listener.accessed(access(A, np.stack([LANE // 4, LANE * 0]), active=np.stack([LANE < 16, LANE < 0])))
    counted = listener.counts()[SITE]
    assert (counted["bytes_asked"], counted["bytes_used"], counted["fewest_sectors"]) == (64, 16, 1)


def test_global_traffic_of_one_pattern_at_several_offsets() -> None:
    listener, first = GlobalTraffic(), access(A, LANE)
    for offset in (0, 1, 8, 32):  # 4 sectors, off by a float 5, and 4 again
        listener.accessed(Access(SITE, A, False, 1, first.pattern, offset, 1))
    assert listener.total("sectors") == 4 + 5 + 4 + 4
    assert listener.total("cache_lines") == 1 + 2 + 2 + 1


def test_global_traffic_does_not_hear_of_shared_memory() -> None:
    listener = GlobalTraffic()
    listener.accessed(access(TILE, LANE))
    assert listener.counts() == {}


def test_shared_traffic() -> None:
    listener = SharedTraffic()
    listener.accessed(access(TILE, LANE * 2))
    listener.accessed(access(TILE, LANE * 0, width=4))
    counts = listener.counts()[SITE]
    assert (counts["wavefronts"], counts["ideal_wavefronts"]) == (2 + 2, 1 + 2)


def test_shared_stores_do_not_merge() -> None:
    listener = SharedTraffic()
    listener.accessed(access(TILE, LANE // 2 * 2, width=2, store=True))
    assert listener.total("wavefronts") == 2
    listener.accessed(access(TILE, LANE // 2 * 2, width=2))
    assert listener.total("wavefronts") == 3


def test_divergence() -> None:
    listener = Divergence()
    listener.accessed(access(A, LANE, active=LANE < 10))
    listener.accessed(access(A, np.stack([LANE, LANE]), active=np.stack([LANE >= 0, LANE < 0])))
    listener.branched(Branch(SITE, warps=4, lanes=128, split=3))
    assert listener.counts()[SITE] == {"partial": 1, "guarded_off": 22 + 32, "split": 3}


def test_executions() -> None:
    listener = Executions()
    listener.computed(Arithmetic(SITE, {"FFMA": 1}, times=64, warps=8, lanes=256))
    assert listener.counts()[SITE] == {"executions": 512, "lane_executions": 64 * 256}
    listener.met(Meeting(SITE, warps=8, lanes=256, blocks=1))
    listener.iterated(Iterations(SITE, times=2, warps=8, lanes=256, blocks=1))
    assert listener.total("executions") == 512 + 8 + 16


def test_a_listener_hears_only_what_it_overrides() -> None:
    class Barriers(Listener):
        met_at = 0

        def met(self, meeting: Meeting) -> None:
            self.met_at += meeting.blocks

    listener = Barriers()
    wire = Wire((listener,))
    assert not wire.accessed and not wire.computed
    for hear in wire.met:
        hear(Meeting(SITE, warps=4, lanes=128, blocks=2))
    assert listener.met_at == 2
