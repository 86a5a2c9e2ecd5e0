"""Global memory: requests, the 32-byte sectors and 128-byte lines they touch, bytes asked for."""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.layout.banks import LINE_BYTES, lines, sectors
from tilewright.simulator.events import Access
from tilewright.simulator.listeners.site_counter import SiteCounter


class GlobalTraffic(SiteCounter):
    """What ncu counts as l1tex__t_requests and l1tex__t_sectors of global loads and stores, by address alone.

    requests: warps of which some lane touches memory. bytes_asked: by lanes, a byte wanted twice counted twice.
    """

    fields = ("requests", "lanes", "bytes_asked", "sectors", "cache_lines")

    def accessed(self, access: Access) -> None:
        if access.space is Space.GLOBAL:
            # A shift by a whole line leaves the picture as it is.
            self.add(access.site, *access.known("global traffic", LINE_BYTES, _count))


def _count(access: Access) -> tuple[int, int, int, int, int]:
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    pattern = access.pattern
    return (
        pattern.requests,
        pattern.active_lanes,
        access.bytes_asked,
        int(sectors(addresses, width, active).sum()),
        int(lines(addresses, width, active).sum()),
    )
