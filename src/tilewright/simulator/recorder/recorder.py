"""The recorder: an observer and listener of one run that keeps what one block does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.async_stmt import AsyncStmt
from tilewright.ir.stmt import CommitCopies, Move, WaitCopies
from tilewright.simulator.asynchronous.barrier_ops import PhaseWait
from tilewright.simulator.asynchronous.clocks import GROUP_WARPS
from tilewright.simulator.asynchronous.meetings import NAMED, MeetingWait
from tilewright.simulator.asynchronous.units import Units
from tilewright.simulator.barriers import BarrierWait
from tilewright.simulator.context import Context
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.events import Access, Arithmetic, Issue, Listener
from tilewright.simulator.findings import Finding
from tilewright.simulator.launch import Block
from tilewright.simulator.recorder.accesses import Pictures
from tilewright.simulator.recorder.recording import BarrierState, Flight, Moment, MomentKind, Shown, Stall
from tilewright.simulator.recorder.registers import State
from tilewright.simulator.recorder.units import Flights, Key, UnderWay, boxes_of, copies_of, products_of
from tilewright.simulator.sites import Site
from tilewright.simulator.warps import Batch, Warps

_WHOLE = 2**WARP_THREADS - 1
BLOCK_BARRIER = "__syncthreads"


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding and the moment at which it was found. happened: the number of that moment among all."""

    finding: Finding
    moment: int
    happened: int


class Recorder(Listener):
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
            self._waiting[warp] = Stall(warp, site.line, self._now, -1, barrier_of(own), own.describe()), own

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


def barrier_of(wait: Wait) -> str:
    """The name of what the first warp waits for."""
    match wait:
        case BarrierWait():
            return BLOCK_BARRIER
        case PhaseWait():
            return wait.phases.name(int(wait.wanted[0]))
        case MeetingWait(name="named barrier"):
            return f"named barrier {int(wait.keys[0]) % NAMED}"
        case MeetingWait():
            return wait.name
        case _:
            return wait.describe()


def _tuple(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers)
