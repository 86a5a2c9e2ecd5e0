"""Asynchronous copies: started by a thread, gathered into groups, landed when the thread waits for them.

The hardware lands a copy at some moment between its start and the wait for its group. Here it is as late as it can
be: whoever reads without waiting finds what was there before. What is copied is read at the start; a source that is
written while the copy is under way is not noticed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.sites import Site


@dataclass(slots=True)
class InFlight:
    """What some lanes copy to shared memory; arrays have one entry (one column) for each of them.

    lanes: their positions in the convoy. group: the group that each lane's copy belongs to. element: the first that
    is written, counted through all copies of the buffer. rows: what is written, (width, lanes).
    """

    site: Site
    buffer: str
    lanes: Array
    group: Array
    element: Array
    rows: Array

    def part(self, chosen: Array) -> InFlight:
        """The lanes where `chosen` is true."""
        return InFlight(
            self.site,
            self.buffer,
            self.lanes[chosen],
            self.group[chosen],
            self.element[chosen],
            self.rows[:, chosen],
        )


class Copies:
    """The copies that the lanes of one convoy have under way. groups: committed so far by each lane, (lanes,)."""

    __slots__ = ("groups", "under_way")

    def __init__(self, lanes: int) -> None:
        self.groups: Array = np.zeros(lanes, np.int64)
        self.under_way: list[InFlight] = []

    def start(self, site: Site, buffer: str, lanes: Array, element: Array, rows: Array) -> None:
        """Lanes start a copy; it will belong to the group that each of them commits next."""
        self.under_way.append(InFlight(site, buffer, lanes, self.groups[lanes], element, rows))

    def commit(self, active: Array | None) -> None:
        """The lanes in `active` (None: all) close their group."""
        self.groups += 1 if active is None else active

    def landed(self, pending: int, active: Array | None) -> list[InFlight]:
        """What has arrived when the lanes in `active` have waited until `pending` of their groups are left."""
        due: list[InFlight] = []
        left: list[InFlight] = []
        for copy in self.under_way:
            arrives = copy.group < self.groups[copy.lanes] - pending
            if active is not None:
                arrives &= active[copy.lanes]
            if arrives.all():
                due.append(copy)
            elif not arrives.any():
                left.append(copy)
            else:
                due.append(copy.part(arrives))
                left.append(copy.part(~arrives))
        self.under_way = left
        return due

    def select(self, keep: Array) -> Copies:
        """Those of the lanes where `keep`, (lanes,) bool, is true."""
        chosen = Copies(0)
        chosen.groups = self.groups[keep]
        position = np.cumsum(keep) - 1
        for copy in self.under_way:
            part = copy.part(keep[copy.lanes])
            part.lanes = position[part.lanes]
            chosen.under_way.append(part)
        return chosen
