"""Vector clocks: what each warp knows to be over.

Every warp has a row of counters, one for each thing of its cluster that others may have to wait for:

    done      of each warp: its accesses up to a time (its own time, which moves on when it tells others)
    fenced    of each warp: its writes up to a time are seen by the asynchronous units (fence.proxy.async)
    made      of each warp: its mbarriers made up to a time are seen by the cluster (fence.mbarrier_init)
    stored    of each warp: its bulk stores, counted, that no longer read shared memory
    multiplied   of each warpgroup: its wgmma groups, counted, that are complete
    phases    of each mbarrier: its phases, counted, that are complete
    previous  1 where the grid before this one has ended (one counter for all)

An access stamped with (counter, value) comes before what a warp does now exactly if the warp's row has reached the
value. Rows travel with barriers: who meets takes the maximum of all, who arrives at an mbarrier leaves its row
there, who has waited for the phase takes it up. The counters of the units make this exact although they work in no
order: a box has landed for those who waited for its phase and for no others.
"""

from __future__ import annotations

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.simulator.warps import Batch, Warps
from tilewright.units import ceil_div

GROUP_WARPS = 4
"""Warps of a warpgroup."""


class Clocks:
    """The rows of a batch: `rows` is (blocks * warps of a block, counters). A cluster's counters: block by block."""

    def __init__(self, batch: Batch, cluster: int, barriers: int, *, flags: bool = False) -> None:
        self.warps = batch.warps_per_block
        self.cluster = cluster
        self.fenced = self.warps
        self.made = 2 * self.warps
        self.stored = 3 * self.warps
        self.multiplied = 4 * self.warps
        self.phases = self.multiplied + ceil_div(self.warps, GROUP_WARPS)
        self.of_block = self.phases + barriers
        """Counters of one block; the first of each kind is above, `done` starts at 0."""
        self.leader = np.arange(batch.blocks) - batch.coordinates[:, 0] % cluster
        """The slot of the first block of each block's cluster."""
        self.rank = np.arange(batch.blocks) - (0 if flags else self.leader)
        """The number of each block among those that have counters for each other: the cluster, or all with flags."""
        count = batch.blocks * self.warps
        self.previous = (batch.blocks if flags else cluster) * self.of_block
        """The counter that is 1 where it is known that the grid before has ended."""
        self.rows = np.zeros((count, self.previous + 1), np.int32)
        row = np.arange(count)
        self.own = self.rank[row // self.warps] * self.of_block + row % self.warps
        """The counter `done` of each row's warp."""
        self.rows[row, self.own] = 1
        self.together = np.ones(count, np.int32)
        """The time at which the lanes of each warp last met at a barrier."""
        self.seen_by_units: dict[int, Array] = {}
        """Of rows that have run fence.proxy.async for global memory: what they knew then."""
        self._written = np.zeros((count, WARP_THREADS), np.int32)
        self._lane_fenced = np.zeros((count, WARP_THREADS), np.int32)

    def row(self, warps: Warps) -> Array:
        """The row of each warp of a convoy."""
        rows: Array = warps.slots * self.warps + warps.numbers
        return rows

    def counter(self, slots: Array, local: Array | int) -> Array:
        """The column of a counter of the blocks in these slots."""
        columns: Array = self.rank[slots] * self.of_block + local
        return columns

    def now(self, rows: Array) -> Array:
        """The own time of warps."""
        times: Array = self.rows[rows, self.own[rows]]
        return times

    def tick(self, rows: Array) -> None:
        """Time moves on for warps (each row once)."""
        self.rows[rows, self.own[rows]] += 1

    def meet(self, rows: Array) -> None:
        """Warps have met at a barrier: (meetings, warps of each) rows know what any of their meeting knew."""
        known = self.rows[rows].max(axis=1)
        self.rows[rows] = known[:, None, :]
        flat = rows.reshape(-1)
        self.tick(flat)
        self.together[flat] = self.now(flat)

    def learn(self, rows: Array, columns: Array, values: Array) -> None:
        """Warps know of these counters now."""
        self.rows[rows, columns] = np.maximum(self.rows[rows, columns], values)

    def wrote(self, rows: Array, lanes: Array) -> None:
        """Lanes write shared memory, by ordinary accesses."""
        self._written[rows, lanes] = self.now(rows)

    def fence(self, rows: Array, lanes: Array) -> None:
        """Lanes run fence.proxy.async: the units see the writes of a warp up to the first that no fence covers."""
        self._lane_fenced[rows, lanes] = self.now(rows)
        warps = np.unique(rows)
        covered, time = self._lane_fenced[warps], self.now(warps)[:, None]
        seen = np.where(self._written[warps] > covered, covered, time).min(axis=1)
        self.learn(warps, self.own[warps] + self.fenced, seen)
        self.tick(warps)

    def fence_global(self, rows: Array) -> None:
        """Warps run fence.proxy.async for global memory: the units that they start see what these warps know of."""
        for row in rows.tolist():
            self.seen_by_units[row] = self.rows[row].copy()

    def unseen(self, rows: Array, columns: Array, values: Array) -> Array:
        """Of writes to global memory by threads, stamped so: which of them units that these warps start may not see."""
        result = values > 0
        for row, known in self.seen_by_units.items():
            own = rows == row
            result[own] = values[own] > known[columns[own]]
        return result

    def publish(self, rows: Array) -> None:
        """Warps run fence.mbarrier_init: the cluster sees the mbarriers that they have made."""
        self.learn(rows, self.own[rows] + self.made, self.now(rows))
        self.tick(rows)
