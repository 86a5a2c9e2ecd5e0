"""Shadows: who touched each element of a buffer, and which of two accesses nothing orders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.events import Access
from tilewright.simulator.findings import Where
from tilewright.simulator.sites import Site

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
