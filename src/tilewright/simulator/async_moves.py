"""Asynchronous copies from global to shared memory (cp.async), their groups, and the wait for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.expr import Op
from tilewright.simulator.context import Context, where
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.events import Landing
from tilewright.simulator.findings import Finding, Kind
from tilewright.simulator.index import Place
from tilewright.simulator.moves import MemorySide
from tilewright.simulator.warps import Mask, Pattern, both


@dataclass(slots=True)
class AsyncCopyOp:
    """Starts a copy. source: read where its guard holds; target: written by all, with zero where nothing is read.

    valid: how many elements of the width are read, from 0 to all, where the guard holds; None for all.
    """

    context: Context
    source: MemorySide
    target: MemorySide
    valid: Place | None

    def __call__(self, convoy: Convoy) -> None:
        rows, source = self._read(convoy)
        pattern, offset = self.target.reach(convoy)
        access = self.target.tell(convoy, pattern, offset, source=source)
        if pattern is convoy.warps.nowhere:
            return
        index, at = self.target.index(convoy, pattern, offset)
        name = self.target.buffer.name
        if self.context.races is not None:
            self.context.races.start_copy(access, convoy, index, at, rows, self.context.memory.arrays[name])
        active = pattern.active
        lanes = np.arange(convoy.warps.lanes) if active is None else np.flatnonzero(active.lanes)
        convoy.copies.start(self.target.site, name, lanes, index[lanes] + at, rows[:, lanes])

    def _read(self, convoy: Convoy) -> tuple[Array, Pattern]:
        """What each lane will write, (width, lanes), as memory holds it, and where it is read."""
        source = self.source
        storage = self.context.memory.arrays[source.buffer.name]
        rows = np.zeros((source.width, convoy.warps.lanes), storage.dtype)
        self._check_sizes(convoy)
        pattern, offset = source.reach(convoy, also=self._valid(convoy, 0))
        source.tell(convoy, pattern, offset)
        if pattern is convoy.warps.nowhere:
            return rows, pattern
        for step, row in enumerate(rows):
            here = self._touching(convoy, pattern, offset, step)
            if here is None or here.active_lanes:
                index, at = source.index(convoy, pattern, offset)
                active = True if here is None or here.active is None else here.active.lanes
                np.copyto(row, source.read(index, at + step), where=active)
        return rows, pattern

    def _check_sizes(self, convoy: Convoy) -> None:
        """Report the lanes that ask for fewer than no elements, or for more than the copy has.

        Lanes whose guard is false ask for none. Source: PTX ISA, cp.async (a src-size above cp-size is undefined, and
        a negative one is a large number to hardware that knows no sign).
        """
        guard = True if self.source.guard is None else self.source.guard(convoy)
        if self.valid is None or guard is False:
            return
        active = convoy.mask if guard is True else both(convoy.mask, guard)
        if active is not None and not active.count:
            return
        pattern, offset = self.valid.cell.of(convoy).pattern(active), self.valid.offset(convoy.slots)
        width = self.source.width
        if pattern.low + offset >= 0 and pattern.high + offset <= width:
            return
        sizes = pattern.lanes.values + offset
        wrong = (sizes < 0) | (sizes > width)
        if active is not None:
            wrong &= active.lanes
        lane = int(np.argmax(wrong))
        name = self.source.buffer.name
        self.context.findings.report(
            Finding(
                Kind.COPY_SIZE,
                f"A copy of {width} element(s) of {name} is told to read {int(sizes[lane])} of them.",
                where(self.source.site, convoy, wrong),
                name,
                note="the hardware takes the size as it comes: what it would read is not defined.",
                hint="guard the copy, so that lanes with nothing to read ask for nothing.",
            )
        )

    def _touching(self, convoy: Convoy, pattern: Pattern, offset: int, step: int) -> Pattern | None:
        """The lanes that read the element `step` of their copy; checked, where not all of the width is valid."""
        if self.valid is None:
            return pattern
        within = self._valid(convoy, step)
        if within is False:
            return convoy.warps.nowhere
        active = pattern.active if within is True else both(pattern.active, within)
        if active is not None and not active.count:
            return convoy.warps.nowhere
        return self.source.inside(convoy, pattern.lanes.pattern(active), offset + step, 1)

    def _valid(self, convoy: Convoy, step: int) -> bool | Mask:
        if self.valid is None:
            return True
        return self.valid.cell.of(convoy).compare(Op.GE, step + 1 - self.valid.offset(convoy.slots))


@dataclass(slots=True)
class CommitOp:
    """The copies started since the last commit become a group."""

    def __call__(self, convoy: Convoy) -> None:
        convoy.copies.commit(None if convoy.mask is None else convoy.mask.lanes)


@dataclass(slots=True)
class WaitOp:
    """Groups land, oldest first, until `pending` are left. A thread waits for its own copies only."""

    context: Context
    pending: int

    def __call__(self, convoy: Convoy) -> None:
        mask = convoy.mask
        for copy in convoy.copies.landed(self.pending, None if mask is None else mask.lanes):
            storage = self.context.memory.arrays[copy.buffer]
            for step, row in enumerate(copy.rows):
                storage[copy.element + step] = row
            for hear in self.context.wire.landed:
                hear(Landing(copy.buffer, copy.element, convoy.warps))
            if self.context.races is not None:
                self.context.races.land_copy(copy, convoy)
