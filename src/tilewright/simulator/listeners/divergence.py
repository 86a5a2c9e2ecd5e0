"""Lanes that do not take part, and warps whose lanes go different ways."""

from __future__ import annotations

import numpy as np

from tilewright.simulator.events import Access, Branch
from tilewright.simulator.listeners.site_counter import SiteCounter
from tilewright.simulator.warps import Pattern


class Divergence(SiteCounter):
    """partial: requests in which some lanes of the warp take no part. guarded_off: lanes whose guard is false.

    split: branches at which lanes of one warp disagree, so that the warp runs both sides.
    """

    fields = ("partial", "guarded_off", "split")

    def accessed(self, access: Access) -> None:
        pattern = access.pattern
        if pattern.active is not None and not access.matrices:
            partial = pattern.known("partial", lambda: _partial(pattern))
            self.add(access.site, partial, access.guarded_off, 0)

    def branched(self, branch: Branch) -> None:
        if branch.split:
            self.add(branch.site, 0, 0, branch.split)


def _partial(pattern: Pattern) -> int:
    rows = pattern.active_rows
    return 0 if rows is None else int(np.count_nonzero(rows.any(axis=1) & ~rows.all(axis=1)))
