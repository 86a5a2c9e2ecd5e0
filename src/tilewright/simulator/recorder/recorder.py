"""The recorder: an observer and listener of one run that keeps what one block does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import MBARRIER, Array
from tilewright.ir.async_stmt import AsyncStmt
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.stmt import CommitCopies, Move, WaitCopies
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.context import Context, Observer
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.findings import Access, Arithmetic, Finding, Issue, Listener, Site
from tilewright.simulator.launch import Block
from tilewright.simulator.recorder.cells import Cells, written_only
from tilewright.simulator.recorder.recording import BarrierState, Flight, Moment, MomentKind, Picture, Shown, Stall
from tilewright.simulator.recorder.units import Flights, Key, UnderWay, boxes_of, copies_of, products_of
from tilewright.simulator.warps import Batch, Pattern, Warps

_ALIGN_BYTES = 128
"""A wavefront of shared memory and a line of global memory: a shift by it changes no picture."""


class Pictures:
    """The pictures seen so far."""

    def __init__(self) -> None:
        self.all: list[Picture] = []
        self._known: dict[tuple[int, ...], int] = {}

    def shown(self, access: Access, rows: Array) -> Shown | None:
        """An access by the warps in these rows of its convoy; None where none of their lanes takes part."""
        assert access.warps is not None
        addresses, active = access.addresses(), access.pattern.active_rows
        places = []
        for row in rows.tolist():
            lanes = np.ones(WARP_THREADS, np.bool_) if active is None else active[row]
            if not lanes.any():
                continue
            picture, base = self._picture(addresses[row], lanes)
            source = -1 if access.source is None else self._source(access, access.source, row)
            places.append((int(access.warps.numbers[row]), picture, base, source))
        if not places:
            return None
        buffer = access.buffer
        return Shown(
            buffer.name,
            "shared" if buffer.space is Space.SHARED else "global",
            access.store,
            access.width_bytes,
            buffer.dtype.bytes,
            access.matrices,
            tuple(places),
        )

    def _source(self, access: Access, source: Pattern, row: int) -> int:
        active = source.active_rows
        lanes = np.ones(WARP_THREADS, np.bool_) if active is None else active[row]
        return self._picture(source.rows[row] * access.buffer.dtype.bytes, lanes)[0] if lanes.any() else -1

    def _picture(self, addresses: Array, lanes: Array) -> tuple[int, int]:
        """The number of the picture, and the address that it is relative to."""
        base = int(addresses[lanes].min()) // _ALIGN_BYTES * _ALIGN_BYTES
        at = tuple(np.where(lanes, addresses - base, -1).tolist())
        number = self._known.setdefault(at, len(self.all))
        if number == len(self.all):
            self.all.append(Picture(at))
        return number, base


class State:
    """Reads what has changed into `cells`. slot: of the block in the batch that runs."""

    def __init__(self, context: Context, batch: Batch, slot: int) -> None:
        self.cells = Cells()
        self._memory = context.memory
        self._arithmetic = context.arithmetic
        self._slot = slot
        self._registers: dict[int, int] = {}
        self.warps = batch.warps_per_block
        self._shared: list[tuple[int, Buffer, Array]] = []
        for buffer, offset_bytes in context.memory.shared_places():
            if buffer.dtype is not MBARRIER:
                region = self.cells.add_shared(buffer, offset_bytes)
                self._shared.append((region, buffer, self._stored(buffer).copy()))

    def _stored(self, buffer: Buffer) -> Array:
        first = self._slot * buffer.elements
        return self._memory.arrays[buffer.name][first : first + buffer.elements]

    def read_shared(self) -> None:
        for region, buffer, known in self._shared:
            stored = self._stored(buffer)
            bits = f"u{stored.dtype.itemsize}"
            changed = np.flatnonzero(stored.view(bits) != known.view(bits))
            if len(changed):
                first, end = int(changed[0]), int(changed[-1]) + 1
                known[first:end] = stored[first:end]
                values = self._arithmetic.decode(stored[first:end], buffer.dtype)
                self.cells.set(region, first, np.asarray(values, np.float32))

    def read_registers(self, convoy: Convoy, rows: Array) -> None:
        """The registers of the warps in these rows of a convoy."""
        for number, array in enumerate(convoy.registers):
            if array is None:
                continue
            if number not in self._registers:
                self._registers[number] = self.cells.add_registers(array.buffer, self.warps)
            elements = array.buffer.elements
            data = array.data.reshape(elements, -1, WARP_THREADS)
            values = written_only(data[:, rows]).transpose(1, 0, 2).reshape(len(rows), -1)
            each = elements * WARP_THREADS
            for row, warp in enumerate(convoy.warps.numbers[rows].tolist()):
                self.cells.set(self._registers[number], warp * each, np.ascontiguousarray(values[row]))


_WHOLE = 2**WARP_THREADS - 1


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding and the moment at which it was found. happened: the number of that moment among all."""

    finding: Finding
    moment: int
    happened: int


