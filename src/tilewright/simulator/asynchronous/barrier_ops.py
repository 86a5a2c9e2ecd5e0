"""Operations on mbarriers: making them, arriving, expecting bytes, waiting for a phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.lanes import SharedPlace, UnitOp, acting, held_back, values
from tilewright.simulator.asynchronous.phases import MBARRIERS
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.findings import Kind
from tilewright.simulator.index import Place
from tilewright.simulator.journal import Role
from tilewright.simulator.moves import CommitOp, WaitOp


@dataclass(slots=True)
class BarrierOp(UnitOp):
    """What names an mbarrier of its block."""

    barrier: SharedPlace

    def keys(self, convoy: Convoy, lanes: Array) -> Array:
        """The barrier of each lane."""
        units = self.units
        number = self.barrier.of(self, convoy, lanes) + units.names.first[self.barrier.buffer.name]
        return units.phases.key(convoy.warps.block_of_lane[lanes], number)

    def check_made(self, convoy: Convoy, lanes: Array, keys: Array, *, far: bool = False) -> Array:
        """The lanes whose barrier exists, (lanes,) bool; reports others, and those to whom it is not visible.

        far: used by TMA, or from another block.
        """
        units = self.units
        made: Array = units.phases.count[keys] > 0
        if not made.all():
            at = int(np.argmin(made))
            name = units.phases.name(int(keys[at]))
            headline = f"{name} is used before it is made."
            self.report(Kind.MBARRIER, headline, self.place(convoy, lanes[~made]), buffer=name)
        if units.races is not None:
            rows, makers = self.rows(convoy, lanes), units.phases.maker[keys]
            known = units.clocks.rows[rows, units.clocks.own[makers] + (units.clocks.made if far else 0)]
            hidden = made & (known < units.phases.made_at[keys]) & ((makers != rows) | far)
            if hidden.any():
                self._report_hidden(convoy, lanes[hidden], int(keys[int(np.argmax(hidden))]))
        return made

    def there(self, convoy: Convoy, lanes: Array, keys: Array, rank: Place) -> tuple[Array, Array]:
        """The slots of the blocks of these ranks, and the same barriers in them."""
        units, ranks = self.units, values(rank, convoy, lanes)
        cluster = units.kernel.cluster
        outside = (ranks < 0) | (ranks >= cluster)
        if outside.any():
            headline = f"Block {int(ranks[int(np.argmax(outside))])} of a cluster of {cluster} does not exist."
            self.report(Kind.OUT_OF_BOUNDS, headline, self.place(convoy, lanes[outside]))
        slots = units.clocks.leader[convoy.warps.block_of_lane[lanes]] + np.clip(ranks, 0, cluster - 1)
        gone = units.warps_left[slots] == 0
        if gone.any():
            self.report(
                Kind.MBARRIER,
                "A thread arrives at a barrier of a block that has ended.",
                self.place(convoy, lanes[gone]),
                hint="let the cluster meet at a barrier before its blocks end.",
            )
        return slots, units.phases.key(slots, keys % len(units.names))

    def _report_hidden(self, convoy: Convoy, lanes: Array, key: int) -> None:
        name = self.units.phases.name(key)
        self.report(
            Kind.MBARRIER,
            f"{name} is used before it is visible that it was made.",
            self.place(convoy, lanes),
            buffer=name,
            hint="the thread that makes barriers runs FenceBarriers after it, and then all users meet at a barrier.",
        )


@dataclass(slots=True)
class InitOp(BarrierOp):
    """A barrier comes into being."""

    arrivals: int

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        lanes = acting(convoy)
        keys = self.keys(convoy, lanes)
        again = self.units.phases.make(keys, self.arrivals, self.rows(convoy, lanes))
        again[np.unique(keys, return_index=True)[1]] |= False
        twice = len(np.unique(keys)) < len(keys)
        if again.any() or twice:
            name = self.units.phases.name(int(keys[int(np.argmax(again))]))
            headline = f"{name} is made {'by several threads' if twice else 'again'}."
            self.report(Kind.MBARRIER, headline, self.place(convoy, lanes), buffer=name, hint="let one thread make it.")


@dataclass(slots=True)
class FenceBarriersOp(UnitOp):
    """Barriers made so far are seen by all."""

    def __call__(self, convoy: Convoy) -> None:
        self.issue(convoy)
        self.units.clocks.publish(np.unique(self.rows(convoy, acting(convoy))))


@dataclass(slots=True)
class ArriveOp(BarrierOp):
    """Arrival at a barrier of this block or, with a rank, of another block of the cluster; may expect bytes.

    behind_copies: the copies that its lanes started land first. Who reads them without a wait for the barrier is found
    by the clocks.
    """

    rank: Place | None = None
    size_bytes: int = 0
    behind_copies: bool = False

    def __call__(self, convoy: Convoy) -> None:
        if self.behind_copies:
            CommitOp()(convoy)
            WaitOp(self.context, 0)(convoy)
        lanes = acting(convoy)
        if not len(lanes):
            self.issue(convoy)
            return
        units, rows = self.units, self.rows(convoy, lanes)
        keys = self.keys(convoy, lanes)
        self.issue(convoy, keys)
        if self.rank is not None:
            _, keys = self.there(convoy, lanes, keys, self.rank)
        made = self.check_made(convoy, lanes, keys, far=self.rank is not None)
        keys, rows = keys[made], rows[made]
        if self.rank is not None:
            self._note_far(rows, keys)
        self.context.note(Role.ARRIVES, MBARRIERS, keys, units.phases.phase[keys])
        if self.size_bytes:
            units.phases.expect(keys, self.size_bytes)
        units.phases.arrive(keys, rows, units.complain(self.place(convoy, lanes)))
        units.clocks.tick(np.unique(rows))

    def _note_far(self, rows: Array, keys: Array) -> None:
        units = self.units
        far = keys // len(units.names) != rows // units.clocks.warps
        units.told[keys[far]] = rows[far]
        units.told_at[keys[far]] = units.clocks.now(rows[far])


@dataclass(slots=True)
class WaitBarrierStep(BarrierOp):
    """The instruction: go on if the phase is complete, else wait for it and try again."""

    parity: Place
    of_cluster: bool = False

    def ready(self, convoy: Convoy) -> bool:
        lanes, phases = acting(convoy), self.units.phases
        keys, parity = self.keys(convoy, lanes), values(self.parity, convoy, lanes)
        return bool((phases.over(keys, parity) | (phases.count[keys] == 0)).all())

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        lanes = acting(convoy)
        phases = self.units.phases
        keys, parity = self.keys(convoy, lanes), values(self.parity, convoy, lanes)
        made = self.check_made(convoy, lanes, keys)
        passes = ~made | phases.over(keys, parity)
        if passes.all():
            self.issue(convoy, keys)
            self.context.note(Role.PASSES, MBARRIERS, keys[made], phases.phase[keys[made]])
            phases.wait(keys[made], self.rows(convoy, lanes[made]))
            if not self.of_cluster:
                self._check_acquires(convoy, lanes, keys)
            convoy.pc += 1
            return (convoy,)
        return held_back(convoy, lanes[~passes], Wait(self.site, phases, keys[~passes], parity[~passes]))

    def _check_acquires(self, convoy: Convoy, lanes: Array, keys: Array) -> None:
        """A wait within the block makes visible what TMA brought, and not what threads of other blocks stored."""
        stored = self.units.stored_until[keys] > 0
        if stored.any():
            name = self.units.phases.name(int(keys[int(np.argmax(stored))]))
            self.report(
                Kind.UNFENCED,
                f"A wait for {name} does not make visible what other blocks stored.",
                self.place(convoy, lanes[stored]),
                buffer=name,
                hint="wait with the scope of the cluster: WaitBarrier(..., of_cluster=True).",
            )
