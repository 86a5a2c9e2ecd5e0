"""A convoy: warps at the same point of the program, stepping together.

Each warp is an independent thread of control. As long as warps agree on where to go they travel as one convoy, as
arrays; where they disagree the convoy splits, and each part goes on alone with registers of its own.

What its threads have under way goes with it. Copies (cp.async) are started by a thread, gathered into groups, and land
when the thread waits for them. The hardware lands a copy at some moment between its start and the wait for its group.
Here it is as late as it can be: whoever reads without waiting finds what was there before. What is copied is read at
the start; a source that is written while the copy is under way is not noticed.

The four warps of a warpgroup start a wgmma together. It reads shared memory at some moment up to the first wait that
covers it; here as late as it can be. So the tiles are read for the whole warpgroup when its first warp has waited, and
kept for the others, which may come to their wait later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.findings import Site
from tilewright.simulator.warps import Lanes, Mask, Warps


class RegisterArray:
    """One register buffer of every lane of a convoy: `data` is (elements, lanes), an element's lanes side by side.

    `missing` counts the elements that some lane has not written: at 0, which is almost always, reads need no check.
    dirty: touched since the last wgmma fence. in_products: runs of elements (from, to) that products under
    way add to, or multiply, with the number of these and the place where the last was started.
    """

    __slots__ = ("_partial", "_written", "buffer", "data", "dirty", "elements", "in_products", "missing")

    def __init__(self, buffer: Buffer, lanes: int, dtype: np.dtype[Any], poison: Any) -> None:
        self.buffer = buffer
        self.elements = buffer.elements
        self.data = np.full((self.elements, lanes), poison, dtype)
        self._written = bytearray(self.elements)
        self._partial: dict[int, Array] = {}
        self.missing = self.elements
        self.dirty = True
        self.in_products: dict[tuple[int, int], tuple[int, Site]] = {}

    def start_product(self, first: int, end: int, site: Site) -> None:
        """A wgmma that adds to these elements is under way."""
        known = self.in_products.get((first, end))
        self.in_products[first, end] = (1 if known is None else known[0] + 1, site)

    def end_product(self, first: int, end: int) -> None:
        count, site = self.in_products.pop((first, end))
        if count > 1:
            self.in_products[first, end] = (count - 1, site)

    def forget(self, poison: Any) -> None:
        """The buffer is declared anew: its elements hold nothing. poison: what is read of them; None where nobody
        looks."""
        if self.missing < self.elements or self._partial:
            if poison is not None:
                self.data.fill(poison)
            self._written = bytearray(self.elements)
            self._partial.clear()
            self.missing = self.elements

    def mark(self, elements: Sequence[int], mask: Mask | None) -> None:
        """These elements are written by the lanes of `mask`."""
        for element in elements:
            if self._written[element]:
                continue
            if mask is not None:
                lanes = self._partial.setdefault(element, np.zeros(self.data.shape[1], np.bool_))
                lanes |= mask.lanes
                if not lanes.all():
                    continue
                del self._partial[element]
            self._written[element] = 1
            self.missing -= 1

    def unwritten(self, elements: Sequence[int], mask: Mask | None) -> tuple[int, Array] | None:
        """The first element that a lane of `mask` has not written, with those lanes as (lanes,) bool."""
        for element in elements:
            if self._written[element]:
                continue
            partial = self._partial.get(element)
            bare = np.ones(self.data.shape[1], np.bool_) if partial is None else ~partial
            if mask is not None:
                bare &= mask.lanes
            if bare.any():
                return element, bare
        return None

    def select(self, lanes: Array) -> RegisterArray:
        """The lanes where `lanes`, (lanes,) bool, is true: a copy of their registers."""
        chosen = object.__new__(RegisterArray)
        chosen.buffer, chosen.elements = self.buffer, self.elements
        chosen.data = np.ascontiguousarray(self.data[:, lanes])
        chosen._written = bytearray(self._written)
        chosen._partial = {}
        chosen.dirty = self.dirty
        chosen.in_products = dict(self.in_products)
        chosen.missing = self.missing
        for element, partial in self._partial.items():
            kept = partial[lanes]
            if kept.all():
                chosen._written[element] = 1
                chosen.missing -= 1
            elif kept.any():
                chosen._partial[element] = kept
        return chosen


@dataclass(slots=True)
class Product:
    """One statement as the warps of a convoy started it; arrays have an entry for each warp.

    number: of the wgmma that each warp has started, from 0. group: which each warp's belongs to. a, b: byte addresses;
    of A in registers, its first register. fresh: whether the sum begins anew. registers, first: the sum. operation: who
    carries it out.
    """

    site: Site
    operation: object
    registers: int
    first: int
    count: int
    number: Array
    group: Array
    a: Array
    b: Array
    fresh: Array

    def part(self, keep: Array) -> Product:
        arrays = (array[keep] for array in (self.number, self.group, self.a, self.b, self.fresh))
        return Product(self.site, self.operation, self.registers, self.first, self.count, *arrays)


class Products:
    """What the warps of one convoy have under way, in order. started, groups: of each warp so far, (warps,)."""

    __slots__ = ("groups", "started", "under_way")

    def __init__(self, warps: int) -> None:
        self.started: Array = np.zeros(warps, np.int64)
        self.groups: Array = np.zeros(warps, np.int64)
        self.under_way: list[Product] = []

    def due(self, pending: int) -> list[Product]:
        """The wgmma of all but the youngest `pending` groups; all warps of a convoy have the same ones."""
        due = [product for product in self.under_way if (product.group < self.groups - pending).all()]
        self.under_way = self.under_way[len(due) :]
        return due

    def select(self, keep: Array) -> Products:
        chosen = Products(0)
        chosen.started, chosen.groups = self.started[keep], self.groups[keep]
        chosen.under_way = [product.part(keep) for product in self.under_way]
        return chosen


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


class Awaited(Protocol):
    """What warps wait for, each by a number: barriers, mbarriers, flags, the other warps of a warpgroup."""

    def over(self, keys: Array, wanted: Array) -> Array:
        """Which of these waits are over, (warps,) bool. wanted: the opening, parity or value that ends each."""

    def name(self, key: int) -> str:
        """What one of them is called."""

    def text(self, key: int, wanted: int) -> str:
        """What is waited for, in words."""


@dataclass(slots=True)
class Wait:
    """Warps that wait. keys, wanted: for what each of them does, (warps,)."""

    site: Site
    thing: Awaited
    keys: Array
    wanted: Array

    def ready(self) -> Array:
        """(warps,) bool: which warps may go on."""
        return self.thing.over(self.keys, self.wanted)

    def select(self, keep: Array) -> Wait:
        """The wait of the warps where `keep` is true."""
        return Wait(self.site, self.thing, self.keys[keep], self.wanted[keep])

    @property
    def name(self) -> str:
        """Of what the first warp waits for."""
        return self.thing.name(int(self.keys[0]))

    def describe(self) -> str:
        """What the first warp waits for, in words."""
        return self.thing.text(int(self.keys[0]), int(self.wanted[0]))


class Convoy:
    """Control state and registers of some warps.

    slots: values of the loop variables, the same in every lane. mask: lanes that take part now, None for all.
    pc: next instruction of the program. frames: what to restore at the end of each open branch. memo: lane values
    known so far, a dictionary for each cell of the program. copies: asynchronous ones under way. products: the wgmma
    under way; None until there is one.
    """

    __slots__ = ("copies", "frames", "mask", "memo", "pc", "products", "registers", "slots", "wait", "warps")

    def __init__(self, warps: Warps, slots: int, registers: int, cells: int) -> None:
        self.warps = warps
        self.slots: list[int] = [0] * slots
        self.registers: list[RegisterArray | None] = [None] * registers
        self.memo: list[dict[Any, tuple[Lanes, Sequence[Lanes]]]] = [{} for _ in range(cells)]
        self.mask: Mask | None = warps.exists
        self.pc = 0
        self.frames: list[tuple[Mask | None, Mask | None]] = []
        self.wait: Wait | None = None
        self.copies = Copies(warps.lanes)
        self.products: Products | None = None

    @property
    def active_warps(self) -> int:
        return len(self.warps) if self.mask is None else self.mask.warps

    @property
    def active_lanes(self) -> int:
        return self.warps.lanes if self.mask is None else self.mask.count

    def part(self, keep: Array) -> Convoy:
        """The warps where `keep`, (warps,) bool, is true, with a copy of their registers."""
        lanes = np.repeat(keep, WARP_THREADS)

        def part_of(mask: Mask | None) -> Mask | None:
            if mask is None or mask.lanes[lanes].all():
                return None
            return Mask(mask.lanes[lanes])

        part = Convoy(self.warps.select(keep), len(self.slots), len(self.registers), len(self.memo))
        part.slots = list(self.slots)
        part.registers = [None if array is None else array.select(lanes) for array in self.registers]
        part.mask = part_of(self.mask)
        part.pc = self.pc
        part.frames = [(part_of(before), part_of(otherwise)) for before, otherwise in self.frames]
        part.copies = self.copies.select(lanes)
        part.products = None if self.products is None else self.products.select(keep)
        part.wait = None if self.wait is None else self.wait.select(keep)
        return part
