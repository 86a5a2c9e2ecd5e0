"""TMA: boxes, their bytes in shared memory, the sectors of global memory they touch."""

from __future__ import annotations

from tilewright.simulator.events import TmaCopy
from tilewright.simulator.listeners.site_counter import SiteCounter


class TmaTraffic(SiteCounter):
    """boxes: started. bulk_bytes: of whole boxes, as shared memory sees them; a box for several blocks counts once.

    bulk_sectors: of 32 bytes of global memory, inside the matrix. bulk_elements: inside the matrix.
    """

    fields = ("boxes", "bulk_bytes", "bulk_sectors", "bulk_elements")

    def bulk_copied(self, copy: TmaCopy) -> None:
        self.add(copy.site, copy.boxes, copy.size_bytes, copy.sectors, copy.elements)
