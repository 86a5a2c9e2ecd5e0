"""The barrier of a block: who has arrived, and when the block may go on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.sites import Site
from tilewright.simulator.warps import Batch


class BlockBarriers:
    """The barrier of every block of a batch. It opens when as many warps have arrived as the block has.

    rounds: how often each block's barrier has opened. A warp that has ended never arrives: the others wait in vain.
    """

    def __init__(self, batch: Batch) -> None:
        self.rounds = np.zeros(batch.blocks, np.int64)
        self._arrived = np.zeros(batch.blocks, np.int64)
        self._expected = batch.warps_per_block

    def arrive(self, slots: Array) -> Array:
        """Warps of the blocks in `slots` arrive, one an entry; the slots of the blocks whose barrier opens."""
        self._arrived += np.bincount(slots, minlength=len(self._arrived))
        opened = np.flatnonzero(self._arrived == self._expected)
        self._arrived[opened] = 0
        self.rounds[opened] += 1
        return opened


@dataclass(slots=True)
class BarrierWait:
    """Warps that have arrived and wait for the rest of their blocks. rounds: the opening each waits for."""

    site: Site
    barriers: BlockBarriers
    slots: Array
    rounds: Array

    def ready(self) -> Array:
        ready: Array = self.barriers.rounds[self.slots] >= self.rounds
        return ready

    def select(self, keep: Array) -> BarrierWait:
        return BarrierWait(self.site, self.barriers, self.slots[keep], self.rounds[keep])

    def describe(self) -> str:
        return "the barrier"
