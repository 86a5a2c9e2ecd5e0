"""Loads and stores: one `Move` of the kernel, executed by all lanes of a convoy at once; cp.async, and waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Op
from tilewright.simulator.context import Context, where
from tilewright.simulator.convoy import Convoy, RegisterArray
from tilewright.simulator.findings import Access, Kind, Landing, Site
from tilewright.simulator.index import I32_HIGH, Place, Predicate, Uniform
from tilewright.simulator.warps import Mask, Pattern, both


@dataclass(slots=True)
class MemorySide:
    """The side of an access that is in memory: `width` elements a lane, where `guard` holds.

    checked_width: elements whose bounds are checked at once; fewer than `width` where it is not known how many
    elements of the access are touched.
    """

    site: Site
    context: Context
    buffer: Buffer
    place: Place
    width: int
    guard: Predicate | None
    is_store: bool
    checked_width: int

    def reach(self, convoy: Convoy, *, also: bool | Mask = True) -> tuple[Pattern, int]:
        """Where the lanes that take part touch memory; lanes that would break a rule are reported and left out.

        also: a further condition on the lanes.
        """
        guard = True if self.guard is None else self.guard(convoy)
        if guard is False or also is False:
            return convoy.warps.nowhere, 0
        active = convoy.mask if guard is True else both(convoy.mask, guard)
        active = active if also is True else both(active, also)
        if active is not None and not active.count:
            return convoy.warps.nowhere, 0
        offset = self.place.offset(convoy.slots)
        pattern = self.place.cell.of(convoy).pattern(active)
        if pattern.lanes.overflow is not None or (self.place.is_narrow and pattern.high + offset > I32_HIGH):
            self._check_overflow(convoy, pattern, offset)
        pattern = self.inside(convoy, pattern, offset, self.checked_width)
        if self.width > 1 and not self._is_aligned(pattern, offset):
            self._report_misaligned(convoy, pattern, offset)
        return pattern, offset

    def _check_overflow(self, convoy: Convoy, pattern: Pattern, offset: int) -> None:
        """Stops where a lane that takes part has left 32 bits: the GPU would touch another element."""
        beyond = (pattern.lanes.values + offset > I32_HIGH) & self.place.is_narrow
        if pattern.lanes.overflow is not None:
            beyond = beyond | pattern.lanes.overflow
        if pattern.active is not None:
            beyond = beyond & pattern.active.lanes
        if beyond.any():
            self.context.overflow(self.site, convoy, beyond)

    def inside(self, convoy: Convoy, pattern: Pattern, offset: int, width: int) -> Pattern:
        """The pattern without the lanes that leave the buffer, which are reported."""
        limit = self.context.memory.elements(self.buffer)
        if pattern.low + offset >= 0 and pattern.high + offset + width <= limit:
            return pattern
        first = pattern.lanes.values + offset
        outside = (first < 0) | (first + width > limit)
        if pattern.active is not None:
            outside &= pattern.active.lanes
        if not outside.any():
            return pattern
        element = int(first[int(np.argmax(outside))])
        verb = "written" if self.is_store else "read"
        self.context.findings.report(
            Kind.OUT_OF_BOUNDS,
            f"{self.buffer.name} has {limit} elements; {_elements(element, width)} {verb}.",
            where(self.site, convoy, outside),
            self.buffer.name,
            element,
            hint="guard the access, or check the index.",
        )
        kept = ~outside if pattern.active is None else pattern.active.lanes & ~outside
        return pattern.lanes.pattern(Mask(kept)) if kept.any() else convoy.warps.nowhere

    def _is_aligned(self, pattern: Pattern, offset: int) -> bool:
        """Whether each lane's address is a multiple of the bytes it moves, as the hardware demands."""
        size = self.buffer.dtype.bytes
        shared = offset + self.context.memory.base_of(self.buffer.name) // size
        return pattern.known(
            ("aligned", self.width, shared % self.width),
            lambda: not ((self._chosen(pattern) + shared) % self.width).any(),
        )

    @staticmethod
    def _chosen(pattern: Pattern) -> Array:
        values = pattern.lanes.values
        return values if pattern.active is None else values[pattern.active.lanes]

    def _report_misaligned(self, convoy: Convoy, pattern: Pattern, offset: int) -> None:
        size = self.buffer.dtype.bytes
        address = (pattern.lanes.values + offset) * size + self.context.memory.base_of(self.buffer.name)
        wrong = address % (self.width * size) != 0
        if pattern.active is not None:
            wrong &= pattern.active.lanes
        lane = int(np.argmax(wrong))
        self.context.findings.report(
            Kind.MISALIGNED,
            f"An access of {self.width * size} bytes to {self.buffer.name} is at byte {int(address[lane])}, "
            f"not at a multiple of {self.width * size}.",
            where(self.site, convoy, wrong),
            self.buffer.name,
            int(pattern.lanes.values[lane]) + offset,
            note="the hardware refuses a misaligned vector access.",
            hint="narrow the access, or pad the leading dimension.",
        )

    def tell(
        self,
        convoy: Convoy,
        pattern: Pattern,
        offset: int,
        *,
        matrices: int = 0,
        continued: bool = False,
        source: Pattern | None = None,
    ) -> Access:
        access = Access(
            self.site,
            self.buffer,
            self.is_store,
            self.width,
            pattern,
            offset,
            convoy.active_warps,
            0 if matrices else convoy.active_lanes - pattern.active_lanes,
            self.context.memory.base_of(self.buffer.name),
            convoy.warps,
            matrices,
            continued,
            source,
        )
        for hear in self.context.wire.accessed:
            hear(access)
        units = self.context.units
        if units is not None and units.waiting is not None and self.buffer.space is Space.GLOBAL:
            if pattern is not convoy.warps.nowhere:
                units.check_previous(self.site, convoy, pattern.active, self.buffer.name, store=self.is_store)
        return access

    def fetch(self, convoy: Convoy, access: Access) -> Array:
        """What memory holds where the lanes of an access point, (width, lanes), as it holds it; 0 for other lanes."""
        storage = self.context.memory.arrays[self.buffer.name]
        pattern = access.pattern
        rows = np.zeros((self.width, convoy.warps.lanes), storage.dtype)
        if pattern is convoy.warps.nowhere:
            return rows
        index, at = self.index(convoy, pattern, access.offset)
        if self.context.races is not None:
            self.context.races.read(access, convoy, index, at)
        for element, row in enumerate(rows):
            np.take(storage[at + element :], index, out=row, mode="clip")
        if pattern.active is not None:
            rows[:, ~pattern.active.lanes] = 0
        return rows

    def read(self, index: Array, at: int) -> Array:
        """What is stored at `index + at`; lanes that take no part may point anywhere, and get anything."""
        return np.take(self.context.memory.arrays[self.buffer.name][at:], index, mode="clip")

    def put(self, convoy: Convoy, access: Access, rows: Array) -> None:
        """Register values `rows`, (width, lanes), to where the lanes of an access point."""
        pattern = access.pattern
        if pattern is convoy.warps.nowhere:
            return
        index, at = self.index(convoy, pattern, access.offset)
        rows = self.context.arithmetic.encode(rows, self.buffer.dtype)
        storage = self.context.memory.arrays[self.buffer.name]
        if self.context.races is not None:
            self.context.races.write(access, convoy, index, at, rows, storage)
        if pattern.active is not None:
            index, rows = index[pattern.active.lanes], rows[:, pattern.active.lanes]
        for element, row in enumerate(rows):
            storage[at + element :][index] = row

    def index(self, convoy: Convoy, pattern: Pattern, offset: int) -> tuple[Array, int]:
        """Flat positions of all lanes in the storage array, less an offset that is at least 0."""
        if self.buffer.space is Space.SHARED:
            index = pattern.lanes.based(self.buffer.elements, convoy.warps.block_of_lane)
        else:
            index = pattern.lanes.values
        return (index + offset, 0) if offset < 0 or pattern.low < 0 else (index, offset)


