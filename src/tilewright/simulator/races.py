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

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.copies import InFlight
from tilewright.simulator.events import Access
from tilewright.simulator.findings import Finding, Findings, Kind, Where
from tilewright.simulator.shadow import Owners, Shadow, Touch
from tilewright.simulator.sites import Site
from tilewright.simulator.warps import Batch

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
            Finding(
                Kind.RACE,
                f"Race on {name}[{element}]: {verb} here, while an asynchronous copy to it is under way.",
                where,
                name,
                element,
                earlier,
                hint="wait for the group of the copy, then let a barrier order the threads.",
            )
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
        self._findings.report(Finding(Kind.UNWRITTEN, headline, where, name, element))

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
        self._findings.report(Finding(kind, headline, where, name, element, earlier, hint=hint))

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
