"""The race detector of kernels with asynchronous units: two accesses conflict unless clocks order them.

As `races`, with vector clocks in place of epochs. Warps are what is ordered: whatever a warp did before one of its
lanes arrives at an mbarrier comes before what follows the wait; lanes of one warp are ordered by barriers only.
An access of a unit lasts from the statement that starts it to the end that somebody waits for: it is stamped with the
counter that says so (`clocks`). What ordinary accesses wrote, the units see only after a fence by those who wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS, Clocks
from tilewright.simulator.convoy import Convoy, InFlight
from tilewright.simulator.findings import Access, Findings, Kind, Site, Where, numbers_text
from tilewright.simulator.races import Owners, Races, Shadow, Touch, _bits
from tilewright.simulator.warps import Batch


class Readers:
    """When each of some members (warps, warpgroups) last read each element: (members, elements)."""

    __slots__ = ("first", "site", "time")

    def __init__(self, first: int, members: int, elements: int) -> None:
        self.first = first
        """The counter of member 0."""
        self.time = np.zeros((members, elements), np.int32)
        self.site = np.zeros((members, elements), np.int32)


class GlobalReads:
    """A read of each element of global memory by some thread: its counter, and the value that stands for it."""

    __slots__ = ("by", "column", "time")

    def __init__(self, elements: int) -> None:
        self.by = Owners(elements)
        self.column, self.time = np.zeros(elements, np.int32), np.zeros(elements, np.int32)

    def enter(self, words: Array, thread: Array, site: Array | int, column: Array, time: Array) -> None:
        self.by.thread[words], self.by.site[words] = thread, site
        self.column[words], self.time[words] = column, time


class ClockShadow(Shadow):
    """What is known of each element of a buffer. column: the counter of the last write; `write_epoch`: its value.
    last_read, other_read: in global memory, the last read, and one that nothing orders before it; of such reads one
    of another cluster, if there is any. With these two a writer that no barrier of its block orders meets one.

    reads: of warps, of wgmma and of TMA stores, by the first counter of each; made when first needed, since zero
    pages cost nothing until they are touched.
    """

    __slots__ = ("column", "elements", "last_read", "other_read", "reads")

    def __init__(self, elements: int, threads_per_block: int) -> None:
        super().__init__(elements, threads_per_block)
        self.elements = elements
        self.column = np.zeros(elements, np.int32)
        self.last_read, self.other_read = (GlobalReads(elements) for _ in range(2))
        self.reads: dict[int, Readers] = {}

    def readers_of(self, first: int, members: int) -> Readers:
        found = self.reads.get(first)
        if found is None:
            found = self.reads[first] = Readers(first, members, self.elements)
        return found


class Places(Protocol):
    """Where each of several accesses happens."""

    def __getitem__(self, row: int, /) -> Where: ...


@dataclass(slots=True)
class UnitAccess:
    """An access by a unit, on behalf of warps; arrays have a row for each of them.

    verb: what happens, in words. elements: counted through all copies of the buffer, (n, elements); the rest is (n,).
    row: the warp that started it. slot: the block whose shared memory it is (-1: global memory). first, member, value:
    the stamp: a kind of counter, which of it, and what it will reach when the access is over. where: for a report.
    """

    site: Site
    buffer: str
    verb: str
    elements: Array
    row: Array
    slot: Array
    first: int
    member: Array
    value: Array
    thread: Array
    where: Places


class OrderedRaces(Races):
    """The shadows of one run, ordered by the clocks of the batch that runs."""

    clocks: Clocks

    def __init__(
        self, sites: Sequence[Site], findings: Findings, threads: int, written: Mapping[str, int], cluster: int
    ) -> None:
        super().__init__(sites, findings, threads, {})
        self._clock_global = {name: ClockShadow(elements, threads) for name, elements in written.items()}
        self._of: dict[str, ClockShadow] = {}
        self._per_block: dict[str, int] = {}
        self._cluster_threads = threads * cluster
        """Of the blocks that something may order: a cluster, or all where flags do."""
        self.barrier_name: Callable[[int], str] = str
        self.of_ranks: frozenset[str] = frozenset()
        """Global buffers that other ranks write."""

    def new_batch(self, batch: Batch, shared: Mapping[str, int]) -> None:
        self._batch = batch
        self._per_block = dict(shared)
        own = {name: ClockShadow(batch.blocks * elements, self._threads) for name, elements in shared.items()}
        self._of = self._clock_global | own
        self._shadows = dict(self._of)

    def passed_barrier(self, slots: Array) -> None:
        warps = self.clocks.warps
        self.clocks.meet(slots[:, None] * warps + np.arange(warps))

    # -- ordinary accesses ------------------------------------------------------------------------------------------

    def read(self, access: Access, convoy: Convoy, index: Array, at: int) -> None:
        shadow = self._of.get(access.buffer.name)
        if shadow is None:
            return
        now, rows = self._touch_rows(access, convoy, index, at)
        self._check_copies(shadow, now)
        if not now.is_global:
            self._check_written(shadow, now)
        for step, words in enumerate(now.words()):
            bad = self._after_writer(shadow, words, rows, now.thread, is_global=now.is_global)
            if bad.any():
                self._ordinary_race(shadow, now, step, bad)
                break
        times = self.clocks.now(rows)
        if now.is_global:
            for words in now.words():
                self._enter_global_read(shadow, words, now.thread, now.site, rows, self.clocks.own[rows], times)
            return
        readers = shadow.readers_of(0, self.clocks.warps)
        for words in now.words():
            readers.time[rows % self.clocks.warps, words] = times
            readers.site[rows % self.clocks.warps, words] = now.site.index

    def _enter_global_read(
        self, shadow: ClockShadow, words: Array, thread: Array, site: Site, rows: Array, columns: Array, times: Array
    ) -> None:
        """columns, times: the counters that say when the reads are over, and what they will reach."""
        last, other = shadow.last_read, shadow.other_read
        last_read = last.by.thread[words], last.by.site[words], last.column[words], last.time[words]
        # A read that is ordered before this one conflicts with no write that this one does not conflict with.
        other.by.thread[words[~self._unordered_read(other, words, rows)]] = 0
        free = ~self._foreign(other.by.thread[words], rows)
        beside = free & self._unordered_read(last, words, rows)
        other.enter(words[beside], *(array[beside] for array in last_read))
        last.enter(words, thread, site.index, columns, times)
        beside = free & (last.column[words] != columns)  # of another warp in this very read
        other.enter(words[beside], thread[beside], site.index, columns[beside], times[beside])

    def _unordered_read(self, reads: GlobalReads, words: Array, rows: Array) -> Array:
        """Which accesses come after no known end of these reads."""
        thread = reads.by.thread[words]
        late = reads.time[words] > self.clocks.rows[rows, reads.column[words]]
        result: Array = self._foreign(thread, rows) | (late & (thread != 0))
        return result

    def write(self, access: Access, convoy: Convoy, index: Array, at: int, rows: Array, storage: Array) -> None:
        shadow, now, warps = self._check_ordinary_store(access, convoy, index, at, rows, storage)
        for words in now.words():
            self._enter_write(shadow, words, warps, now.thread, now.site)

    def start_copy(self, access: Access, convoy: Convoy, index: Array, at: int, rows: Array, storage: Array) -> None:
        shadow, now, _ = self._check_ordinary_store(access, convoy, index, at, rows, storage)
        shadow.start_copy(now)

    def land_copy(self, copy: InFlight, convoy: Convoy) -> None:
        shadow = self._of[copy.buffer]
        thread = convoy.warps.global_thread[copy.lanes]
        rows = self.clocks.row(convoy.warps)[copy.lanes // WARP_THREADS]
        for step in range(len(copy.rows)):
            words = copy.element + step
            shadow.copied_by.thread[words] = 0
            shadow.copies -= len(words)
            self._enter_write(shadow, words, rows, thread, copy.site)

    def _enter_write(self, shadow: ClockShadow, words: Array, rows: Array, thread: Array, site: Site) -> None:
        shadow.writer.enter(words, thread, site)
        shadow.write_epoch[words] = self.clocks.now(rows)
        shadow.column[words] = self.clocks.own[rows]
        self.clocks.wrote(rows, (thread - 1) % self._threads % WARP_THREADS)

    def _touch_rows(self, access: Access, convoy: Convoy, index: Array, at: int) -> tuple[Touch, Array]:
        warps, active = convoy.warps, access.pattern.active
        thread = warps.global_thread
        rows = np.repeat(self.clocks.row(warps), WARP_THREADS)
        if active is not None:
            thread, index, rows = thread[active.lanes], index[active.lanes], rows[active.lanes]
        return Touch(access, convoy, index + at, thread, 0), rows

    def _check_ordinary_store(
        self, access: Access, convoy: Convoy, index: Array, at: int, values: Array, storage: Array
    ) -> tuple[ClockShadow, Touch, Array]:
        shadow = self._of[access.buffer.name]
        now, rows = self._touch_rows(access, convoy, index, at)
        active = access.pattern.active
        values = values if active is None else values[:, active.lanes]
        self._check_copies(shadow, now)
        self._check_lanes(now, values)
        for step, words in enumerate(now.words()):
            bad = self._after_writer(shadow, words, rows, now.thread, is_global=now.is_global)
            if bad.any():
                by_units = self._kind_of(shadow.column[words]) != 0
                differs = bad & (by_units | (_bits(storage[words]) != _bits(values[step])))
                if differs.any():
                    self._ordinary_race(shadow, now, step, differs)
                    break
                self._race(now, step, bad, shadow.writer, "written", Kind.SAME_VALUE)
        self._check_ordinary_readers(shadow, now, rows)
        return shadow, now, rows

    def _check_ordinary_readers(self, shadow: ClockShadow, now: Touch, rows: Array) -> None:
        if now.is_global:
            for step, words in enumerate(now.words()):
                for reads in (shadow.last_read, shadow.other_read):
                    bad = self._unordered_read(reads, words, rows) & (reads.by.thread[words] != now.thread)
                    if bad.any():
                        self._race(now, step, bad, reads.by, "read")
                        return
            return
        slots = rows // self.clocks.warps
        for step, words in enumerate(now.words()):
            for readers in shadow.reads.values():
                bad = self._after_readers(readers, words, rows, slots)
                if bad.any():
                    member, lane = (int(i) for i in np.argwhere(bad)[0])
                    earlier = self._reader_place(readers, member, int(words[lane]), int(slots[lane]))
                    element, where = now.where(step, bad[member])
                    then = self._reader_text(readers.first, member)
                    self._clash(where, now.access.buffer.name, element, "written", then, earlier, readers.first)
                    return

    def _ordinary_race(self, shadow: ClockShadow, now: Touch, step: int, bad: Array) -> None:
        """Lanes meet a write that nothing orders: of another thread, or of a unit."""
        words = now.element + step
        at = int(np.argmax(bad))
        column = int(shadow.column[words[at]])
        kind = int(self._kind_of(np.array([column]))[0])
        if kind == 0:
            self._race(now, step, bad, shadow.writer, "written")
            return
        element, where = now.where(step, bad)
        site = self._sites[int(shadow.writer.site[words[at]])]
        earlier = self._place(site, int(shadow.writer.thread[words[at]]))
        verb = "written" if now.access.store else "read"
        self._clash(where, now.access.buffer.name, element, verb, self._writer_text(column), earlier, kind)

    # -- what orders ------------------------------------------------------------------------------------------------

    def _after_writer(
        self, shadow: ClockShadow, words: Array, rows: Array, thread: Array | None, *, is_global: bool
    ) -> Array:
        """Which accesses come after no known end of the last write. thread: of lanes, whose own writes are earlier."""
        time, column = shadow.write_epoch[words], shadow.column[words]
        if is_global:
            writer = shadow.writer.thread[words]
            foreign = self._foreign(writer, rows)
            late = time > self.clocks.rows[rows, column]
            result: Array = foreign | (late & (writer != 0))
            return result
        late = time > self.clocks.rows[rows, column]
        if thread is not None:
            same = (column == self.clocks.own[rows]) & (shadow.writer.thread[words] != thread)
            late |= same & (time >= self.clocks.together[rows]) & (time > 0)
        return late

    def _after_readers(self, readers: Readers, words: Array, rows: Array, slots: Array) -> Array:
        """Which accesses come after no known end of a read, (members, accesses)."""
        time = readers.time[:, words]
        members = np.arange(len(time))[:, None]
        columns = self.clocks.rank[slots][None, :] * self.clocks.of_block + readers.first + members
        bad: Array = time > self.clocks.rows[rows[None, :], columns]
        return bad

    def _foreign(self, thread: Array, rows: Array) -> Array:
        """Threads of other clusters, which nothing orders; thread 0 is none."""
        assert self._batch is not None
        own = self._batch.linear[rows // self.clocks.warps] * self._threads // self._cluster_threads
        result: Array = (thread != 0) & ((thread - 1) // self._cluster_threads != own)
        return result

    def _kind_of(self, columns: Array) -> Array:
        """The first counter of the kind that a column belongs to."""
        clocks = self.clocks
        firsts = np.array([0, clocks.fenced, clocks.made, clocks.stored, clocks.multiplied, clocks.phases])
        kinds: Array = firsts[np.searchsorted(firsts, columns % clocks.of_block, side="right") - 1]
        return kinds

    # -- accesses of units ------------------------------------------------------------------------------------------

    def unit_reads(self, access: UnitAccess, members: int) -> None:
        """Units read from now on until each stamp is reached."""
        shadow = self._of.get(access.buffer)
        if shadow is None:
            return
        words, rows = access.elements.reshape(-1), np.repeat(access.row, access.elements.shape[1])
        bare = shadow.writer.thread[words] == 0
        if bare.any():
            at = int(np.argmax(bare))
            element, where = self._spot(access, at)
            headline = f"{access.buffer}[{element}] is read before any thread wrote it."
            self._findings.report(Kind.UNWRITTEN, headline, where, access.buffer, element)
        self._check_unit_writers(shadow, access, words, rows)
        readers = shadow.readers_of(access.first, members)
        for row, member, value in zip(access.elements, access.member.tolist(), access.value.tolist(), strict=True):
            readers.time[member, row] = value
            readers.site[member, row] = access.site.index

    def unit_writes(self, access: UnitAccess, inside: Array | None = None) -> None:
        """Units write from now on until each stamp is reached. inside: which of the elements; None for all."""
        shadow = self._of.get(access.buffer)
        if shadow is None:
            return
        count = access.elements.shape[1]
        words = access.elements.reshape(-1)
        columns = np.repeat(self._columns(access), count)
        rows, threads, values, slots = (
            np.repeat(array, count) for array in (access.row, access.thread, access.value, access.slot)
        )
        if inside is not None:
            chosen = inside.reshape(-1)
            words, rows, threads, values, slots, columns = (
                array[chosen] for array in (words, rows, threads, values, slots, columns)
            )
        self._check_unit_writers(shadow, access, words, rows, kept=inside)
        if int(access.slot[0]) >= 0:
            self._check_unit_readers(shadow, access, words, rows, slots)
        shadow.writer.enter(words, threads, access.site)
        shadow.write_epoch[words] = values
        shadow.column[words] = columns

    def box_reads(self, access: UnitAccess, inside: Array) -> None:
        """TMA reads boxes of memory that other ranks write, from now on until each stamp is reached."""
        raise AssertionError("memory of several ranks has detectors of its own")

    def engine_touches(
        self, name: str, words: Array, row: int, thread: int, site: Site, *, store: bool
    ) -> tuple[int, Where, str] | None:
        """Copy engines touch global memory: the first element that something conflicts with, where, and how."""
        raise AssertionError("memory of several ranks has detectors of its own")

    def _columns(self, access: UnitAccess) -> Array:
        slots = np.where(access.slot >= 0, access.slot, access.row // self.clocks.warps)
        return self.clocks.counter(slots, access.first + access.member)

    def _check_unit_writers(
        self, shadow: ClockShadow, access: UnitAccess, words: Array, rows: Array, kept: Array | None = None
    ) -> None:
        is_global = int(access.slot[0]) < 0
        busy = (shadow.copied_by.thread[words] != 0) if shadow.copies else np.zeros(1, np.bool_)
        bad = self._after_writer(shadow, words, rows, None, is_global=is_global)
        positions = None if kept is None else np.flatnonzero(kept.reshape(-1))
        if busy.any() or bad.any():
            owners = shadow.copied_by if busy.any() else shadow.writer
            at = int(np.argmax(busy if busy.any() else bad))
            column = int(shadow.column[words[at]])
            kind = 0 if busy.any() else int(self._kind_of(np.array([column]))[0])
            then = "written by an asynchronous copy" if busy.any() else self._writer_text(column)
            element, where = self._spot(access, at if positions is None else int(positions[at]))
            earlier = self._place(self._sites[int(owners.site[words[at]])], int(owners.thread[words[at]]))
            self._clash(where, access.buffer, element, access.verb, then, earlier, kind)
            return
        if is_global:
            return
        columns, epochs = shadow.column[words], shadow.write_epoch[words]
        ordinary = columns % self.clocks.of_block < self.clocks.fenced
        if not ordinary.any():
            return
        fence = np.where(ordinary, columns + self.clocks.fenced, 0)
        unseen = ordinary & (epochs > self.clocks.rows[rows, fence])
        if unseen.any():
            self._report_unfenced(shadow, access, words, int(np.argmax(unseen)), positions)

    def _report_unfenced(
        self, shadow: ClockShadow, access: UnitAccess, words: Array, at: int, positions: Array | None
    ) -> None:
        element, where = self._spot(access, at if positions is None else int(positions[at]))
        earlier = self._place(self._sites[int(shadow.writer.site[words[at]])], int(shadow.writer.thread[words[at]]))
        self._findings.report(
            Kind.UNFENCED,
            f"{access.buffer}[{element}] is {access.verb}, and was written by a thread without a fence.",
            where,
            access.buffer,
            element,
            earlier,
            note="what a thread writes is seen by TMA and by wgmma only after fence.proxy.async.",
            hint="every thread that wrote runs FenceProxy after its writes and before the barrier.",
        )

    def _check_unit_readers(
        self, shadow: ClockShadow, access: UnitAccess, words: Array, rows: Array, slots: Array
    ) -> None:
        for readers in shadow.reads.values():
            bad = self._after_readers(readers, words, rows, slots)
            if bad.any():
                member, at = (int(i) for i in np.argwhere(bad)[0])
                element, where = self._spot(access, at)
                earlier = self._reader_place(readers, member, int(words[at]), int(slots[at]))
                then = self._reader_text(readers.first, member)
                self._clash(where, access.buffer, element, access.verb, then, earlier, readers.first)
                return

    def _spot(self, access: UnitAccess, at: int) -> tuple[int, Where]:
        """The element of the buffer, and the place, of a flat position in an access."""
        row, _ = divmod(at, access.elements.shape[1])
        element = int(access.elements.reshape(-1)[at])
        return element % self._per_block.get(access.buffer, 1 << 62), access.where[row]

    # -- words ------------------------------------------------------------------------------------------------------

    def _reader_place(self, readers: Readers, member: int, word: int, slot: int) -> Where:
        assert self._batch is not None
        site = self._sites[int(readers.site[member, word])]
        warp = member * GROUP_WARPS if readers.first == self.clocks.multiplied else member
        x, y, z = self._batch.coordinates[slot].tolist()
        return Where(site.line, site.text, (x, y, z), warp, ())

    def _reader_text(self, first: int, member: int) -> str:
        if first == self.clocks.multiplied:
            warps = range(member * GROUP_WARPS, (member + 1) * GROUP_WARPS)
            return f"read by wgmma of {numbers_text('warp', warps)}"
        if first == self.clocks.stored:
            return f"read by a bulk store of warp {member}"
        return "read by another thread"

    def _writer_text(self, column: int) -> str:
        local = column % self.clocks.of_block
        if local >= self.clocks.phases:
            return f"written by TMA, which tells {self.barrier_name(local - self.clocks.phases)}"
        if local >= self.clocks.stored:
            return "written by a bulk store"
        return "written by another thread"

    def _clash(self, where: Where, buffer: str, element: int, now: str, then: str, earlier: Where, kind: int) -> None:
        clocks = self.clocks
        hints = {
            clocks.phases: "wait for the phase in which the copy lands, and let whoever goes on arrive.",
            clocks.multiplied: "wait for the wgmma group, then arrive where the writer waits.",
            clocks.stored: "the thread that started the bulk store waits for it, then a barrier.",
        }
        headline = f"Race on {buffer}[{element}]: {now} here, {then}, and nothing orders the two."
        hint = hints.get(kind, "a barrier between the two lines orders them.")
        self._findings.report(Kind.RACE, headline, where, buffer, element, earlier, hint=hint)