def _elements(first: int, width: int) -> str:
    return f"element {first} is" if width == 1 else f"elements {first} to {first + width - 1} are"


@dataclass(slots=True)
class Transfer(MemorySide):
    """What loads and stores have in common. array, first: the registers, and where in them the access begins."""

    array: int
    first: Uniform

    def _registers(self, convoy: Convoy) -> tuple[RegisterArray, int]:
        first = self.first(convoy.slots)
        return self.context.touched(self.site, convoy, self.array, first, first + self.width), first


@dataclass(slots=True)
class LoadOp(Transfer):
    """Memory to registers; zero where the guard is false."""

    def __call__(self, convoy: Convoy) -> None:
        pattern, offset = self.reach(convoy)
        registers, first = self._registers(convoy)
        access = self.tell(convoy, pattern, offset)
        if not self.context.only_counts(self.buffer.dtype):
            self._fill(registers.data[first : first + self.width], convoy, access)
        if registers.missing:
            registers.mark(range(first, first + self.width), convoy.mask)

    def _fill(self, rows: Array, convoy: Convoy, access: Access) -> None:
        """What is in memory to registers, `rows`, (width, lanes)."""
        pattern = access.pattern
        if pattern is not convoy.warps.nowhere:
            index, at = self.index(convoy, pattern, access.offset)
            if self.context.races is not None:
                self.context.races.read(access, convoy, index, at)
            self._take(rows, index, at, convoy.mask)
        idle = self._guarded_off(convoy.mask, pattern.active)
        if idle is not None:
            np.copyto(rows, 0, where=idle.lanes)

    def _take(self, rows: Array, index: Array, at: int, mask: Mask | None) -> None:
        storage = self.context.memory.arrays[self.buffer.name]
        plain = mask is None and storage.dtype == rows.dtype
        for element, row in enumerate(rows):
            # Lanes that take no part may point anywhere: clipped, they read something unseen.
            if plain:
                np.take(storage[at + element :], index, out=row, mode="clip")
                continue
            found = self.context.arithmetic.decode(
                np.take(storage[at + element :], index, mode="clip"), self.buffer.dtype
            )
            np.copyto(row, found, where=True if mask is None else mask.lanes)

    @staticmethod
    def _guarded_off(mask: Mask | None, active: Mask | None) -> Mask | None:
        """Lanes that execute the load but do not touch memory."""
        if active is None or active is mask:
            return None
        return active.inverse if mask is None else mask.minus(active)


@dataclass(slots=True)
class StoreOp(Transfer):
    """Registers to memory; nothing where the guard is false."""

    def __call__(self, convoy: Convoy) -> None:
        pattern, offset = self.reach(convoy)
        registers, first = self._registers(convoy)
        if registers.missing:
            bare = registers.unwritten(range(first, first + self.width), pattern.active)
            if bare is not None:
                self.context.unwritten_register(self.site, convoy, registers.buffer.name, *bare)
        access = self.tell(convoy, pattern, offset)
        if not self.context.only_counts(self.buffer.dtype):
            self.put(convoy, access, registers.data[first : first + self.width])


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
            Kind.COPY_SIZE,
            f"A copy of {width} element(s) of {name} is told to read {int(sizes[lane])} of them.",
            where(self.source.site, convoy, wrong),
            name,
            note="the hardware takes the size as it comes: what it would read is not defined.",
            hint="guard the copy, so that lanes with nothing to read ask for nothing.",
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
