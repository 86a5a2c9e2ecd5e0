"""`simulate_ranks`: one kernel on several GPUs at once, with the copy engines that move rows between them.

Each rank has a launch with memory of its own. Buffers in symmetric memory are seen by all ranks: copy engines push into
them, and kernels store into those of peers (`Buffer.of_ranks`). Warps of all ranks and copy engines run in any order;
what orders two accesses of different ranks is a flag of the whole system, and nothing else. A block of rank r is called
(x, 0, r) in findings. Each rank has a race detector of its own; the clocks, and what is known of memory that others
see, are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import Array
from tilewright.errors import ProblemError
from tilewright.ir.buffer import PEERS
from tilewright.ir.expr import Const, Expr, room_of
from tilewright.ir.kernel import Kernel
from tilewright.problem.problem import Stored
from tilewright.simulator.arithmetic import FloatArithmetic
from tilewright.simulator.asynchronous.engines import EngineEvent, Engines, engine_sites
from tilewright.simulator.asynchronous.flags import Flags
from tilewright.simulator.asynchronous.ordered import ClockShadow, OrderedRaces, UnitAccess
from tilewright.simulator.asynchronous.previous import PreviousGrid
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.context import BlockBarriers, Context
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Finding, Findings, Kind, OnFinding, Site, Sites, StopSimulation, Where, Wire
from tilewright.simulator.launch import all_blocks, launched_grid
from tilewright.simulator.machine import Machine, Order
from tilewright.simulator.memory import Memory
from tilewright.simulator.races import Owners
from tilewright.simulator.run import scalars_of, written_elements
from tilewright.simulator.translate import Program, translate
from tilewright.simulator.warps import Batch, Warps


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
            self._findings.report(Kind.UNFENCED, headline, where, buffer, element, earlier, hint=hint)
            return
        headline = f"Race on {buffer}[{element}]: read by TMA here, written from outside, and no wait orders the two."
        hint = "wait for the flag that is set behind the rows (WaitFlag), before the first load of them."
        self._findings.report(Kind.RACE, headline, where, buffer, element, earlier, hint=hint)

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


_HAPPENS = 0.25
"""Of "moments": how likely an event of copy engines happens before another warp goes on."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The launch of a rank. arguments: beside those of the problem, by name. tables: arrays beside the matrices, by
    name. events: of its copy engines, in order."""

    operands: Stored
    arguments: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, Array] = field(default_factory=dict)
    events: tuple[EngineEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class RanksRun:
    """memory: the global arrays of each rank as all launches leave them. completed: False after a deadlock."""

    memory: tuple[Mapping[str, Array], ...]
    findings: tuple[Finding, ...]
    completed: bool


def simulate_ranks(
    kernel: Kernel,
    ranks: Sequence[Rank],
    symmetric: Sequence[str],
    *,
    on_finding: OnFinding = "raise",
    schedule: Order = "lockstep",
    seed: int = 0,
    resident_blocks: int | None = None,
) -> RanksRun:
    """Run a launch on each rank, all at once. symmetric: the buffers that other ranks write, flags among them; they are
    equally large on all ranks.

    Engines act as late as they may, or at any moment where `schedule` is "moments". Other options are those of
    `simulate`. Raises SimulationError for the first broken rule, unless on_finding="collect", and ProblemError for a
    kernel whose blocks lie along more than x, or buffers of different sizes.
    """
    findings = Findings(on_finding)
    if schedule != "lockstep":
        findings.order = f"schedule={schedule!r}, seed={seed}"
    launches = [_Launch.of(kernel, rank, findings, resident_blocks) for rank in ranks]
    grid = launches[0].grid
    if any(one.grid != grid for one in launches) or grid[1:] != (1, 1):
        told = ", ".join(str(one.grid) for one in launches)
        raise ProblemError(f"Ranks are simulated together whose blocks lie along x and are equally many: {told}.")
    for name in symmetric:
        _share(name, launches)
    together = (grid[0] + 1) * len(ranks)
    programs, all_sites = [], []
    for number, one in enumerate(launches):
        one.add_units(kernel, ranks[number], symmetric, together)
        programs.append(translate(kernel, one.sites, one.context, one.constants, grid))
        all_sites.append(engine_sites([rank.events for rank in ranks], one.sites))
    units = [one.units for one in launches]
    engines = Engines([rank.events for rank in ranks], all_sites[0], units, findings)
    machine = _RanksMachine(programs, launches, kernel, schedule, seed, engines)
    completed = True
    try:
        with np.errstate(all="ignore"):
            machine.run_all(grid[0], symmetric)
    except StopSimulation:
        completed = False
    return RanksRun(tuple(one.memory.arrays for one in launches), findings.all(), completed)


@dataclass
class _Launch:
    """What one rank runs with."""

    kernel: Kernel
    sites: Sites
    context: Context
    memory: Memory
    constants: dict[str, Expr]
    grid: tuple[int, int, int]

    @classmethod
    def of(cls, kernel: Kernel, rank: Rank, findings: Findings, resident_blocks: int | None) -> _Launch:
        given = {name: Const(value) for name, value in rank.arguments.items()}
        constants = {**given, **scalars_of(kernel, rank.operands, batching=rank.arguments)}
        numbers = FloatArithmetic()
        memory = Memory(kernel, rank.operands, numbers, {}, tables=rank.tables)
        nobody = BlockBarriers(Batch(kernel.block, (1, 1, 1), np.zeros((0, 3), np.int64)))
        context = Context(memory, numbers, Wire(()), findings, None, nobody)
        grid = launched_grid(kernel, constants, resident_blocks)
        return cls(kernel, Sites(kernel), context, memory, constants, grid)

    def add_units(self, kernel: Kernel, rank: Rank, symmetric: Sequence[str], together: int) -> None:
        """The units beside the threads, and the race detector."""
        threads, findings = kernel.threads_per_block, self.context.findings
        written = written_elements(kernel, self.memory)
        races = RankRaces(self.sites.all, findings, threads, written, together)
        races.of_ranks = frozenset(symmetric)
        self.context.races = races
        before = PreviousGrid() if kernel.overlapped else None
        self.context.units = Units(kernel, rank.operands.problem, self.memory, findings, races, {}, before)

    @property
    def units(self) -> Units:
        assert self.context.units is not None
        return self.context.units


def _share(name: str, launches: Sequence[_Launch]) -> None:
    """A buffer of all ranks is one array, of which each rank sees its part by the buffer's own name."""
    sizes = {len(one.memory.arrays[name]) for one in launches}
    if len(sizes) > 1:
        raise ProblemError(f"{name} is symmetric memory, and ranks have {sorted(sizes)} elements of it.")
    (size,) = sizes
    whole = np.concatenate([one.memory.arrays[name] for one in launches])
    for rank, one in enumerate(launches):
        one.memory.arrays[name] = whole[rank * size : (rank + 1) * size]
        one.memory.arrays[PEERS + name] = whole
        one.constants[room_of(PEERS + name).name] = Const(size, room_of(PEERS + name).dtype)