class Recorder(Listener, Observer):
    """Keeps the moments of one block. is_kept: whether to keep a moment, by its number among all."""

    def __init__(self, block: Block, is_kept: Callable[[int], bool]) -> None:
        self.block = block
        self._is_kept = is_kept
        self.moments: list[Moment] = []
        self.stalls: list[Stall] = []
        self.barrier_states: list[BarrierState] = []
        self.seen: list[Seen] = []
        self.ends: dict[int, int] = {}
        self.pictures = Pictures()
        self.flights = Flights()
        self.happened = 0
        """Statements executed or waited at, kept or not."""
        self.skipped = 0
        self._skipping = 0
        self._waiting: dict[int, tuple[Stall, Wait]] = {}
        self._known_barriers: dict[int, tuple[int, ...]] = {}
        self._accesses: list[Shown] = []
        self._notes: list[str] = []
        self._slot = 0
        self.units: Units | None = None

    # -- what listeners are told ------------------------------------------------------------------------------------

    def accessed(self, access: Access) -> None:
        if access.warps is None:
            return
        rows = _of_block(access.warps, self.block)
        shown = self.pictures.shown(access, rows) if len(rows) else None
        if shown is not None:
            self._accesses.append(shown)

    def computed(self, arithmetic: Arithmetic) -> None:
        each = (f"{count * arithmetic.times} {opcode}" for opcode, count in arithmetic.operations.items())
        self._notes.append(" and ".join(each))

    def issued(self, issue: Issue) -> None:
        if issue.barriers:
            self._notes.append(", ".join(issue.barriers))

    # -- what an observer is told -----------------------------------------------------------------------------------

    def begun(self, context: Context, batch: Batch) -> None:
        slots = np.flatnonzero((batch.coordinates == self.block).all(axis=1))
        if len(slots):
            self._slot = int(slots[0])
            self._memory, self.units = context.memory, context.units
            self.state = State(context, batch, self._slot)

    def stepped(self, site: Site, convoy: Convoy) -> None:
        self._keep("step", site, convoy, self._note())

    def stalled(self, site: Site, convoy: Convoy) -> None:
        assert convoy.wait is not None
        rows = rows_of(convoy, self.block)
        if not len(rows):
            return
        mine = np.zeros(len(convoy.warps), np.bool_)
        mine[rows] = True
        wait = convoy.wait.select(mine)
        self._keep("stall", site, convoy, wait.describe())
        for row in rows.tolist():
            alone = np.zeros(len(convoy.warps), np.bool_)
            alone[row] = True
            own = convoy.wait.select(alone)
            warp = int(convoy.warps.numbers[row])
            self._waiting[warp] = Stall(warp, site.line, self._now, -1, own.name, own.describe()), own

    def released(self, convoy: Convoy) -> None:
        for row in _of_block(convoy.warps, self.block).tolist():
            waited = self._waiting.pop(int(convoy.warps.numbers[row]), None)
            if waited is not None:
                self.stalls.append(replace(waited[0], last=len(self.moments)))

    def ended(self, convoy: Convoy) -> None:
        for row in _of_block(convoy.warps, self.block).tolist():
            self.ends[int(convoy.warps.numbers[row])] = len(self.moments)

    def found(self, finding: Finding) -> None:
        self.seen.append(Seen(finding, len(self.moments), self.happened))

    def completed(self) -> None:
        landed = self._boxes(len(self.moments))
        if landed and not self._skipping:
            note = f"{len(landed)} box{'es' if len(landed) > 1 else ''}: {', '.join(one.note for one in landed)}"
            self.moments.append(Moment("landing", landed[0].line, (), note=note))
            self._end_moment()

    @property
    def _now(self) -> int:
        """The moment of the statement that has just been executed; the one that stands for it if it is not kept."""
        return len(self.moments) - (not self._skipping)

    # -- moments ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The run is over."""
        if self._skipping:
            self._resume()
        for one in self.seen:
            where = one.finding.where
            if one.moment == len(self.moments) and where.block == self.block:
                # It stopped at this statement, which was not executed; or nothing was, and warps wait for ever.
                self.moments.append(Moment("fault", where.line, (where.warp,), where.loops, note=one.finding.headline))
                self._end_moment()
        # What is missing in the end, not what was missing when the wait began.
        self.stalls += (replace(stall, what=wait.describe()) for stall, wait in self._waiting.values())
        self.stalls.sort(key=lambda stall: (stall.first, stall.warp))

    def _note(self) -> str:
        return "; ".join(self._notes)

    def _keep(self, kind: MomentKind, site: Site, convoy: Convoy, note: str) -> None:
        """What the warps of a convoy have done is a moment, where some of them are of the block."""
        rows = rows_of(convoy, self.block)
        if len(rows):
            if self._begin_moment():
                numbers = convoy.warps.numbers[rows]
                loops = site.values(convoy.slots)
                moment = Moment(kind, site.line, _tuple(numbers), loops, self._lanes(convoy, rows), note)
                self.moments.append(replace(moment, accesses=tuple(self._accesses)))
            self.state.read_registers(convoy, rows)
            if isinstance(site.stmt, (Move, CommitCopies, WaitCopies, AsyncStmt)):
                self._flights_of(convoy, rows)
            self._end_moment()
        self._accesses.clear()
        self._notes.clear()

    def _begin_moment(self) -> bool:
        """Whether the next moment is kept."""
        is_kept = self._is_kept(self.happened)
        self.happened += 1
        if is_kept and self._skipping:
            self._resume()
        elif not is_kept:
            self.state.cells.skip()
            self._skipping += 1
        return is_kept

    def _resume(self) -> None:
        self.state.cells.resume()
        self.moments.append(Moment("skipped", 0, (), note=f"{self._skipping:,} steps are not kept"))
        self.skipped += self._skipping
        self._skipping = 0
        self._barriers()
        self.state.cells.end_moment()

    def _end_moment(self) -> None:
        self.state.read_shared()
        if not self._skipping:
            self._barriers()
            self.state.cells.end_moment()

    # -- state ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _lanes(convoy: Convoy, rows: Array) -> tuple[int, ...]:
        if convoy.mask is None:
            return ()
        bits = _tuple(convoy.mask.rows[rows] @ (1 << np.arange(WARP_THREADS, dtype=np.int64)))
        return () if all(one == _WHOLE for one in bits) else bits

    def _flights_of(self, convoy: Convoy, rows: Array) -> None:
        now, numbers = self._now, set(convoy.warps.numbers[rows].tolist())
        copies = dict(copies_of(convoy, rows, self._slot, self._memory))
        self.flights.update(now, copies, ("cp.async",), numbers)
        products = dict(products_of(convoy, rows))
        self.flights.update(now, products, ("wgmma",), {number // GROUP_WARPS for number in numbers})
        self._boxes(now)

    def _boxes(self, now: int) -> list[Flight]:
        if self.units is None:
            return []
        found: dict[Key, UnderWay] = dict(boxes_of(self.units, self._slot))
        return self.flights.update(now, found, ("TMA load", "TMA store"), ("block",))

    def _barriers(self) -> None:
        """What has changed of the mbarriers."""
        units = self.units
        if units is None or not len(units.names):
            return
        phases, count = units.phases, len(units.names)
        here = slice(self._slot * count, (self._slot + 1) * count)
        rows = np.stack([x[here] for x in (phases.phase, phases.pending, phases.count, phases.bytes)], axis=1)
        for barrier, row in enumerate(map(tuple, rows.tolist())):
            if self._known_barriers.get(barrier, (0, 0, 0, 0)) != row:
                self._known_barriers[barrier] = row
                self.barrier_states.append(BarrierState(len(self.moments) - 1, barrier, *row))


def rows_of(convoy: Convoy, block: Block) -> Array:
    """Which warps of a convoy belong to a block and have a lane that takes part."""
    rows = _of_block(convoy.warps, block)
    return rows if convoy.mask is None else rows[convoy.mask.rows[rows].any(axis=1)]


def _of_block(warps: Warps, block: Block) -> Array:
    return np.flatnonzero((warps.batch.coordinates[warps.slots] == block).all(axis=1))


def _tuple(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers)
