"""What the operations of the units ask of a convoy: which lanes act, and the values of expressions in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.context import Context, where
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.findings import Issue, Kind, Site, Where
from tilewright.simulator.index import Place


@dataclass(slots=True)
class UnitOp:
    """A statement of the units."""

    site: Site
    context: Context

    @property
    def units(self) -> Units:
        units = self.context.units
        assert units is not None, "a kernel with statements of the units has units"
        return units

    def issue(self, convoy: Convoy, keys: Array | None = None) -> None:
        """Tells the listeners that the instruction is executed. keys: of the mbarriers it is about."""
        if not self.context.wire.issued:
            return
        names = self.units.names
        barriers = () if keys is None else tuple(names[key] for key in np.unique(keys % len(names)).tolist())
        active = convoy.active_warps, convoy.active_lanes, convoy.warps.block_count
        event = Issue(self.site, *active, convoy.warps, convoy.mask, barriers)
        for hear in self.context.wire.issued:
            hear(event)

    def rows(self, convoy: Convoy, lanes: Array) -> Array:
        """The clock row of each lane's warp."""
        rows: Array = self.units.clocks.row(convoy.warps)[lanes // WARP_THREADS]
        return rows

    def place(self, convoy: Convoy, lanes: Array) -> Where:
        """The statement as the first of these lanes' warps executes it."""
        chosen = np.zeros(convoy.warps.lanes, np.bool_)
        chosen[lanes] = True
        return where(self.site, convoy, chosen)

    def report(
        self, kind: Kind, headline: str, place: Where, *, buffer: str = "", note: str = "", hint: str = ""
    ) -> None:
        self.context.findings.report(kind, headline, place, buffer, note=note, hint=hint)


def held_back(convoy: Convoy, lanes: Array, wait: Wait) -> tuple[Convoy, ...]:
    """The warps that wait, alone. lanes: those that must; wait: for what each of them does."""
    warps, first = np.unique(lanes // WARP_THREADS, return_index=True)
    if len(warps) < len(convoy.warps):
        held = np.zeros(len(convoy.warps), np.bool_)
        held[warps] = True
        return convoy.part(~held), convoy.part(held)
    # Of each warp the first lane that must wait; the others are looked at when that one may go on.
    convoy.wait = Wait(wait.site, wait.thing, wait.keys[first], wait.wanted[first])
    return (convoy,)


def acting(convoy: Convoy) -> Array:
    """The lanes that take part."""
    if convoy.mask is None:
        return np.arange(convoy.warps.lanes)
    return np.flatnonzero(convoy.mask.lanes)


def values(place: Place, convoy: Convoy, lanes: Array) -> Array:
    """An integer of each of these lanes."""
    found: Array = place.cell.of(convoy).values[lanes] + place.offset(convoy.slots)
    return found


@dataclass(slots=True)
class SharedPlace:
    """An element of a shared buffer."""

    buffer: Buffer
    element: Place

    def of(self, op: UnitOp, convoy: Convoy, lanes: Array, count: int = 1) -> Array:
        """The element of each lane; the kernel stops where `count` elements from there leave the buffer."""
        first = values(self.element, convoy, lanes)
        outside = (first < 0) | (first + count > self.buffer.elements)
        if outside.any():
            at = int(np.argmax(outside))
            op.context.findings.stop(
                Kind.OUT_OF_BOUNDS,
                f"{self.buffer.name} has {self.buffer.elements} elements; element {int(first[at])}"
                + (f" and the {count - 1} after it are" if count > 1 else " is")
                + " addressed.",
                op.place(convoy, lanes[outside]),
                self.buffer.name,
                int(first[at]),
            )
        return first
