"""mbarriers: arrivals and bytes that a phase waits for, as the hardware counts them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.dtypes import MBARRIER, Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.asynchronous.clocks import Clocks

MBARRIERS = "mbarrier"
"""What a journal calls them."""

Complain = Callable[[int, int, str, str], None]
"""Reports misuse of a barrier: its block's slot, its number, what is wrong, a hint."""


class BarrierNames:
    """The mbarriers of a kernel, numbered through its shared buffers."""

    def __init__(self, shared: tuple[Buffer, ...]) -> None:
        self.first: dict[str, int] = {}
        self._names: list[str] = []
        for buffer in shared:
            if buffer.dtype is MBARRIER:
                self.first[buffer.name] = len(self._names)
                self._names += [f"{buffer.name}[{index}]" for index in range(buffer.elements)]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> str:
        return self._names[number]


class Phases:
    """The mbarriers of the blocks of a batch; arrays are (blocks, barriers), seen flat by `key`.

    count: arrivals of a phase (0: not made yet). pending: arrivals still to come. bytes: expected and not landed, below
    0 where more have landed. phase: the running one, from 0. seen: the highest phase for which somebody has waited.
    """

    def __init__(self, names: BarrierNames, blocks: int, clocks: Clocks) -> None:
        self.names = names
        self._clocks = clocks
        size = blocks * len(names)
        self.count, self.pending, self.bytes, self.phase, self.seen = (np.zeros(size, np.int64) for _ in range(5))
        self.maker = np.zeros(size, np.int64)
        self.made_at = np.zeros(size, np.int64)
        width = clocks.rows.shape[1]
        self._gathered = np.zeros((size, width), np.int32)
        self._complete = np.zeros((size, width), np.int32)

    def key(self, slots: Array, numbers: Array) -> Array:
        keys: Array = slots * len(self.names) + numbers
        return keys

    def name(self, key: int) -> str:
        return self.names[key % len(self.names)]

    def make(self, keys: Array, arrivals: int, rows: Array) -> Array:
        """Barriers come into being, made by warps in `rows`; which of them existed before."""
        before: Array = self.count[keys] != 0
        self.count[keys] = self.pending[keys] = arrivals
        self.bytes[keys] = self.phase[keys] = self.seen[keys] = 0
        self.maker[keys], self.made_at[keys] = rows, self._clocks.now(rows)
        return before

    def over(self, keys: Array, wanted: Array) -> Array:
        """Whether a wait for the phase of this parity returns: the running phase has the other parity."""
        passes: Array = (self.phase[keys] & 1) != wanted
        return passes

    def wait(self, keys: Array, rows: Array) -> None:
        """Warps have waited: they know what those knew who arrived, and which phases are over."""
        clocks = self._clocks
        self.seen[keys] = self.phase[keys]
        size = len(clocks.rows)
        keys, rows = np.divmod(np.unique(keys * size + rows), size)  # lanes of a warp mostly wait for the same
        np.maximum.at(clocks.rows, rows, self._complete[keys])
        blocks = keys // len(self.names)
        columns = clocks.counter(blocks, clocks.phases + keys % len(self.names))
        clocks.learn(rows, columns, self.phase[keys])

    def arrive(self, keys: Array, rows: Array, complain: Complain) -> None:
        """One arrival for each entry, by the warp in `rows`."""
        np.maximum.at(self._gathered, keys, self._clocks.rows[rows])
        different, counts = np.unique(keys, return_counts=True)
        if (counts <= self.pending[different]).all():
            self.pending[different] -= counts
            self._settle(different, complain)
            return
        for key in keys.tolist():  # more than the phase waits for: one after the other, as they come
            if self.pending[key] == 0:
                self._complain(complain, key, self._too_many(key), "arrive once for each that the barrier was made for")
                continue
            self.pending[key] -= 1
            self._settle(np.array([key]), complain)

    def expect(self, keys: Array, size_bytes: int) -> None:
        np.add.at(self.bytes, keys, size_bytes)

    def land(self, keys: Array, size_bytes: int, complain: Complain) -> None:
        """Bytes have landed, for each entry."""
        np.subtract.at(self.bytes, keys, size_bytes)
        self._settle(np.unique(keys), complain)

    def _settle(self, keys: Array, complain: Complain) -> None:
        """Completes the phases that wait for nothing more."""
        over = keys[(self.pending[keys] == 0) & (self.bytes[keys] == 0) & (self.count[keys] > 0)]
        if not len(over):
            return
        for key in over[self.seen[over] < self.phase[over]].tolist():
            what = (
                f"Phase {self.phase[key]} of {self.name(key)} is complete, and no thread has waited for the one before."
            )
            self._complain(complain, key, what, "arrive once for each phase, after what was there has been waited for")
        self._complete[over] = np.maximum(self._complete[over], self._gathered[over])
        self._gathered[over] = 0
        self.phase[over] += 1
        self.pending[over] = self.count[over]

    def _complain(self, complain: Complain, key: int, what: str, hint: str) -> None:
        complain(key // len(self.names), key % len(self.names), what, f"{hint}.")

    def _too_many(self, key: int) -> str:
        return (
            f"More than {self.count[key]} arrivals in phase {self.phase[key]} of {self.name(key)}, "
            f"which waits for {self.bytes[key]} bytes."
        )

    def text(self, key: int, wanted: int) -> str:
        """What a warp waits for, and what is missing. wanted: a parity."""
        missing = []
        if not self.count[key]:
            return f"{self.name(key)}, parity {wanted}, which was never made"
        if self.pending[key]:
            missing.append(f"{self.pending[key]} of {self.count[key]} arrivals")
        if self.bytes[key] > 0:
            missing.append(f"{self.bytes[key]} bytes")
        elif self.bytes[key] < 0:
            missing.append(f"{self.bytes[key]} bytes (more landed than were expected)")
        return f"{self.name(key)}, parity {wanted} (phase {self.phase[key]}: {' and '.join(missing)} missing)"
