"""What every operation of a simulated kernel works with: memory, numbers, listeners, and the book of findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array, DType
from tilewright.simulator.arithmetic import Arithmetic
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.convoy import Convoy, RegisterArray
from tilewright.simulator.findings import Arithmetic as Computed
from tilewright.simulator.findings import Finding, Findings, Kind, Site, Where, Wire
from tilewright.simulator.journal import Journal, Role
from tilewright.simulator.memory import Memory
from tilewright.simulator.races import Races
from tilewright.simulator.warps import Batch

BLOCK_BARRIER = "__syncthreads"
"""What journals and recordings call it."""


class BlockBarriers:
    """The barrier of every block of a batch. It opens when as many warps have arrived as the block has.

    rounds: how often each block's barrier has opened. A warp that has ended never arrives: the others wait in vain.
    """

    def __init__(self, batch: Batch) -> None:
        self.rounds = np.zeros(batch.blocks, np.int64)
        self._arrived = np.zeros(batch.blocks, np.int64)
        self._expected = batch.warps_per_block

    def arrive(self, slots: Array) -> Array:
        """Warps of the blocks in `slots` arrive, one an entry; the slots of the blocks whose barrier opens."""
        self._arrived += np.bincount(slots, minlength=len(self._arrived))
        opened = np.flatnonzero(self._arrived == self._expected)
        self._arrived[opened] = 0
        self.rounds[opened] += 1
        return opened

    def over(self, keys: Array, wanted: Array) -> Array:
        over: Array = self.rounds[keys] >= wanted
        return over

    def name(self, key: int) -> str:
        return BLOCK_BARRIER

    def text(self, key: int, wanted: int) -> str:
        return "the barrier"


class Observer:
    """Told after each statement, while the state of the machine can be read; `recorder.Recorder` is one.

    A listener is told facts and costs little; an observer may read everything. Where there is none, nothing is wrapped
    and nothing is asked.
    """

    def begun(self, context: Context, batch: Batch) -> None:
        """The blocks of a batch are about to start."""

    def stepped(self, site: Site, convoy: Convoy) -> None:
        """The warps of a convoy have executed a statement."""

    def stalled(self, site: Site, convoy: Convoy) -> None:
        """The warps of a convoy wait: `convoy.wait` says for what."""

    def released(self, convoy: Convoy) -> None:
        """What the warps of a convoy waited for has happened."""

    def found(self, finding: Finding) -> None:
        """The statement that is executed now breaks a rule."""

    def completed(self) -> None:
        """Asynchronous units have completed copies for which no statement was executed."""

    def ended(self, convoy: Convoy) -> None:
        """The warps of a convoy have come to their end."""


@dataclass(slots=True)
class Context:
    """One run. races: None where detectors are off; bounds are checked always, for the sake of the host's own memory.

    barriers: of the blocks that run now. units: None where no statement uses them. observer: of every statement.
    journal: of the steps, where orders are searched.
    """

    memory: Memory
    arithmetic: Arithmetic
    wire: Wire
    findings: Findings
    races: Races | None
    barriers: BlockBarriers
    units: Units | None = None
    observer: Observer | None = None
    journal: Journal | None = None

    def note(self, role: Role, kind: str, numbers: Array, generations: Array) -> None:
        """An effect on things that order warps, where there is a journal."""
        if self.journal is not None:
            self.journal.note(role, kind, numbers, generations)

    def tell_computed(self, site: Site, convoy: Convoy, operations: Mapping[str, int], times: int = 1) -> None:
        """Tell who listens that the active lanes of a convoy executed machine instructions, by opcode."""
        if self.wire.computed:
            active = convoy.active_warps, convoy.active_lanes
            event = Computed(site, operations, times, *active, convoy.warps, convoy.mask)
            for hear in self.wire.computed:
                hear(event)

    def only_counts(self, dtype: DType) -> bool:
        """Whether nobody will look at numbers of a format; whole ones may be part of an address."""
        return dtype.is_float and not self.arithmetic.multiplies

    def registers(self, site: Site, convoy: Convoy, number: int, first: int, end: int) -> RegisterArray:
        """The registers of a buffer, of which those from `first` to `end` are used: the kernel stops where it has no
        such ones."""
        found = convoy.registers[number]
        assert found is not None, "an Alloc comes before every use"
        if first < 0 or end > found.elements:
            name, elements = found.buffer.name, found.elements
            outside = first if first < 0 else end - 1
            self.findings.stop(
                Kind.OUT_OF_BOUNDS,
                f"Register array {name} has {elements} elements; element {outside} is accessed.",
                where(site, convoy, np.ones(convoy.warps.lanes, np.bool_)),
                name,
                outside,
            )
        return found

    def touched(self, site: Site, convoy: Convoy, number: int, first: int, end: int) -> RegisterArray:
        """The same, touched by threads: reports those that a wgmma under way adds to, or multiplies."""
        registers = self.registers(site, convoy, number, first, end)
        registers.dirty = True
        for (low, high), (_, started) in registers.in_products.items():
            if first < high and low < end:
                name = registers.buffer.name
                self.findings.report(
                    Kind.IN_FLIGHT,
                    f"Registers of {name} are touched while a wgmma uses them.",
                    where(site, convoy, np.ones(convoy.warps.lanes, np.bool_)),
                    name,
                    max(first, low),
                    where(started, convoy, np.ones(convoy.warps.lanes, np.bool_)),
                    hint="wait for the wgmma group first (WgmmaWait).",
                )
                break
        return registers

    def overflow(self, site: Site, convoy: Convoy, beyond: Array) -> NoReturn:
        """An index left 32 bits: the kernel addresses something else than it means, so it stops here."""
        self.findings.stop(
            Kind.OVERFLOW,
            "A 32-bit index exceeds 2147483647.",
            where(site, convoy, beyond),
            note="the GPU would wrap around and touch another element.",
            hint="use the variant with 64-bit offsets (Variant.near = False) for matrices of this size.",
        )

    def unwritten_register(self, site: Site, convoy: Convoy, name: str, element: int, lanes: Array) -> None:
        self.findings.report(
            Kind.UNWRITTEN,
            f"Register {name}[{element}] is read before it is written.",
            where(site, convoy, lanes),
            name,
            element,
            hint="write it on every path that leads here, in every lane.",
        )


def where(site: Site, convoy: Convoy, lanes: Array) -> Where:
    """The site as the first warp executes it of which a lane is set in `lanes`, (lanes,) bool."""
    rows = lanes.reshape(-1, WARP_THREADS)
    warp = int(np.argmax(rows.any(axis=1)))
    numbers = tuple(np.flatnonzero(rows[warp]).tolist())
    warps = convoy.warps
    values = site.values(convoy.slots)
    return Where(site.line, site.text, warps.coordinates(warp), int(warps.numbers[warp]), numbers, values)
