"""The race detector of a rank among several: global memory that copy engines and kernels of other GPUs write, too.

Each rank has a detector of its own; the clocks, and what is known of memory that others see, are shared.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.ordered import ClockShadow, OrderedRaces, UnitAccess
from tilewright.simulator.findings import Finding, Kind, Where
from tilewright.simulator.shadow import Owners
from tilewright.simulator.sites import Site


class RankRaces(OrderedRaces):
    """The shadows of one rank."""

    def share(self, name: str, shadow: ClockShadow) -> None:
        """What is known of a buffer is known to all ranks."""
        self._clock_global[name] = shadow

    def box_reads(self, access: UnitAccess, inside: Array) -> None:
        """TMA reads boxes of memory that other ranks write, from now on until each stamp is reached."""
        shadow, clocks = self._of[access.buffer], self.clocks
        places = np.flatnonzero(inside.reshape(-1))
        per_box = access.elements.shape[1]
        words, box = access.elements.reshape(-1)[places], places // per_box
        rows, columns, epochs = access.row[box], shadow.column[words], shadow.write_epoch[words]
        written = shadow.writer.thread[words] != 0
        unknown = written & (epochs > clocks.rows[rows, columns])
        bad = unknown if unknown.any() else written & clocks.unseen(rows, columns, epochs)
        if bad.any():
            at = int(np.argmax(bad))
            earlier = self._place(self._sites[int(shadow.writer.site[words[at]])], int(shadow.writer.thread[words[at]]))
            element, where = self._spot(access, int(places[at]))
            self._report_far_write(access.buffer, element, where, earlier, is_known=not unknown.any())
        columns = self._columns(access)[box]
        self._enter_global_read(shadow, words, access.thread[box], access.site, rows, columns, access.value[box])

    def _report_far_write(self, buffer: str, element: int, where: Where, earlier: Where, *, is_known: bool) -> None:
        if is_known:
            headline = f"{buffer}[{element}] is read by TMA, and no fence orders it behind the wait for who wrote it."
            hint = "FenceProxy(Space.GLOBAL) between the wait and the load, by the thread that starts it."
            self._findings.report(Finding(Kind.UNFENCED, headline, where, buffer, element, earlier, hint=hint))
            return
        headline = f"Race on {buffer}[{element}]: read by TMA here, written from outside, and no wait orders the two."
        hint = "wait for the flag that is set behind the rows (WaitFlag), before the first load of them."
        self._findings.report(Finding(Kind.RACE, headline, where, buffer, element, earlier, hint=hint))

    def engine_touches(
        self, name: str, words: Array, row: int, thread: int, site: Site, *, store: bool
    ) -> tuple[int, Where, str] | None:
        """Copy engines touch global memory: the first element that something conflicts with, where, and how."""
        shadow, clocks = self._of.get(name), self.clocks
        if shadow is None:
            return None
        rows = np.full(len(words), row)
        late = shadow.write_epoch[words] > clocks.rows[row][shadow.column[words]]
        conflicts = [((shadow.writer.thread[words] != 0) & late, shadow.writer, "written")]
        if store:
            reads = (shadow.last_read, shadow.other_read)
            conflicts += [(self._unordered_read(one, words, rows), one.by, "read") for one in reads]
        found: tuple[int, Where, str] | None = None
        for bad, owners, was in conflicts:
            if found is None and bad.any():
                word = int(words[int(np.argmax(bad))])
                found = word, self._place(self._sites[int(owners.site[word])], int(owners.thread[word])), was
        now, own = clocks.now(rows), clocks.own[rows]
        threads = np.full(len(words), thread, np.int32)
        if store:
            shadow.writer.enter(words, threads, site)
            shadow.write_epoch[words], shadow.column[words] = now, own
        else:
            self._enter_global_read(shadow, words, threads, site, rows, own, now)
        return found


def part_of(shadow: ClockShadow, first: int, count: int) -> ClockShadow:
    """What is known of some elements; whoever learns of the part learns of the whole."""
    part, here = ClockShadow(0, shadow.threads), slice(first, first + count)
    part.elements = count
    part.writer, part.copied_by = _part(shadow.writer, here), _part(shadow.copied_by, here)
    part.write_epoch, part.column = shadow.write_epoch[here], shadow.column[here]
    for name in ("last_read", "other_read"):
        reads, of_part = getattr(shadow, name), getattr(part, name)
        of_part.by, of_part.column, of_part.time = _part(reads.by, here), reads.column[here], reads.time[here]
    return part


def _part(owners: Owners, here: slice) -> Owners:
    part = Owners(0)
    part.thread, part.site = owners.thread[here], owners.site[here]
    return part
