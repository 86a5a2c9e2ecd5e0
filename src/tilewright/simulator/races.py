"""The race detector: accesses to one element by two threads that nothing orders, and reads of unwritten elements.

Beside each element of shared memory, and of each global buffer that the kernel writes, stands a shadow. Two accesses
by different threads, one of them a write, conflict unless an order separates them. The only order so far is the
barrier: each block counts its barriers, and accesses of one block in different *epochs* are ordered; blocks never
are. (Where mbarriers order accesses as well, `asynchronous.ordered` takes the place of this detector.)

Lanes of a warp are threads like any others: since Volta nothing orders them but a barrier. As in compute-sanitizer,
writing the value that is already there is no race; it is noted as redundant.

Reads are the bulk of all accesses, and between two barriers a tile is almost always only read. So reads are put down
as they come, and entered into the shadow only when somebody writes the same buffer before the next barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.simulator.convoy import Convoy, InFlight
from tilewright.simulator.findings import Access, Findings, Kind, Site, Where
from tilewright.simulator.warps import Batch

NEVER, ALWAYS = -1, 2**31 - 1


@dataclass(slots=True)
class Touch:
    """One access by the active lanes of a convoy; arrays have one entry for each of them.

    element: the first that the lane touches, counted through all copies of the buffer. thread: numbered through the
    grid from 1. epoch: barriers that the lane's block has passed, an int where all blocks have passed equally many.
    """

    access: Access
    convoy: Convoy
    element: Array
    thread: Array
    epoch: int | Array

    @property
    def site(self) -> Site:
        return self.access.site

    @property
    def is_global(self) -> bool:
        return self.access.space is Space.GLOBAL

    @property
    def earliest(self) -> int:
        """The first epoch whose accesses may conflict with this one."""
        if self.is_global:
            return 0
        return self.epoch if isinstance(self.epoch, int) else int(self.epoch.min())

    @property
    def latest(self) -> int:
        """The last epoch that this access belongs to; blocks share no epochs, so global memory is always at stake."""
        if self.is_global:
            return ALWAYS
        return self.epoch if isinstance(self.epoch, int) else int(self.epoch.max())

    def words(self) -> list[Array]:
        """The elements touched, an array for each step of the access's width."""
        return [self.element + step for step in range(self.access.width)]

    def epoch_of(self, chosen: Array) -> int | Array:
        return self.epoch if isinstance(self.epoch, int) else self.epoch[chosen]

    def where(self, step: int, chosen: Array) -> tuple[int, Where]:
        """The element of the buffer that the first chosen lane touches, and that lane's warp as a place."""
        pattern, warps = self.access.pattern, self.convoy.warps
        lanes = chosen
        if pattern.active is not None:
            lanes = np.zeros(warps.lanes, np.bool_)
            lanes[pattern.active.lanes] = chosen
        lane = int(np.argmax(lanes))
        warp = lane // WARP_THREADS
        in_warp = np.flatnonzero(lanes[warp * WARP_THREADS : (warp + 1) * WARP_THREADS]).tolist()
        site, loops = self.site, self.site.values(self.convoy.slots)
        where = Where(site.line, site.text, warps.coordinates(warp), int(warps.numbers[warp]), tuple(in_warp), loops)
        return int(pattern.lanes.values[lane]) + self.access.offset + step, where


