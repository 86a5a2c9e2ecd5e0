"""Named barriers of a block, and the barrier of a cluster: who has come, and when they may go on."""

from __future__ import annotations

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.clocks import Clocks
from tilewright.simulator.warps import Warps

NAMED = 16
"""Named barriers of a block. Source: PTX ISA 9.0, bar."""

NAMED_BARRIER = "named barrier"
CLUSTER = "the barrier of the cluster"


class Meetings:
    """Barriers that open when as many warps as they expect have arrived; a key for each barrier.

    kind: what they are called. rounds: how often each has opened. asked: the warps that those who came last expect.
    """

    def __init__(self, keys: int, clocks: Clocks, kind: str) -> None:
        self.kind = kind
        self.rounds = np.zeros(keys, np.int64)
        self.asked = np.zeros(keys, np.int64)
        self._clocks = clocks
        self._there: dict[int, list[int]] = {}

    def arrive(self, keys: Array, rows: Array, warps: Array) -> tuple[Array, Array]:
        """Warps (rows) arrive at barriers that expect `warps`, one after the other.

        The opening that each waits for; and keys at which others expect another number.
        """
        wrong: set[int] = set()
        awaited = np.empty(len(keys), np.int64)
        for at, (key, row, count) in enumerate(zip(keys.tolist(), rows.tolist(), warps.tolist(), strict=True)):
            awaited[at] = self.rounds[key] + 1
            there = self._there.setdefault(key, [])
            if there and self.asked[key] != count:
                wrong.add(key)
            self.asked[key] = count
            there.append(row)
            if len(there) == count:
                self._open(key)
        return awaited, np.array(sorted(wrong), np.int64)

    def leave(self, keys: Array) -> None:
        """Warps have ended: barriers that wait for all that are left expect one less."""
        for key in keys.tolist():
            self.asked[key] -= 1
            if self.there(key) and len(self._there[key]) == self.asked[key]:
                self._open(key)

    def there(self, key: int) -> int:
        return len(self._there.get(key, ()))

    def _open(self, key: int) -> None:
        self._clocks.meet(np.array([self._there.pop(key)]))
        self.rounds[key] += 1

    def over(self, keys: Array, wanted: Array) -> Array:
        over: Array = self.rounds[keys] >= wanted
        return over

    def name(self, key: int) -> str:
        return f"{self.kind} {key % NAMED}" if self.kind == NAMED_BARRIER else self.kind

    def text(self, key: int, wanted: int) -> str:
        return f"{self.name(key)} ({self.there(key)} of {int(self.asked[key])} warps are there)"


def whole_warps(threads: int) -> int:
    return threads // WARP_THREADS


def named_keys(warps: Warps, numbers: Array) -> Array:
    keys: Array = warps.slots * NAMED + numbers
    return keys
