"""Values of many lanes at once: which warps run together, which lanes take part, where they point.

A lane array is one-dimensional: the lanes of the first warp, then those of the next. Lane values are computed once
and then known by identity (`Lanes`, `Mask`, `Pattern`), so that whatever was found out about them (their range, the
sectors they touch, their bank conflicts) is found out once, however often a loop comes back to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.expr import Op
from tilewright.units import ceil_div

Result = TypeVar("Result")

_KEPT_MASKS = 128
"""Masks and patterns kept with one value; guards of an edge make a few, a runaway loop must not make millions."""


class Mask:
    """The lanes that take part. Where all do, None stands instead of a mask."""

    __slots__ = ("_inverse", "_minus", "_parted", "_with", "count", "lanes", "warps")

    def __init__(self, lanes: Array) -> None:
        self.lanes = lanes
        self.count = int(np.count_nonzero(lanes))
        self.warps = int(np.count_nonzero(lanes.reshape(-1, WARP_THREADS).any(axis=1)))
        """Warps of which at least one lane takes part."""
        self._inverse: Mask | None = None
        self._parted: Array | None = None
        self._with: dict[int, tuple[Mask, Mask]] = {}
        self._minus: dict[int, tuple[Mask, Mask]] = {}

    @property
    def rows(self) -> Array:
        """Shape (warps, 32)."""
        rows: Array = self.lanes.reshape(-1, WARP_THREADS)
        return rows

    @property
    def inverse(self) -> Mask:
        """The lanes that do not take part."""
        if self._inverse is None:
            self._inverse = Mask(~self.lanes)
        return self._inverse

    @property
    def parted(self) -> Array:
        """Warps of which some lanes take part and others do not, (warps,) bool."""
        if self._parted is None:
            rows = self.rows
            self._parted = np.asarray(rows.any(axis=1) & ~rows.all(axis=1))
        return self._parted

    def both(self, other: Mask) -> Mask:
        """The lanes in both; the same object for the same two masks."""
        return self._combined(self._with, other, np.logical_and)

    def minus(self, other: Mask) -> Mask:
        """The lanes that `other` lacks."""
        return self._combined(self._minus, other, np.greater)

    def _combined(self, kept: dict[int, tuple[Mask, Mask]], other: Mask, ufunc: Callable[..., Array]) -> Mask:
        found = kept.get(id(other))
        if found is None:
            if len(kept) >= _KEPT_MASKS:
                kept.clear()
            # The other mask is kept as well: its id stays its own as long as it lives.
            found = kept[id(other)] = (Mask(ufunc(self.lanes, other.lanes)), other)
        return found[0]


def both(a: Mask | None, b: Mask | None) -> Mask | None:
    """The lanes in both, where None is every lane."""
    if a is None:
        return b
    return a if b is None else a.both(b)


class Lanes:
    """One integer of every lane, never changed: (lanes,) int64.

    overflow: lanes in which a 32-bit expression has left 32 bits on the way, (lanes,) bool; None if there are none.
    """

    __slots__ = ("_based", "_compared", "_patterns", "_spread", "high", "low", "overflow", "values")

    def __init__(self, values: Array, overflow: Array | None = None) -> None:
        self.values = values
        self.overflow = overflow
        self.low = int(values.min())
        self.high = int(values.max())
        self._compared: dict[tuple[Op, int], bool | Mask] = {}
        self._patterns: dict[int, Pattern] = {}
        self._based: dict[int, Array] = {}
        self._spread: dict[int, tuple[Lanes, Array]] = {}

    def compare(self, op: Op, threshold: int) -> bool | Mask:
        """`value op threshold` of every lane: True or False where all lanes agree."""
        key = (op, threshold)
        found = self._compared.get(key)
        if found is None:
            if len(self._compared) >= _KEPT_MASKS:
                self._compared.clear()
            found = self._compared[key] = self._decide(op, threshold)
        return found

    def _decide(self, op: Op, threshold: int) -> bool | Mask:
        match op:
            case Op.LT:
                certain, impossible = self.high < threshold, self.low >= threshold
            case Op.GE:
                certain, impossible = self.low >= threshold, self.high < threshold
            case _:
                certain = impossible = False
        if certain or impossible:
            return certain
        compare = {Op.LT: np.less, Op.GE: np.greater_equal, Op.EQ: np.equal, Op.NE: np.not_equal}[op]
        lanes = compare(self.values, threshold)
        if lanes.all():
            return True
        return Mask(lanes) if lanes.any() else False

    def pattern(self, active: Mask | None) -> Pattern:
        """These values as places that the lanes of `active` touch; the same object for the same mask."""
        found = self._patterns.get(id(active))
        if found is None:
            if len(self._patterns) >= _KEPT_MASKS:
                self._patterns.clear()
            found = self._patterns[id(active)] = Pattern(self, active)
        return found

    def based(self, elements: int, block_slots: Array) -> Array:
        """The values within the copy of a shared buffer that belongs to each lane's block: flat indices."""
        found = self._based.get(elements)
        if found is None:
            found = self._based[elements] = self.values + block_slots * elements
        return found

    def spread(self, numbers: Array) -> Lanes:
        """The values plus one of 32 numbers each, by lane of the warp; the same object for the same numbers."""
        found = self._spread.get(id(numbers))
        if found is None:
            values = (self.values.reshape(-1, WARP_THREADS) + numbers).reshape(-1)
            found = self._spread[id(numbers)] = (Lanes(values, self.overflow), numbers)
        return found[0]