class Shadow:
    """What is known of each element of one buffer: the last writer, and two of the threads that read it since.

    Two readers are enough: a writer conflicts with some other reader exactly if it conflicts with one of two
    different ones. any_write, any_read: the last epoch in which some block wrote or read anything. copied_by: the
    thread whose asynchronous copy to the element is under way (0: none); copies: how many elements there are of these.
    """

    __slots__ = (
        "any_read",
        "any_write",
        "copied_by",
        "copies",
        "pending",
        "read_epoch",
        "readers",
        "threads",
        "write_epoch",
        "writer",
    )

    def __init__(self, elements: int, threads_per_block: int) -> None:
        # Zero pages cost nothing until they are touched: the shadow of a large C of which little is written is cheap.
        self.writer, *self.readers = (Owners(elements) for _ in range(3))
        self.write_epoch, self.read_epoch = np.zeros(elements, np.int32), np.zeros(elements, np.int32)
        self.any_read = self.any_write = NEVER
        self.threads = threads_per_block
        self.pending: dict[object, Touch] = {}
        self.copied_by = Owners(elements)
        self.copies = 0

    def unordered(self, thread: Array, epoch: Array, now: Touch) -> Array:
        """For each lane of `now`: whether nothing orders it and what `thread` did in `epoch`. Thread 0 is none."""
        other = (thread != now.thread) & (thread != 0)
        concurrent = epoch == now.epoch
        if now.is_global:
            concurrent |= (thread - 1) // self.threads != (now.thread - 1) // self.threads
        result: Array = other & concurrent
        return result

    def unwritten(self, now: Touch) -> tuple[int, Array] | None:
        """The first step of a read at which lanes find an unwritten element, and those lanes."""
        for step, words in enumerate(now.words()):
            bare = self.writer.thread[words] == 0
            if bare.any():
                return step, bare
        return None

    def copied(self, now: Touch) -> tuple[int, Array] | None:
        """The first step at which lanes meet a copy that is under way, and those lanes."""
        for step, words in enumerate(now.words()):
            busy = self.copied_by.thread[words] != 0
            if busy.any():
                return step, busy
        return None

    def start_copy(self, copy: Touch) -> None:
        for words in copy.words():
            self.copied_by.enter(words, copy.thread, copy.site)
            self.copies += len(words)

    def land_copy(self, words: Array, thread: Array, site: Site, epoch: Array) -> None:
        """Copies to `words` have arrived: from here on they are writes by the threads that waited for them."""
        self.copied_by.thread[words] = 0
        self.copies -= len(words)
        self.writer.enter(words, thread, site)
        self.write_epoch[words] = epoch
        self.any_write = int(epoch.max(initial=self.any_write))  # of a copy without an element, nothing

    def defer(self, read: Touch, barriers: int) -> None:
        """Put down a read, to be entered when it matters. barriers: passed so far by any block."""
        self.pending.setdefault((id(read.access.pattern), read.access.offset, read.site.index, barriers), read)

    def enter_pending(self) -> None:
        for read in self.pending.values():
            self.enter_read(read)
        self.pending.clear()

    def enter_read(self, read: Touch) -> None:
        first, second = self.readers
        for words in read.words():
            known, epoch = first.thread[words], self.read_epoch[words]
            again = (known == read.thread) & (epoch == read.epoch)
            fresh = ~(again | self.unordered(known, epoch, read))
            mine = words[fresh]
            first.enter(mine, read.thread[fresh], read.site)
            self.read_epoch[mine] = read.epoch_of(fresh)
            second.thread[mine] = 0
            others = first.thread[words] != read.thread  # a rival known before, or a lane of this very read
            second.enter(words[others], read.thread[others], read.site)
        self.any_read = max(self.any_read, read.latest)

    def enter_write(self, write: Touch) -> None:
        for words in write.words():
            self.writer.enter(words, write.thread, write.site)
            self.write_epoch[words] = write.epoch
        self.any_write = max(self.any_write, write.latest)


class Owners:
    """The thread that touched each element, and the index of the site where it did."""

    __slots__ = ("site", "thread")

    def __init__(self, elements: int) -> None:
        self.thread, self.site = np.zeros(elements, np.int32), np.zeros(elements, np.int32)

    def enter(self, words: Array, thread: Array, site: Site) -> None:
        self.thread[words] = thread
        self.site[words] = site.index


_PENDING_READS = 4096
"""Reads put down before they are entered after all, so that memory stays bounded."""


