"""The units beside the threads of the blocks that run now: their state, and what must hold of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.kernel import Kernel
from tilewright.problem.problem import Problem
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS, Clocks
from tilewright.simulator.asynchronous.flags import Flags
from tilewright.simulator.asynchronous.flights import Flight, Store, StoreQueue
from tilewright.simulator.asynchronous.meetings import CLUSTER, NAMED, NAMED_BARRIER, Meetings
from tilewright.simulator.asynchronous.ordered import OrderedRaces
from tilewright.simulator.asynchronous.phases import BarrierNames, Complain, Phases
from tilewright.simulator.asynchronous.previous import PreviousGrid, Waiting, report_early_access
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Findings, Kind, Site, Where
from tilewright.simulator.memory import Memory
from tilewright.simulator.warps import Batch, Mask
from tilewright.units import ceil_div

SM_REGISTERS = 64 * 1024
"""32-bit registers of a multiprocessor. Source: CUDA C++ Programming Guide, technical specifications."""

REGISTER_STEP = 8
"""Registers of a thread come in steps of this. Source: PTX ISA 9.0, setmaxnreg."""

Snapshot = tuple[int, Array, Array]
"""The tiles of A and B of one wgmma of a warpgroup as numbers, and how many of its warps have not taken them."""


class Units:
    """Made once for a run; `new_batch` starts anew. races: None where detectors are off."""

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        memory: Memory,
        findings: Findings,
        races: OrderedRaces | None,
        steps: Mapping[str, int],
        previous: PreviousGrid | None = None,
    ) -> None:
        self.kernel = kernel
        self.problem = problem
        """Whose matrices TMA loads and stores."""
        self.steps = steps
        """Elements from one matrix to the next, by the name of the argument."""
        self.memory = memory
        self.findings = findings
        self.races = races
        self.waiting = None if previous is None else Waiting(previous)
        """For the grid before; None where that has ended."""
        self.names = BarrierNames(kernel.shared)
        self.elements_of = {buffer.name: buffer.elements for buffer in kernel.shared}
        if races is not None:
            races.barrier_name = self.names.__getitem__

    def new_batch(self, batch: Batch, clocks: Clocks | None = None) -> None:
        """clocks: of other ranks' units, too."""
        self.batch = batch
        flags = bool(self.kernel.workspace) or batch.across_ranks
        self.clocks = clocks or Clocks(batch, self.kernel.cluster, len(self.names), flags=flags)
        self._flags: dict[str, Flags] = {}
        if self.races is not None:
            self.races.clocks = self.clocks
        self.phases = Phases(self.names, batch.blocks, self.clocks)
        self.named = Meetings(batch.blocks * NAMED, self.clocks, NAMED_BARRIER)
        self.clusters = Meetings(batch.blocks, self.clocks, CLUSTER)
        self.clusters.asked[:] = batch.warps_per_block * self.kernel.cluster
        self.flights: list[Flight] = []
        self.landed: dict[int, tuple[int, Flight]] = {}
        """Of each mbarrier the last boxes that have landed, and their phase."""
        self.stores: dict[int, dict[int, StoreQueue]] = {}
        count = batch.blocks * batch.warps_per_block
        self.store_serials = np.zeros(count, np.int64)
        self.committed = np.zeros(count, np.int64)
        """wgmma groups that each warp has committed; started: wgmma."""
        self.started = np.zeros(count, np.int64)
        self.snapshots: dict[tuple[int, int], Snapshot] = {}
        self.last_product: dict[tuple[int, int], tuple[int, int, int]] = {}
        limit = SM_REGISTERS // (batch.warps_per_block * WARP_THREADS) // REGISTER_STEP * REGISTER_STEP
        self.registers = np.full(count, min(limit, 255), np.int64)
        self.register_place: Where | None = None
        self.warps_left = np.full(batch.blocks, batch.warps_per_block, np.int64)
        self.told = np.full(batch.blocks * len(self.names), -1, np.int64)
        """The warp of another block that last arrived at each barrier; told_at: at which time."""
        self.told_at = np.zeros(batch.blocks * len(self.names), np.int64)
        self.stored_until = np.zeros(batch.blocks * len(self.names), np.int64)
        """The phase of each barrier that must be complete before its block ends: other blocks store until then."""

    def flags_of(self, buffer: str) -> Flags:
        """The flags of a buffer of this launch."""
        found = self._flags.get(buffer)
        if found is None:
            found = self._flags[buffer] = Flags(self.memory.arrays[buffer])
        return found

    def share_flags(self, buffer: str, flags: Flags) -> None:
        """The flags of a buffer are part of memory that other ranks see."""
        self._flags[buffer] = flags

    # -- the grid before ---------------------------------------------------------------------------------------------

    def wait_previous(self, rows: Array) -> None:
        """Warps have waited for the grid before."""
        if self.waiting is not None:
            self.waiting.wait(self.clocks, rows, self.memory.arrays)

    def check_previous(self, site: Site, convoy: Convoy, mask: Mask | None, buffer: str, *, store: bool) -> None:
        """Lanes touch global memory: reports those that may meet the grid before there."""
        if self.waiting is None or self.races is None:
            return
        late = self.waiting.late(self.clocks, self.clocks.row(convoy.warps), buffer, store=store)
        if mask is not None:
            late &= mask.rows.any(axis=1)
        if late.any():
            where = place_of(site, convoy, int(np.argmax(late)))
            report_early_access(self.findings, buffer, where, store=store)

    # -- TMA --------------------------------------------------------------------------------------------

    def land(self, waiting: Iterable[Convoy]) -> bool:
        """No warp can go on: lands the boxes for whose barriers some warp waits. Whether there were any."""
        wanted: set[int] = set()
        for convoy in waiting:
            if convoy.wait is not None and convoy.wait.thing is self.phases:
                wanted.update(convoy.wait.keys.tolist())
        if not wanted or not self.flights:
            return False
        keys = np.array(sorted(wanted))
        flights, self.flights = self.flights, []
        some = False
        for flight in flights:
            due = np.isin(flight.key, keys)
            if not due.all():
                self.flights.append(flight if not due.any() else flight.part(~due))
            if due.any():
                some = True
                self._land(flight.part(due))
        return some

    def land_one(self, flight: Flight) -> None:
        """Lands the boxes of one of the flights."""
        self.flights = [other for other in self.flights if other is not flight]
        self._land(flight)

    def land_some(self, chosen: Callable[[], bool]) -> bool:
        """Lands the boxes that a statement started together, or not, as it is chosen. Whether there were any."""
        landing = [chosen() for _ in self.flights]
        due = [flight for flight, lands in zip(self.flights, landing, strict=True) if lands]
        self.flights = [flight for flight, lands in zip(self.flights, landing, strict=True) if not lands]
        for flight in due:
            self._land(flight)
        return bool(due)

    def _land(self, flight: Flight) -> None:
        arrays, box = self.memory.arrays, flight.box
        # A map of another format than the matrix has rounds on the way.
        rounds = box.matrix.mapped is not box.matrix.dtype
        rounded = partial(self.memory.mapped, dtype=box.matrix.mapped) if rounds else None
        flight.land(arrays[box.map.operand], arrays[box.buffer.name], rounded)
        phases = self.phases.phase[flight.key].tolist()
        self.landed.update((key, (phase, flight)) for key, phase in zip(flight.key.tolist(), phases, strict=True))
        self.phases.land(flight.key, box.size_bytes, self.complain(flight.where))

    def complain(self, where: Where) -> Complain:
        """Reports misuse of an mbarrier by a statement."""

        def report(_slot: int, _number: int, what: str, hint: str) -> None:
            self.findings.report(Kind.MBARRIER, what, where, hint=hint)

        return report

    def carry_out(self, stores: Iterable[Store]) -> None:
        arrays = self.memory.arrays
        for store in stores:
            store.carry_out(arrays[store.box.buffer.name], arrays[store.box.map.operand])

    def queue(self, row: int, lane: int) -> StoreQueue:
        return self.stores.setdefault(row, {}).setdefault(lane, StoreQueue())

    def note_stored(self, keys: Array, slots: Array) -> None:
        """Threads of the blocks in these slots store to the blocks of these barriers by st.async."""
        far = keys[keys // len(self.names) != slots]
        self.stored_until[far] = self.phases.phase[far] + 1

    # -- ends -------------------------------------------------------------------------------------------------------

    def ended(self, convoy: Convoy) -> None:
        """Warps have come to their end: no thread waits for what they started, or for them."""
        rows = self.clocks.row(convoy.warps)
        for row in rows.tolist():
            for queue in self.stores.pop(row, {}).values():
                left = queue.all()
                if left:
                    self._left_behind(left[0])
                self.carry_out(left)
        self.clusters.leave(self.clocks.leader[convoy.warps.slots])
        np.subtract.at(self.warps_left, convoy.warps.slots, 1)
        if convoy.products is not None and convoy.products.under_way:
            product = convoy.products.under_way[0]
            place = place_of(product.site, convoy, 0)
            headline = "A warp ends while wgmma that it started are under way."
            self.findings.report(Kind.UNFINISHED, headline, place, hint="wait for all groups before the end.")

    def _left_behind(self, store: Store) -> None:
        self.findings.report(
            Kind.UNFINISHED,
            f"A thread ends while its bulk store reads {store.box.buffer.name}.",
            store.where,
            store.box.buffer.name,
            note="the shared memory of a block is given to the next one when it ends.",
            hint="commit the bulk stores, and wait for all groups before the end.",
        )

    def finish(self) -> None:
        """All blocks have ended: nothing may be under way, and no thread may still be waited for."""
        # Where a box has landed already, it did so by chance: for those who waited for its phase and for no others.
        unheeded = [(key, flight) for key, (phase, flight) in self.landed.items() if self.phases.seen[key] <= phase]
        for key, flight in [*((int(flight.key[0]), flight) for flight in self.flights), *unheeded]:
            name = self.phases.name(key)
            self.findings.report(
                Kind.UNFINISHED,
                f"A block ends while a box lands in {flight.box.buffer.name}, and no thread has waited for {name}.",
                flight.where,
                flight.box.buffer.name,
                hint="wait for the phase of every copy before the end.",
            )
        self._check_bytes()
        self._check_registers()
        self._check_started()
        if self.races is not None:
            self._check_told()

    def _check_bytes(self) -> None:
        under_way: dict[int, int] = defaultdict(int)
        for flight in self.flights:
            for key in flight.key.tolist():
                under_way[key] += flight.box.size_bytes
        for key in np.flatnonzero(self.phases.bytes).tolist():
            left = int(self.phases.bytes[key]) - under_way[key]
            if left:
                what = f"{left} bytes were expected and never came" if left > 0 else f"{-left} bytes came unexpected"
                self._at_end(key, f"At the end, {what} at {self.phases.name(key)}.", "expect what the copies bring.")

    def _at_end(self, key: int, headline: str, hint: str) -> None:
        row = int(self.phases.maker[key])
        x, y, z = self.batch.coordinates[key // len(self.names)].tolist()
        where = Where(0, "the end of the kernel", (x, y, z), row % self.clocks.warps, ())
        self.findings.report(Kind.MBARRIER, headline, where, self.phases.name(key), hint=hint)

    def _check_registers(self) -> None:
        if self.register_place is None:
            return
        per_block = self.registers.reshape(self.batch.blocks, -1).sum(axis=1) * WARP_THREADS
        if per_block.max(initial=0) <= SM_REGISTERS:
            return
        groups = self.registers.reshape(self.batch.blocks, -1)[int(per_block.argmax()), ::GROUP_WARPS]
        self.findings.report(
            Kind.REGISTERS,
            f"The warpgroups ask for {' + '.join(map(str, groups.tolist()))} registers a thread, "
            f"{int(per_block.max())} in all; a multiprocessor has {SM_REGISTERS}.",
            self.register_place,
            note="a warpgroup that asks for registers that no warpgroup gives up waits for ever.",
            hint="let the others shrink further.",
        )

    def _check_started(self) -> None:
        """The four warps of a warpgroup have started equally many wgmma."""
        if not self.started.any() or self.clocks.warps % GROUP_WARPS:
            return
        groups = self.started.reshape(-1, GROUP_WARPS)
        uneven = np.flatnonzero((groups != groups[:, :1]).any(axis=1))
        if len(uneven):
            slot, warp = divmod(int(uneven[0]) * GROUP_WARPS, self.clocks.warps)
            x, y, z = self.batch.coordinates[slot].tolist()
            counts = ", ".join(map(str, groups[uneven[0]].tolist()))
            self.findings.report(
                Kind.PARTED_WARP,
                f"The four warps of a warpgroup have started {counts} wgmma.",
                Where(0, "the end of the kernel", (x, y, z), warp, ()),
                note="they execute every wgmma together.",
            )

    def _check_told(self) -> None:
        """Arrivals and stores from other blocks must be over before the block ends: somebody in it knows of each."""
        keys, stored = np.flatnonzero(self.told >= 0), np.flatnonzero(self.stored_until)
        if not len(keys) and not len(stored):
            return
        warps = self.clocks.warps
        known = self.clocks.rows.reshape(self.batch.blocks, warps, -1).max(axis=1)
        column = self.clocks.own[self.told[keys]]
        late = keys[known[keys // len(self.names), column] < self.told_at[keys]]
        slots, numbers = np.divmod(stored, len(self.names))
        phases = self.clocks.counter(slots, self.clocks.phases + numbers)
        for key in stored[known[slots, phases] < self.stored_until[stored]].tolist():
            self._at_end(
                key,
                f"A block may end before another block's stores that {self.phases.name(key)} is told of.",
                "wait for the phase that counts their bytes before the end.",
            )
        for key in late.tolist():
            self._at_end(
                key,
                f"A block may end before another block of its cluster arrives at {self.phases.name(key)}.",
                "wait for the last phase, or let the cluster meet at a barrier before the end.",
            )


def place_of(site: Site, convoy: Convoy, warp: int, lanes: tuple[int, ...] = ()) -> Where:
    """The site as the warp in a row of the convoy executes it."""
    warps = convoy.warps
    return Where(
        site.line, site.text, warps.coordinates(warp), int(warps.numbers[warp]), lanes, site.values(convoy.slots)
    )


def groups_of(warps: int) -> int:
    return ceil_div(warps, GROUP_WARPS)