class Pattern:
    """Which elements the lanes touch, up to an offset that all lanes share.

    low, high: of the active lanes. memo: what was found out about the pattern, kept by whoever found it.
    """

    __slots__ = ("active", "high", "lanes", "low", "memo")

    def __init__(self, lanes: Lanes, active: Mask | None) -> None:
        self.lanes = lanes
        self.active = active
        self.memo: dict[Any, Any] = {}
        if active is None:
            self.low, self.high = lanes.low, lanes.high
        else:
            chosen = lanes.values[active.lanes]
            self.low, self.high = (int(chosen.min()), int(chosen.max())) if active.count else (0, 0)

    @property
    def rows(self) -> Array:
        """Element offsets, shape (warps, 32)."""
        rows: Array = self.lanes.values.reshape(-1, WARP_THREADS)
        return rows

    @property
    def active_rows(self) -> Array | None:
        """Shape (warps, 32); None where every lane takes part."""
        return None if self.active is None else self.active.rows

    @property
    def active_lanes(self) -> int:
        return self.lanes.values.size if self.active is None else self.active.count

    @property
    def requests(self) -> int:
        """Warps of which at least one lane takes part: each makes one request."""
        return self.lanes.values.size // WARP_THREADS if self.active is None else self.active.warps

    def known(self, key: Any, find: Callable[[], Result]) -> Result:
        """`find()`, called once for each key."""
        if key not in self.memo:
            self.memo[key] = find()
        result: Result = self.memo[key]
        return result


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks that run together. block: threads along x, y, z. grid: blocks along x, y, z.

    coordinates: of each block, (blocks, 3). A block's row is its *slot*. across_ranks: blocks of several GPUs, whose
    number is the last coordinate.
    """

    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    coordinates: Array
    across_ranks: bool = False

    @property
    def blocks(self) -> int:
        return len(self.coordinates)

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z

    @property
    def warps_per_block(self) -> int:
        return ceil_div(self.threads, WARP_THREADS)

    @property
    def linear(self) -> Array:
        """The number of each block in launch order, x fastest: (blocks,)."""
        x, y, _ = self.grid
        numbers: Array = self.coordinates @ np.array([1, x, x * y], np.int64)
        return numbers


class Warps:
    """Warps that run together: slots and numbers of each, both (warps,)."""

    __slots__ = (
        "_block_lanes",
        "_builtins",
        "_first_lanes",
        "_global_thread",
        "_nowhere",
        "batch",
        "block_count",
        "exists",
        "numbers",
        "slots",
        "thread",
    )

    def __init__(self, batch: Batch, slots: Array, numbers: Array) -> None:
        self.batch = batch
        self.slots = slots
        self.numbers = numbers
        self.block_count = len(np.unique(slots))
        self.thread: Array = (numbers[:, None] * WARP_THREADS + np.arange(WARP_THREADS)).reshape(-1)
        """The number of each lane's thread in its block."""
        missing = self.thread >= batch.threads  # the last warp of a block of, say, 48 threads has 16 lanes
        self.exists = Mask(~missing) if missing.any() else None
        self._block_lanes: Array | None = None
        self._global_thread: Array | None = None
        self._builtins: dict[str, Lanes] = {}
        self._nowhere: Pattern | None = None
        self._first_lanes: dict[int, Mask] = {}

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def lanes(self) -> int:
        return len(self.slots) * WARP_THREADS

    @property
    def block_of_lane(self) -> Array:
        """The slot of each lane's block."""
        if self._block_lanes is None:
            self._block_lanes = np.repeat(self.slots, WARP_THREADS)
        return self._block_lanes

    @property
    def global_thread(self) -> Array:
        """A number for each thread of the grid, from 1 (0 stands for none)."""
        if self._global_thread is None:
            first = self.batch.linear[self.block_of_lane] * self.batch.threads
            self._global_thread = (first + self.thread + 1).astype(np.int32)
        return self._global_thread

    def coordinates(self, warp: int) -> tuple[int, int, int]:
        """blockIdx of the block that the warp in this row belongs to."""
        x, y, z = self.batch.coordinates[self.slots[warp]].tolist()
        return x, y, z

    @property
    def nowhere(self) -> Pattern:
        """The pattern of an access in which no lane takes part."""
        if self._nowhere is None:
            self._nowhere = self.builtin("zero").pattern(Mask(np.zeros(self.lanes, np.bool_)))
        return self._nowhere

    def first_lanes(self, count: int) -> bool | Mask:
        """The first `count` lanes of every warp; True for all 32."""
        if count == WARP_THREADS:
            return True
        found = self._first_lanes.get(count)
        if found is None:
            lanes = np.tile(np.arange(WARP_THREADS) < count, len(self))
            found = self._first_lanes[count] = Mask(lanes)
        return found

    def builtin(self, name: str) -> Lanes:
        """`threadIdx.x` and its like; "zero" is 0 in every lane."""
        found = self._builtins.get(name)
        if found is None:
            found = self._builtins[name] = Lanes(self._builtin(name))
        return found

    def _builtin(self, name: str) -> Array:
        if name == "zero":
            return np.zeros(self.lanes, np.int64)
        vector, axis = name.split(".")
        which = "xyz".index(axis)
        if vector == "blockIdx":
            coordinate: Array = self.batch.coordinates[self.block_of_lane, which]
            return coordinate
        x, y, _ = self.batch.block
        # Lanes beyond the block repeat its first threads: they never act, and must not widen a range.
        thread = self.thread % self.batch.threads
        return np.asarray((thread % x, thread // x % y, thread // (x * y))[which], np.int64)

    def select(self, keep: Array) -> Warps:
        """The warps where `keep`, (warps,), is true."""
        return Warps(self.batch, self.slots[keep], self.numbers[keep])