class _RanksMachine(Machine):
    """Runs the warps of all ranks, and their copy engines."""

    def __init__(
        self,
        programs: Sequence[Program],
        launches: Sequence[_Launch],
        kernel: Kernel,
        order: Order,
        seed: int,
        engines: Engines,
    ) -> None:
        super().__init__(programs[0], launches[0].context, kernel.shared, order, seed)
        self._programs, self._launches, self._kernel, self._engines = programs, launches, kernel, engines

    def run_all(self, blocks: int, symmetric: Sequence[str]) -> None:
        """All warps of all ranks to their end, and all events of copy engines."""
        ranks = len(self._launches)
        own = all_blocks((blocks + 1, 1, ranks))  # the last block of a rank stands for its copy engines
        batch = Batch(self._kernel.block, (blocks + 1, 1, ranks), own, across_ranks=True)
        first = self._launches[0].units
        for launch in self._launches:
            launch.memory.new_batch(batch.blocks)
            launch.context.barriers = BlockBarriers(batch)
            launch.units.new_batch(batch, None if launch is self._launches[0] else first.clocks)
            assert launch.context.races is not None
        self._share_knowledge(symmetric)
        for launch in self._launches:
            assert launch.context.races is not None
            launch.context.races.new_batch(batch, self._shared)
        self._engines.begin(batch, [rank * (blocks + 1) + blocks for rank in range(ranks)])
        self._drive(batch)
        self._finish_engines()
        for launch in self._launches:
            launch.units.finish()

    def _share_knowledge(self, symmetric: Sequence[str]) -> None:
        """Flags and shadows of symmetric buffers: of all ranks together."""
        for name in symmetric:
            whole = self._launches[0].memory.arrays[PEERS + name]
            size = len(whole) // len(self._launches)
            shadow, flags = ClockShadow(len(whole), self._kernel.threads_per_block), Flags(whole)
            for rank, launch in enumerate(self._launches):
                races, units = launch.context.races, launch.units
                assert isinstance(races, RankRaces)
                races.share(PEERS + name, shadow)
                races.share(name, part_of(shadow, rank * size, size))
                here = launch.memory.arrays[name]
                units.share_flags(PEERS + name, flags)
                units.share_flags(name, Flags(here, rank * size, flags.settings))

    def _finish_engines(self) -> None:
        while ready := self._engines.ready:
            self._engines.step(ready[self._turn(len(ready))])
        left = self._engines.waits
        if left:
            where = Where(0, "the end of all launches", (0, 0, 0), 0, ())
            self._context.findings.stop(Kind.DEADLOCK, f"Deadlock: {'; '.join(left)}, which nobody does.", where)

    # -- as Machine, for the warps of several ranks -------------------------------------------------------------------

    def _start(self, batch: Batch) -> list[Convoy]:
        count, blocks = batch.warps_per_block, batch.grid[0]
        found: list[Convoy] = []
        for rank, program in enumerate(self._programs):
            slots = rank * blocks + np.arange(blocks - 1)
            if self._order == "lockstep":
                warps = Warps(batch, np.repeat(slots, count), np.tile(np.arange(count), len(slots)))
                found.append(program.convoy(warps))
            else:
                found += [program.convoy(Warps(batch, slots, np.full_like(slots, number))) for number in range(count)]
        return found

    def _advance(self, convoy: Convoy, waiting: list[Convoy]) -> list[Convoy]:
        rank = int(convoy.warps.batch.coordinates[convoy.warps.slots[0], 2])
        self._program, self._context = self._programs[rank], self._launches[rank].context
        return super()._advance(convoy, waiting)

    def _land(self, waiting: Sequence[Convoy]) -> bool:
        """Boxes land, of any rank; where none does, copy engines go on."""
        landed = False
        for launch in self._launches:
            self._context = launch.context
            landed |= super()._land(waiting)
        ready = self._engines.ready
        happens = self._order == "moments" and self._random.random() < _HAPPENS
        if ready and (happens or (waiting and not landed)):
            self._engines.step(ready[self._turn(len(ready))])
            return True
        return landed
