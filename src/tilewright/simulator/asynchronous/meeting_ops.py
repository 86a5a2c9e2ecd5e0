"""Named barriers, the barrier of the cluster, fences, and the budget of registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.simulator.asynchronous.lanes import UnitOp, acting, values
from tilewright.simulator.asynchronous.meetings import NAMED, Meetings, named_keys, whole_warps
from tilewright.simulator.asynchronous.units import REGISTER_STEP
from tilewright.simulator.collective import check_whole_warps
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.findings import Kind, Meeting
from tilewright.simulator.index import Place
from tilewright.simulator.journal import Role


@dataclass(slots=True)
class MeetingStep(UnitOp):
    """What named barriers and that of the cluster share: arrive, and wait unless everybody is there."""

    def ready(self, convoy: Convoy) -> bool:
        return True

    def _meet(self, convoy: Convoy, meetings: Meetings, keys: Array, warps: Array) -> tuple[Convoy, ...]:
        for hear in self.context.wire.met:
            hear(Meeting(self.site, len(convoy.warps), convoy.active_lanes, convoy.warps.block_count, convoy.warps))
        convoy.pc += 1
        awaited, wrong = meetings.arrive(keys, self.units.clocks.row(convoy.warps), warps)
        self.context.note(Role.MEETS, meetings.kind, keys, awaited - 1)
        if len(wrong):
            number, here = int(wrong[0]) % NAMED, np.flatnonzero(keys == wrong[0])
            self.report(
                Kind.DIVERGENT_BARRIER,
                f"Warps meet at named barrier {number} with different numbers of threads.",
                self.place(convoy, here * WARP_THREADS),
            )
        if (meetings.rounds[keys] < awaited).any():
            convoy.wait = Wait(self.site, meetings, keys, awaited)
        return (convoy,)


@dataclass(slots=True)
class TeamBarrierStep(MeetingStep):
    """A named barrier."""

    number: Place
    threads: int

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        check_whole_warps(self.site, self.context, convoy)
        first = np.arange(0, convoy.warps.lanes, WARP_THREADS)
        numbers = values(self.number, convoy, first)
        outside = (numbers < 0) | (numbers >= NAMED)
        if outside.any() or self.threads % WARP_THREADS:
            headline = (
                f"There is no named barrier {int(numbers[int(np.argmax(outside))])}."
                if outside.any()
                else f"A named barrier of {self.threads} threads: only whole warps can meet."
            )
            self.context.findings.stop(
                Kind.DIVERGENT_BARRIER, headline, self.place(convoy, first[outside] if outside.any() else first)
            )
        warps = np.full(len(numbers), whole_warps(self.threads))
        return self._meet(convoy, self.units.named, named_keys(convoy.warps, numbers), warps)


@dataclass(slots=True)
class ClusterBarrierStep(MeetingStep):
    """The barrier of all warps of a cluster that have not ended."""

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        check_whole_warps(self.site, self.context, convoy)
        keys = self.units.clocks.leader[convoy.warps.slots]
        clusters = self.units.clusters
        return self._meet(convoy, clusters, keys, clusters.asked[keys])


@dataclass(slots=True)
class FenceProxyOp(UnitOp):
    """What these threads wrote is seen by the units from now on; in global memory what they know of, too."""

    space: Space

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = acting(convoy)
        if self.space is Space.GLOBAL:
            self.units.clocks.fence_global(np.unique(self.rows(convoy, lanes)))
        else:
            self.units.clocks.fence(self.rows(convoy, lanes), lanes % WARP_THREADS)


@dataclass(slots=True)
class PassOp(UnitOp):
    """What concerns other kernels, or how soon something is there: it changes no result."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)


@dataclass(slots=True)
class WaitPreviousOp(UnitOp):
    """These threads have waited for the grid before."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = acting(convoy)
        if len(lanes):
            self.units.wait_previous(np.unique(self.rows(convoy, lanes)))


@dataclass(slots=True)
class SetRegistersOp(UnitOp):
    """Warps give up registers, or take more."""

    count: int
    grow: bool

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        check_whole_warps(self.site, self.context, convoy)
        units = self.units
        lanes = acting(convoy)
        rows = np.unique(self.rows(convoy, lanes))
        if self.count % REGISTER_STEP or not 24 <= self.count <= 256:
            headline = f"A warpgroup cannot have {self.count} registers a thread."
            note = f"setmaxnreg takes multiples of {REGISTER_STEP} from 24 to 256."
            self.report(Kind.REGISTERS, headline, self.place(convoy, lanes), note=note)
        units.registers[rows] = self.count
        if self.grow and units.register_place is None:
            units.register_place = self.place(convoy, lanes)


@dataclass(slots=True)
class UniformCheckOp(UnitOp):
    """A named value that is said to be the same in all lanes of a warp."""

    name: str
    value: Place

    def __call__(self, convoy: Convoy) -> None:
        pattern = self.value.cell.of(convoy).pattern(convoy.mask)
        differ = pattern.known("uniform", lambda: _differ(pattern.rows, pattern.active_rows))
        if differ.any():
            lanes = acting(convoy)
            self.report(
                Kind.NOT_UNIFORM,
                f"{self.name} is declared the same in all lanes of a warp, and differs.",
                self.place(convoy, lanes[differ[lanes // WARP_THREADS]]),
                hint="the compiler takes the value of one lane for all: drop the promise.",
            )


def _differ(rows: Array, active: Array | None) -> Array:
    """Warps whose active lanes hold different values; rows, active: (warps, 32)."""
    numbers = np.iinfo(rows.dtype)
    low = np.where(True if active is None else active, rows, numbers.max).min(axis=1)
    high = np.where(True if active is None else active, rows, numbers.min).max(axis=1)
    differ: Array = low < high
    return differ
