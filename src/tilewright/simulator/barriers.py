"""The barrier of a block: who has arrived, and when the block may go on."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.warps import Batch

BLOCK_BARRIER = "__syncthreads"
"""What journals and recordings call it."""


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

    def over(self, keys: Array, wanted: Array) -> Array:
        over: Array = self.rounds[keys] >= wanted
        return over

    def name(self, key: int) -> str:
        return BLOCK_BARRIER

    def text(self, key: int, wanted: int) -> str:
        return "the barrier"
