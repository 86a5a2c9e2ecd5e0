"""Control flow. What never waits runs as an operation; what may wait is an instruction of a flat program.

    operation     called with a convoy, runs to its end: loops and branches with nothing to wait for inside
    instruction   one step of a convoy, which then stands at another `pc`, may wait, or falls apart into two

So a convoy can stop and go on anywhere a warp can wait, and its state is a few values that can be split. The kinds of
waiting for the units beside the threads are instructions in `asynchronous`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.expr import Op
from tilewright.simulator.context import BLOCK_BARRIER, Context, Observer, where
from tilewright.simulator.convoy import Convoy, Wait
from tilewright.simulator.findings import Branch, Iterations, Kind, Meeting, Site
from tilewright.simulator.index import Place, Predicate, Uniform
from tilewright.simulator.journal import Role
from tilewright.simulator.warps import Mask, both

Operation = Callable[[Convoy], None]


class Instruction(Protocol):
    """One step of a convoy."""

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        """The convoys that go on, usually the same one; those that wait have `wait` set."""


@runtime_checkable
class Ordering(Protocol):
    """An instruction that orders warps: it arrives at something, or waits."""

    def ready(self, convoy: Convoy) -> bool:
        """Whether a convoy of one warp could execute it now, without waiting before it."""


@dataclass(slots=True)
class Condition:
    """The condition of a branch, and the news about it."""

    site: Site
    context: Context
    predicate: Predicate

    def of(self, convoy: Convoy) -> bool | Mask:
        chosen = self.predicate(convoy)
        if self.context.wire.branched:
            split = 0
            if isinstance(chosen, Mask):
                rows = (chosen if convoy.mask is None else convoy.mask.both(chosen)).rows
                present = np.ones_like(rows) if convoy.mask is None else convoy.mask.rows
                split = int(np.count_nonzero(rows.any(axis=1) & (rows != present).any(axis=1)))
            for hear in self.context.wire.branched:
                hear(Branch(self.site, convoy.active_warps, convoy.active_lanes, split))
        return chosen


@dataclass(slots=True)
class IfOp:
    """A branch with nothing to wait for inside: both sides run one after the other, each with its lanes."""

    condition: Condition
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...]

    def __call__(self, convoy: Convoy) -> None:
        chosen = self.condition.of(convoy)
        if not isinstance(chosen, Mask):
            for operation in self.then if chosen else self.otherwise:
                operation(convoy)
            return
        before = convoy.mask
        taken = both(before, chosen)
        rest = chosen.inverse if before is None else before.minus(chosen)
        for mask, side in ((taken, self.then), (rest, self.otherwise)):
            if mask is not None and not mask.count:
                continue
            convoy.mask = mask
            for operation in side:
                operation(convoy)
        convoy.mask = before


@dataclass(frozen=True, slots=True)
class Counter:
    """An integer that a loop carries along, in a slot of its own; the same in every lane."""

    slot: int
    start: Uniform
    next: Uniform


@dataclass(slots=True)
class LoopOp:
    """A loop with nothing to wait for inside. Blocks may differ in its extent."""

    site: Site
    context: Context
    slot: int
    extent: Place
    varies: bool
    body: tuple[Operation, ...]
    counters: tuple[Counter, ...] = ()

    def __call__(self, convoy: Convoy) -> None:
        start(self.counters, convoy.slots)
        if self.varies:
            self._run_varying(convoy)
            return
        extent = self.extent.offset(convoy.slots)
        body, slots, slot = self.body, convoy.slots, self.slot
        for value in range(extent):
            slots[slot] = value
            for operation in body:
                operation(convoy)
            for counter in self.counters:
                slots[counter.slot] = counter.next(slots)
        self._tell(convoy, extent)

    def _run_varying(self, convoy: Convoy) -> None:
        """The lanes of blocks that are through with the loop wait, masked, for the longest."""
        lanes, offset = self.extent.cell.of(convoy), self.extent.offset(convoy.slots)
        before = convoy.mask
        for value in range(max(0, lanes.high + offset)):
            inside = lanes.compare(Op.GE, value + 1 - offset)
            convoy.mask = both(before, inside) if isinstance(inside, Mask) else before
            convoy.slots[self.slot] = value
            if convoy.mask is None or convoy.mask.count:
                for operation in self.body:
                    operation(convoy)
                self._tell(convoy, 1)
            for counter in self.counters:
                convoy.slots[counter.slot] = counter.next(convoy.slots)
        convoy.mask = before

    def _tell(self, convoy: Convoy, times: int) -> None:
        for hear in self.context.wire.iterated:
            hear(Iterations(self.site, times, convoy.active_warps, convoy.active_lanes, convoy.warps.block_count))


def start(counters: tuple[Counter, ...], slots: list[int]) -> None:
    """The counters of a loop before its first iteration."""
    for counter in counters:
        slots[counter.slot] = counter.start(slots)


@dataclass(slots=True)
class Straight:
    """Operations that never wait."""

    operations: tuple[Operation, ...]

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        for operation in self.operations:
            operation(convoy)
        convoy.pc += 1
        return (convoy,)


@dataclass(slots=True)
class Telling(Straight):
    """Operations for which others may be waiting: an arrival, a flag."""

    def ready(self, convoy: Convoy) -> bool:
        return True


@dataclass(slots=True)
class LoopBegin:
    """Sets the loop variable to 0, and what the loop carries to its start."""

    slot: int
    counters: tuple[Counter, ...]

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        start(self.counters, convoy.slots)
        convoy.slots[self.slot] = 0
        convoy.pc += 1
        return (convoy,)


@dataclass(slots=True)
class LoopTest:
    """Enters the body, or leaves for `exit`. Blocks with different extents part here."""

    site: Site
    context: Context
    slot: int
    extent: Place
    varies: bool
    exit: int = -1

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        value, extent = convoy.slots[self.slot], self.extent.offset(convoy.slots)
        if not self.varies:
            return (self._enter(convoy) if value < extent else self._leave(convoy),)
        inside = self.extent.cell.of(convoy).compare(Op.GE, value + 1 - extent)
        if not isinstance(inside, Mask):
            return (self._enter(convoy) if inside else self._leave(convoy),)
        rows = inside.rows if convoy.mask is None else inside.both(convoy.mask).rows  # others may hold anything
        stay: Array = np.any(rows, axis=1)
        if stay.all() or not stay.any():
            return (self._enter(convoy) if stay.all() else self._leave(convoy),)
        return self._enter(convoy.part(stay)), self._leave(convoy.part(~stay))

    def _enter(self, convoy: Convoy) -> Convoy:
        for hear in self.context.wire.iterated:
            hear(Iterations(self.site, 1, convoy.active_warps, convoy.active_lanes, convoy.warps.block_count))
        convoy.pc += 1
        return convoy

    def _leave(self, convoy: Convoy) -> Convoy:
        convoy.pc = self.exit
        return convoy


@dataclass(slots=True)
class LoopNext:
    """Moves on what the loop carries, adds 1 to the loop variable and goes back to the test."""

    slot: int
    test: int
    counters: tuple[Counter, ...]

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        for counter in self.counters:
            convoy.slots[counter.slot] = counter.next(convoy.slots)
        convoy.slots[self.slot] += 1
        convoy.pc = self.test
        return (convoy,)


@dataclass(slots=True)
class BranchBegin:
    """A branch with waiting inside. Warps that go different ways part; a warp that falls apart runs both sides.

    Leaves a frame: the mask to come back to, and the lanes of the other side (None: no lane goes there).
    """

    condition: Condition
    otherwise: int = -1

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        chosen = self.condition.of(convoy)
        if not isinstance(chosen, Mask):
            return (self._whole(convoy, chosen),)
        present = np.ones_like(chosen.rows) if convoy.mask is None else convoy.mask.rows
        taken = chosen.rows & present
        some: Array = np.any(taken, axis=1)
        every: Array = (taken == present).all(axis=1)
        parts = []
        for warps, way in ((every, True), (~some, False)):
            if warps.any():
                parts.append(self._whole(convoy.part(warps), way))
        divergent = some & ~every
        if divergent.any():
            parts.append(self._both(convoy.part(divergent), taken[divergent], present[divergent]))
        return tuple(parts)

    def _whole(self, convoy: Convoy, way: bool) -> Convoy:
        convoy.frames.append((convoy.mask, None))
        convoy.pc = convoy.pc + 1 if way else self.otherwise + 1
        return convoy

    @staticmethod
    def _both(convoy: Convoy, taken: Array, present: Array) -> Convoy:
        convoy.frames.append((convoy.mask, Mask((present & ~taken).reshape(-1))))
        convoy.mask = Mask(taken.reshape(-1))
        convoy.pc += 1
        return convoy


@dataclass(slots=True)
class BranchElse:
    """The first side is done: on to the second for the lanes that wait for it, else past it."""

    end: int = -1

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        before, rest = convoy.frames[-1]
        if rest is None:
            convoy.pc = self.end
        else:
            convoy.frames[-1] = (before, None)
            convoy.mask = rest
            convoy.pc += 1
        return (convoy,)


@dataclass(slots=True)
class BranchEnd:
    """Both sides are done."""

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        convoy.mask, _ = convoy.frames.pop()
        convoy.pc += 1
        return (convoy,)


@dataclass(slots=True)
class BarrierStep:
    """The instruction: arrive, and wait unless everybody is there."""

    site: Site
    context: Context

    def ready(self, convoy: Convoy) -> bool:
        return True

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        convoy.pc += 1
        if _report_divergent(self.site, self.context, convoy):
            return (convoy,)  # to go on after the report: as if the barrier were not there
        for hear in self.context.wire.met:
            hear(Meeting(self.site, len(convoy.warps), convoy.active_lanes, convoy.warps.block_count, convoy.warps))
        barriers, slots = self.context.barriers, convoy.warps.slots
        awaited = barriers.rounds[slots] + 1
        self.context.note(Role.MEETS, BLOCK_BARRIER, slots, barriers.rounds[slots])
        opened = barriers.arrive(slots)
        if len(opened) and self.context.races is not None:
            self.context.races.passed_barrier(opened)
        if len(opened) < convoy.warps.block_count:
            convoy.wait = Wait(self.site, barriers, slots, awaited)
        return (convoy,)


def _report_divergent(site: Site, context: Context, convoy: Convoy) -> bool:
    """Whether lanes are missing from a warp that reaches a barrier; if so it is reported."""
    if convoy.mask is convoy.warps.exists:
        return False
    assert convoy.mask is not None
    exists = convoy.warps.exists
    absent = ~convoy.mask.lanes if exists is None else exists.lanes & ~convoy.mask.lanes
    partial: Array = np.any(convoy.mask.rows, axis=1) & absent.reshape(convoy.mask.rows.shape).any(axis=1)
    if not partial.any():
        return False
    here = convoy.mask.rows & partial[:, None]
    context.findings.report(
        Kind.DIVERGENT_BARRIER,
        "A barrier is reached by a part of a warp.",
        where(site, convoy, here.reshape(-1)),
        note="every thread of the block must reach the same barrier; lanes left behind make it hang or misfire.",
        hint="move the barrier out of the branch.",
    )
    return True


@dataclass(frozen=True, slots=True)
class ObservedOperation:
    """The operations of one statement, then the news."""

    site: Site
    operations: tuple[Operation, ...]
    observer: Observer

    def __call__(self, convoy: Convoy) -> None:
        for operation in self.operations:
            operation(convoy)
        self.observer.stepped(self.site, convoy)


@dataclass(frozen=True, slots=True)
class ObservedInstruction:
    """A statement at which warps may have to wait, and the news of those that do and of those that go on."""

    site: Site
    inner: Instruction
    observer: Observer

    def step(self, convoy: Convoy) -> tuple[Convoy, ...]:
        before = convoy.pc
        parts = self.inner.step(convoy)
        for part in parts:
            if part.wait is not None:
                self.observer.stalled(self.site, part)
            elif part.pc != before:
                self.observer.stepped(self.site, part)
        return parts


def observed(
    operations: Sequence[Operation], observer: Observer | None, place: Callable[[], Site]
) -> Sequence[Operation]:
    """The operations of a statement as one that tells the observer; as they are where there is none."""
    return operations if observer is None else (ObservedOperation(place(), tuple(operations), observer),)


def observed_step(instruction: Instruction, observer: Observer | None, site: Site) -> Instruction:
    return instruction if observer is None else ObservedInstruction(site, instruction, observer)
