"""Copy engines of several GPUs: what they copy, and the flags they set and wait for, as events beside the warps.

The events of a rank run in order, those of different ranks in any order. To the race detector an engine is a warp of a
block of its own, which stands behind the blocks of its rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.stmt import Barrier
from tilewright.simulator.asynchronous.flags import COPY_ENGINES, Setting
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.findings import Findings, Kind, Site, Sites, Where
from tilewright.simulator.warps import Batch


@dataclass(frozen=True, slots=True)
class Push:
    """`count` elements of a buffer of this rank, from `first` on, are copied into a buffer of a peer, from `at` on."""

    source: str
    first: int
    peer: int
    target: str
    at: int
    count: int

    def __str__(self) -> str:
        return f"push {self.source}[{self.first}:{self.first + self.count}] to {self.target} of rank {self.peer}"


@dataclass(frozen=True, slots=True)
class Raise:
    """A flag of a peer is set."""

    peer: int
    flags: str
    number: int
    value: int = 1

    def __str__(self) -> str:
        return f"set {self.flags}[{self.number}] of rank {self.peer} to {self.value}"


@dataclass(frozen=True, slots=True)
class Await:
    """An own flag is waited for, and set back to 0."""

    flags: str
    number: int
    value: int = 1

    def __str__(self) -> str:
        return f"wait for {self.flags}[{self.number}] to be {self.value}"


EngineEvent = Push | Raise | Await


def engine_sites(streams: Sequence[Sequence[EngineEvent]], sites: Sites) -> list[list[Site]]:
    """The events of all ranks as places behind the statements of the kernel."""
    found: list[list[Site]] = []
    for rank, stream in enumerate(streams):
        here: list[Site] = []
        for event in stream:
            text = f"copy engines of rank {rank} {event}"
            here.append(Site(len(sites.all), (), 0, text, Barrier(text)))
            sites.all.append(here[-1])
        found.append(here)
    return found


@dataclass
class Engines:
    """The copy engines of all ranks. sites: of their events. units: of each rank."""

    streams: Sequence[Sequence[EngineEvent]]
    sites: Sequence[Sequence[Site]]
    units: Sequence[Units]
    findings: Findings

    def begin(self, batch: Batch, slots: Sequence[int]) -> None:
        """slots: the block that stands for each engine."""
        self._batch, self._slots = batch, slots
        self._done = [0] * len(self.streams)

    @property
    def ready(self) -> list[int]:
        """The ranks whose next event can happen."""
        return [rank for rank in range(len(self.streams)) if self._is_ready(rank)]

    @property
    def waits(self) -> list[str]:
        """What each engine waits for that has not come to its end."""
        left = ((rank, stream, self._done[rank]) for rank, stream in enumerate(self.streams))
        return [f"the copy engines of rank {rank} {stream[at]}" for rank, stream, at in left if at < len(stream)]

    def _is_ready(self, rank: int) -> bool:
        if self._done[rank] == len(self.streams[rank]):
            return False
        event = self.streams[rank][self._done[rank]]
        if not isinstance(event, Await):
            return True
        return bool(self.units[rank].flags_of(event.flags).values[event.number] == event.value)

    def step(self, rank: int) -> None:
        """The next event of a rank happens."""
        event, site = self.streams[rank][self._done[rank]], self.sites[rank][self._done[rank]]
        self._done[rank] += 1
        clocks, row = self.units[rank].clocks, self._slots[rank] * self.units[rank].clocks.warps
        match event:
            case Push():
                self._push(rank, event, site, row)
            case Raise():
                flags = self.units[event.peer].flags_of(event.flags)
                flags.set(event.number, event.value, Setting(clocks.rows[row].copy(), COPY_ENGINES, of_system=True))
                clocks.tick(np.array([row]))
            case Await():
                flags = self.units[rank].flags_of(event.flags)
                setting = flags.setting(event.number)
                if setting is not None and setting.of_system:
                    clocks.rows[row] = np.maximum(clocks.rows[row], setting.row)
                flags.values[event.number] = 0
                clocks.tick(np.array([row]))

    def _push(self, rank: int, event: Push, site: Site, row: int) -> None:
        source, target = self.units[rank].memory.arrays, self.units[event.peer].memory.arrays
        words = np.arange(event.at, event.at + event.count)
        self._check(rank, event.source, np.arange(event.first, event.first + event.count), site, row, store=False)
        self._check(event.peer, event.target, words, site, row, store=True)
        target[event.target][words] = source[event.source][event.first : event.first + event.count]

    def _check(self, rank: int, name: str, words: Array, site: Site, row: int, *, store: bool) -> None:
        """Reports what nothing orders before this access of an engine to memory of a rank."""
        races, thread = self.units[rank].races, self._slots_thread(row)
        if races is None:
            return
        found = races.engine_touches(name, words, row, thread, site, store=store)
        if found is None:
            return
        element, earlier, was = found
        verb = "written" if store else "read"
        x, y, z = self._batch.coordinates[row // self.units[0].clocks.warps].tolist()
        self.findings.report(
            Kind.RACE,
            f"Race on {name}[{element}]: {verb} by copy engines, {was} by a kernel, and nothing orders the two.",
            Where(0, site.text, (x, y, z), 0, ()),
            name,
            element,
            earlier,
            hint="rows are pushed before their flag is set, and read behind the wait for it.",
        )

    def _slots_thread(self, row: int) -> int:
        batch = self._batch
        return int(batch.linear[row // self.units[0].clocks.warps]) * batch.threads + 1
