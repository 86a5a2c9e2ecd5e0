"""Clocks of L1 for a load of global memory whose lanes are scattered: by its lines, and by the banks of its words.

L1 and shared memory are one memory of 32 banks, each of which gives a word of four bytes a clock; the tags of four
lines are looked up in a clock. A warp that reads an element of each of 32 rows takes 32 clocks where rows are a
multiple of 128 bytes apart (all words in one bank), 16 and 12 where 64 and 32 bytes are beside that, 8.4 to 10.3
elsewhere. That is what the banks take, or the tags and half of what the banks take, whichever is more: of 39 distances
on an H100 all are within 15 % (benchmarks/results/strided_lines_h100.json).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewright.ir.buffer import Space
from tilewright.ir.visit import Path
from tilewright.layout.banks import LINE_BYTES, Counts, lines, wavefronts
from tilewright.simulator.findings import Access
from tilewright.simulator.listeners import SiteCounter

Floats = npt.NDArray[np.float64]

_TAGS = 4
"""Lines that are looked up in a clock."""

_COALESCED = 8
"""Lines of a request up to which each takes a clock."""


class L1Passes(SiteCounter):
    """quarters: of clocks of L1, for loads of global memory."""

    fields = ("quarters",)

    def accessed(self, access: Access) -> None:
        if access.space is Space.GLOBAL and not access.store and access.pattern.requests:
            # A shift by a whole line leaves the picture as it is.
            self.add(access.site, access.known("L1 passes", LINE_BYTES, _quarters))

    def clocks(self) -> dict[Path, float]:
        """Of each line of the kernel."""
        return {site.path: row["quarters"] / _TAGS for site, row in self.counts().items()}


def clocks_of(tags: Counts, banks: Counts) -> Floats:
    """Of requests, by the lines that each touches and its wavefronts of banks."""
    scattered = np.maximum(banks, tags / _TAGS + banks / 2)
    found: Floats = np.where(tags > _COALESCED, scattered, tags)
    return found


def _quarters(access: Access) -> int:
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    tags = lines(addresses, width, active)
    banks = wavefronts(addresses, width, active, store=False)
    return round(_TAGS * float(clocks_of(tags, banks).sum()))