class Races:
    """The shadows of one run. sites: of the kernel. written: the elements of each global buffer that it writes."""

    def __init__(self, sites: Sequence[Site], findings: Findings, threads: int, written: Mapping[str, int]) -> None:
        self._sites = sites
        self._findings = findings
        self._threads = threads
        self._global = {name: Shadow(elements, threads) for name, elements in written.items()}
        self._shadows: dict[str, Shadow] = {}
        self._epochs = np.ones(1, np.int32)
        self._common_epoch: int | None = 1
        self._barriers = 0
        self._noted: set[int] = set()  # sites known to write one value by several lanes: once is enough
        self._batch: Batch | None = None

    def new_batch(self, batch: Batch, shared: Mapping[str, int]) -> None:
        """Blocks start; `shared` gives the elements of each of their shared buffers."""
        self._batch = batch
        own = {name: Shadow(batch.blocks * elements, self._threads) for name, elements in shared.items()}
        self._shadows = self._global | own
        self._epochs = np.ones(batch.blocks, np.int32)
        self._common_epoch = 1

    def passed_barrier(self, slots: Array) -> None:
        """The blocks in these slots have all met at a barrier."""
        self._epochs[slots] += 1
        self._barriers += 1
        low, high = int(self._epochs.min()), int(self._epochs.max())
        self._common_epoch = low if low == high else None
        for shadow in self._shadows.values():
            if self._common_epoch is not None:
                shadow.pending.clear()
            elif len(shadow.pending) > _PENDING_READS:
                shadow.enter_pending()

    def read(self, access: Access, convoy: Convoy, index: Array, at: int) -> None:
        """Active lanes read from `index + at` on."""
        shadow = self._shadows.get(access.buffer.name)
        if shadow is None:
            return
        now = self._touch(access, convoy, index, at)
        self._check_copies(shadow, now)
        if not now.is_global:
            self._check_written(shadow, now)
        if shadow.any_write >= now.earliest:
            for step, words in enumerate(now.words()):
                bad = shadow.unordered(shadow.writer.thread[words], shadow.write_epoch[words], now)
                if bad.any():
                    self._race(now, step, bad, shadow.writer, "written")
                    break
        if now.is_global:
            shadow.enter_read(now)
        else:
            shadow.defer(now, self._barriers)

    def write(self, access: Access, convoy: Convoy, index: Array, at: int, rows: Array, storage: Array) -> None:
        """Active lanes are about to write `rows`, (width, lanes), into `storage` from `index + at` on."""
        shadow, now = self._check_store(access, convoy, index, at, rows, storage)
        shadow.enter_write(now)

    def start_copy(self, access: Access, convoy: Convoy, index: Array, at: int, rows: Array, storage: Array) -> None:
        """Active lanes start an asynchronous copy of `rows`: until it lands no thread may touch its target."""
        shadow, now = self._check_store(access, convoy, index, at, rows, storage)
        shadow.start_copy(now)

    def land_copy(self, copy: InFlight, convoy: Convoy) -> None:
        """A copy has arrived, because its lanes have waited for it."""
        thread = convoy.warps.global_thread[copy.lanes]
        epoch = self._epochs[convoy.warps.block_of_lane[copy.lanes]]
        for step in range(len(copy.rows)):
            self._shadows[copy.buffer].land_copy(copy.element + step, thread, copy.site, epoch)

    def _check_store(
        self, access: Access, convoy: Convoy, index: Array, at: int, rows: Array, storage: Array
    ) -> tuple[Shadow, Touch]:
        """A store with everything that it may conflict with checked."""
        shadow = self._shadows[access.buffer.name]
        now = self._touch(access, convoy, index, at)
        active = access.pattern.active
        values = rows if active is None else rows[:, active.lanes]
        self._check_copies(shadow, now)
        shadow.enter_pending()
        earliest = now.earliest
        self._check_lanes(now, values)
        if shadow.any_write >= earliest:
            self._check_writers(shadow, now, values, storage)
        if shadow.any_read >= earliest:
            self._check_readers(shadow, now)
        return shadow, now

    def _touch(self, access: Access, convoy: Convoy, index: Array, at: int) -> Touch:
        warps, active = convoy.warps, access.pattern.active
        thread, common = warps.global_thread, self._common_epoch
        epoch: int | Array = self._epochs[warps.block_of_lane] if common is None else common
        if active is not None:
            thread, index = thread[active.lanes], index[active.lanes]
            epoch = epoch if isinstance(epoch, int) else epoch[active.lanes]
        return Touch(access, convoy, index + at, thread, epoch)

    def _check_copies(self, shadow: Shadow, now: Touch) -> None:
        """Elements to which an asynchronous copy is under way, be it by the same thread."""
        found = shadow.copied(now) if shadow.copies else None
        if found is None:
            return
        step, busy = found
        word = int(now.element[int(np.argmax(busy))]) + step
        earlier = self._place(self._sites[int(shadow.copied_by.site[word])], int(shadow.copied_by.thread[word]))
        element, where = now.where(step, busy)
        name, verb = now.access.buffer.name, "written" if now.access.store else "read"
        self._findings.report(
            Kind.RACE,
            f"Race on {name}[{element}]: {verb} here, while an asynchronous copy to it is under way.",
            where,
            name,
            element,
            earlier,
            hint="wait for the group of the copy, then let a barrier order the threads.",
        )

    def _check_written(self, shadow: Shadow, now: Touch) -> None:
        key = ("written", now.site.index, now.access.offset)
        if key in now.access.pattern.memo:  # what was written once stays written
            return
        found = shadow.unwritten(now)
        if found is None:
            now.access.pattern.memo[key] = True
            return
        element, where = now.where(*found)
        name = now.access.buffer.name
        headline = f"{name}[{element}] is read before any thread wrote it."
        self._findings.report(Kind.UNWRITTEN, headline, where, name, element)

    def _check_lanes(self, now: Touch, values: Array) -> None:
        """Lanes of this very store that write one element."""
        order, repeated = now.access.pattern.known(
            ("repeated", now.site.index), lambda: _repeats(now.element, now.access.width)
        )
        if repeated is None:
            return
        steps = _steps_of(values, order, now.access.width)
        differ = repeated & (steps[1:] != steps[:-1])
        kind, wrong = (Kind.RACE, differ) if differ.any() else (Kind.SAME_VALUE, repeated)
        if kind is Kind.SAME_VALUE:
            if now.site.index in self._noted:
                return
            self._noted.add(now.site.index)
        at = int(np.argmax(wrong))
        lane, step = divmod(int(order[at + 1]), now.access.width)
        chosen = np.arange(len(now.thread)) == lane
        other = int(now.thread[int(order[at]) // now.access.width])
        self._report(kind, now, step, chosen, self._place(now.site, other), "written in this very execution")

    def _check_writers(self, shadow: Shadow, now: Touch, values: Array, storage: Array) -> None:
        for step, words in enumerate(now.words()):
            bad = shadow.unordered(shadow.writer.thread[words], shadow.write_epoch[words], now)
            if not bad.any():
                continue
            differs = bad & (_bits(storage[words]) != _bits(values[step]))
            if differs.any():
                self._race(now, step, differs, shadow.writer, "written")
                return
            self._race(now, step, bad, shadow.writer, "written", Kind.SAME_VALUE)

    def _check_readers(self, shadow: Shadow, now: Touch) -> None:
        for step, words in enumerate(now.words()):
            for reader in shadow.readers:
                bad = shadow.unordered(reader.thread[words], shadow.read_epoch[words], now)
                if bad.any():
                    self._race(now, step, bad, reader, "read")
                    return

    def _race(self, now: Touch, step: int, bad: Array, owners: Owners, verb: str, kind: Kind = Kind.RACE) -> None:
        """`bad` lanes of `now` conflict with those who own their elements."""
        word = int(now.element[int(np.argmax(bad))]) + step
        site = self._sites[int(owners.site[word])]
        self._report(kind, now, step, bad, self._place(site, int(owners.thread[word])), verb)

    def _report(self, kind: Kind, now: Touch, step: int, bad: Array, earlier: Where, verb: str) -> None:
        element, where = now.where(step, bad)
        name = now.access.buffer.name
        if kind is Kind.SAME_VALUE:
            headline, hint = f"{name}[{element}] is written with the same value by several threads.", ""
        else:
            now_verb = "written" if now.access.store else "read"
            who = "another thread" if earlier.block == where.block else "a thread of another block"
            headline = f"Race on {name}[{element}]: {now_verb} here, {verb} by {who}, and nothing orders the two."
            hint = "a barrier between the two lines orders them." if earlier.block == where.block else ""
        self._findings.report(kind, headline, where, name, element, earlier, hint=hint)

    def _place(self, site: Site, thread: int) -> Where:
        """The site as a thread of the grid executes it; what its loops stood at is not kept."""
        assert self._batch is not None
        block, number = divmod(thread - 1, self._threads)
        x, y, _ = self._batch.grid
        coordinates = (block % x, block // x % y, block // (x * y))
        return Where(site.line, site.text, coordinates, number // WARP_THREADS, (number % WARP_THREADS,))


def _bits(values: Array) -> Array:
    """Values as integers, so that NaN equals NaN and 0 differs from -0."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _repeats(first: Array, width: int) -> tuple[Array, Array | None]:
    """All elements of a store in ascending order (lane * width + step), and which equal the one before them.

    None instead of the latter where no element is written twice.
    """
    words = (first[:, None] + np.arange(width)).reshape(-1)
    order = np.argsort(words, kind="stable")
    ascending = words[order]
    repeated = ascending[1:] == ascending[:-1]
    return order, repeated if repeated.any() else None


def _steps_of(values: Array, order: Array, width: int) -> Array:
    """The bits written to each element of a store, in the order of `_repeats`."""
    return _bits(values.T.reshape(-1) if width > 1 else values[0])[order]
