"""Global memory: requests, the 32-byte sectors and 128-byte lines they touch, bytes asked for."""

from __future__ import annotations

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.layout.banks import LINE_BYTES, SECTOR_BYTES, Counts, lines, sectors
from tilewright.simulator.events import Access
from tilewright.simulator.listeners.site_counter import SiteCounter

_NOWHERE = np.int64(np.iinfo(np.int64).max)  # sorts a lane that takes no part behind all others


class GlobalTraffic(SiteCounter):
    """What ncu counts as l1tex__t_requests and l1tex__t_sectors of global loads and stores, by address alone.

    requests: warps of which some lane touches memory. bytes_asked: by lanes, a byte wanted twice counted twice.
    bytes_used: of each request, a byte that several lanes want counted once. fewest_sectors: that would hold the used
    bytes of each request, side by side.
    """

    fields = ("requests", "lanes", "bytes_asked", "bytes_used", "sectors", "fewest_sectors", "cache_lines")

    def accessed(self, access: Access) -> None:
        if access.space is Space.GLOBAL:
            # A shift by a whole line leaves the picture as it is.
            self.add(access.site, *access.known("global traffic", LINE_BYTES, _count))


def _count(access: Access) -> tuple[int, ...]:
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    pattern = access.pattern
    used = _bytes_used(access)
    return (
        pattern.requests,
        pattern.active_lanes,
        access.bytes_asked,
        int(used.sum()),
        int(sectors(addresses, width, active).sum()),
        int((-(-used // SECTOR_BYTES)).sum()),
        int(lines(addresses, width, active).sum()),
    )


def _bytes_used(access: Access) -> Counts:
    """Of each request, the distinct bytes that its lanes touch."""
    rows, active = access.pattern.rows, access.pattern.active_rows
    ordered = np.sort(rows if active is None else np.where(active, rows, _NOWHERE), axis=1)
    is_new = np.ones(ordered.shape, np.bool_)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    used: Counts = (is_new & (ordered != _NOWHERE)).sum(axis=1) * access.width_bytes
    return used
