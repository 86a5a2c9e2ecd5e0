"""What asynchronous units have under way for one block, and since when."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.memory import Memory
from tilewright.simulator.recorder.cells import runs_of
from tilewright.simulator.recorder.recording import Flight

Key = tuple[object, ...]
"""What is under way: its kind, whose it is (a warp, a warpgroup, or the block), and which of them."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Something under way, as the machine has it now. runs: of elements of `buffer`."""

    kind: Literal["cp.async", "TMA load", "TMA store", "wgmma"]
    line: int
    warp: int
    is_committed: bool = False
    buffer: str = ""
    elements: Array | None = None
    size_bytes: int = 0
    barrier: str = ""
    note: str = ""

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        if self.elements is None:
            return ()
        inside = np.zeros(int(self.elements.max()) + 1, np.bool_)
        inside[self.elements] = True
        return tuple((int(start), int(end - start)) for start, end in zip(*runs_of(inside, 0), strict=True))


def copies_of(convoy: Convoy, rows: Array, slot: int, memory: Memory) -> Iterator[tuple[Key, UnderWay]]:
    """The cp.async groups of the warps in these rows of a convoy, a group of a warp for each buffer it writes."""
    parts: dict[tuple[int, int, str], list[Array]] = {}
    about: dict[tuple[int, int, str], tuple[int, bool]] = {}
    for copy in convoy.copies.under_way:
        elements = len(memory.arrays[copy.buffer]) // convoy.warps.batch.blocks
        for row in np.intersect1d(copy.lanes // WARP_THREADS, rows).tolist():
            mine = copy.lanes // WARP_THREADS == row
            key = int(convoy.warps.numbers[row]), int(copy.group[mine][0]), copy.buffer
            at = (copy.element[mine] - slot * elements)[:, None] + np.arange(len(copy.rows))
            parts.setdefault(key, []).append(at.reshape(-1))
            about[key] = copy.site.line, bool(key[1] < convoy.copies.groups[copy.lanes[mine][0]])
    for key, written in parts.items():
        (warp, group, buffer), (line, is_committed) = key, about[key]
        at = np.concatenate(written)
        size_bytes = len(at) * memory.arrays[buffer].itemsize
        one = UnderWay("cp.async", line, warp, is_committed, buffer, at, size_bytes, note=f"group {group}")
        yield ("cp.async", *key), one


def products_of(convoy: Convoy, rows: Array) -> Iterator[tuple[Key, UnderWay]]:
    """The wgmma groups of the warps in these rows, once for each warpgroup."""
    if convoy.products is None:
        return
    groups = convoy.warps.numbers[rows] // GROUP_WARPS
    counts: dict[Key, int] = {}
    for product in convoy.products.under_way:
        # The first warp that is here speaks for its warpgroup.
        for at in np.unique(groups, return_index=True)[1].tolist():
            row, warpgroup = int(rows[at]), int(groups[at])
            group = int(product.group[row])
            key = ("wgmma", warpgroup, group)
            counts[key] = counts.get(key, 0) + 1
            is_committed = bool(group < convoy.products.groups[row])
            note = f"group {group} of warpgroup {warpgroup}: {counts[key]} wgmma"
            yield key, UnderWay("wgmma", product.site.line, warpgroup * GROUP_WARPS, is_committed, note=note)


def boxes_of(units: Units, slot: int) -> Iterator[tuple[Key, UnderWay]]:
    """The TMA boxes that land in a block, and those that leave it."""
    for flight in units.flights:
        box, name = flight.box, flight.box.buffer.name
        for index in np.flatnonzero(flight.slot == slot).tolist():
            first, key = int(flight.first[index]), int(flight.key[index])
            yield (
                ("TMA load", "block", name, first, key),
                UnderWay(
                    "TMA load",
                    flight.site.line,
                    flight.where.warp,
                    True,
                    name,
                    box.places(np.array([first]))[0],
                    box.size_bytes,
                    units.phases.name(key),
                    _corner(box.map.operand, tuple(int(part[index]) for part in flight.at)),
                ),
            )
    for row, queues in units.stores.items():
        if row // units.clocks.warps != slot:
            continue
        for queue in queues.values():
            for store in queue.all():
                box, name = store.box, store.box.buffer.name
                yield (
                    ("TMA store", "block", row, store.serial),
                    UnderWay(
                        "TMA store",
                        store.site.line,
                        store.where.warp,
                        not any(store is one for one in queue.running),
                        name,
                        store.source - slot * box.buffer.elements,
                        box.size_bytes,
                        note=_corner(box.map.operand, store.at),
                    ),
                )


def _corner(operand: str, at: tuple[int, ...]) -> str:
    return f"{operand} at {', '.join(map(str, at))}"


class Flights:
    """Since when each thing is under way, and what has landed."""

    def __init__(self) -> None:
        self._open: dict[Key, Flight] = {}
        self._last: dict[Key, UnderWay] = {}
        self._closed: list[Flight] = []
        self._over: set[Key] = set()

    def update(
        self, now: int, found: dict[Key, UnderWay], kinds: Collection[str], owners: Collection[object]
    ) -> list[Flight]:
        """What is under way of these kinds and owners at moment `now`; what has landed since."""
        for key, one in found.items():
            if key not in self._open and key not in self._over:
                flight = Flight(one.kind, one.line, one.warp, now, -1, -1, one.buffer, (), 0, one.barrier, one.note)
                self._open[key] = flight
            if key in self._open:
                self._last[key] = one
                if one.is_committed and self._open[key].committed < 0:
                    self._open[key] = replace(self._open[key], committed=now)
        gone = [key for key in self._open if key[0] in kinds and key[1] in owners and key not in found]
        landed = [self._finished(key, now) for key in gone]
        self._closed += landed
        # The same wgmma or group is never under way twice; another warp of its warpgroup may still have it.
        self._over.update(key for key in gone if key[0] != "TMA load")
        return landed

    def _finished(self, key: Key, last: int) -> Flight:
        one, flight = self._last.pop(key), self._open.pop(key)
        return replace(flight, last=last, runs=one.runs, size_bytes=one.size_bytes, note=one.note)

    def all(self) -> tuple[Flight, ...]:
        """Everything, also what is still under way."""
        left = [self._finished(key, -1) for key in list(self._open)]
        return tuple(sorted((*self._closed, *left), key=lambda one: (one.first, one.kind, one.warp)))
