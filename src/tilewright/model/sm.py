"""One SM and the blocks it runs: how long their steps take, and what comes before and after them.

Warps overlap what they ask of the units of an SM, though not perfectly. What a block waits for with nothing to do
(values of global memory, barriers, MMAs) is covered by the other blocks of the SM, as far as there are any.

The numbers of a work may be NumPy columns with an entry for each of many kernels: so are the clocks then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.work import Work
from tilewright.model.demand import FFMA_CLOCKS, WAVEFRONT_CLOCKS, Demand, demand_of

OVERLAP = 2.0
"""How well warps overlap arithmetic with accesses: 1 is not at all, infinity perfectly. Fitted; the prototype on other
data found the same."""

UNITS_OVERLAP = 4.0
"""The same for units that go on by themselves while warps issue other things: tensor cores, TMA, and the
memory pipe that replays accesses with bank conflicts. Fitted."""

BURST_SHARE = 0.4
"""Of its L2 bandwidth, what an SM gets while its blocks stop for their loads, all at once. Fitted."""

BARRIER_CLOCKS = 60.0
"""From the last arrival at a barrier to the first result after it: the barrier and one load of shared memory (23 to 30
clocks each, benchmarks/results/shared_memory_h200.json)."""

RESTART_CLOCKS = 300.0
"""From the end of MMAs that all warps of a block wait for to its next ones, while its tensor cores stand idle: the
drain, a barrier, the copies one thread asks for while others wait, an mbarrier, descriptors. In machine code (hopper/2)
some 60 instructions of one warp in a row, about 5 clocks each as no other warp issues between them."""

CHAIN_CLOCKS = 1.3
"""Of a multiply-add of a warp that has a scheduler for itself: while it waits for its fragments, no other warp issues.
From 28 figures of f32 on the H200 whose blocks have four or eight warps and an SM for themselves
(record 0027): mean error 6 %, with 1.15 or 1.6 7 %."""

FETCHED_FROM, FETCHED_WHOLLY = 2048, 2432
"""Instructions of a loop on sm_90 that its instruction cache still holds (32 KiB), and of which it holds none from one
turn to the next: benchmarks/results/instruction_fetch_h100.json, loops of 512 to 4096 FFMAs."""

FETCH_CLOCKS = 1.36
"""For which a warp that has a scheduler to itself waits for each of them: an FFMA takes 2.43 clocks, in a short loop
1.07. Two warps take 1.09 each in any loop, as one fetch serves both (as above)."""


@dataclass(frozen=True, slots=True)
class Sm:
    """One SM and the blocks it runs. step, rest: what one of them asks."""

    work: Work
    spec: DeviceSpec
    step: Demand
    rest: Demand

    @classmethod
    def of(cls, work: Work, spec: DeviceSpec, wavefront_clocks: float = WAVEFRONT_CLOCKS) -> Sm:
        step, rest = (demand_of(phase, work, spec, wavefront_clocks) for phase in (work.step, work.rest))
        return cls(work, spec, step, rest)

    def blocks(self, per_sm: Any) -> tuple[Any, Any]:
        """Of the busiest SM: all of them, and those that run together."""
        most = -(-self.work.blocks // self.spec.sm_count)
        return most, np.maximum(1, np.minimum(per_sm, most))

    @property
    def l2_clocks(self) -> Any:
        """For the strips of one step."""
        return self.work.strip_bytes / self.spec.l2_bytes_per_clk_per_sm

    @property
    def busy(self) -> Any:
        """Clocks of one step of one block, as its warps overlap what it asks; no less than they take to cover what each
        of them waits for, where machine code tells."""
        work, read = self.work, self.work.read
        asked = overlapped(self.step, work)
        if read is None or not read.issued:
            return asked
        warps = max(1, round(work.warps / self.spec.schedulers_per_sm))
        return np.maximum(asked, shared_clocks(read.issued, read.covered, warps))[()]

    @property
    def wait(self) -> Any:
        """Clocks of one step in which one block waits for memory and barriers."""
        work = self.work
        barriers = work.step.barriers / work.warps * BARRIER_CLOCKS
        strips = np.minimum(1.0, work.load_groups) * self.l2_clocks / BURST_SHARE
        constants = work.read.constants if work.read is not None else 0.0
        return barriers + constants + work.load_groups * self.load_latency + strips

    @property
    def load_latency(self) -> Any:
        """Clocks until a value of global memory is there: the latencies of L2 and DRAM, by where the data lies."""
        near, far = self.spec.l2_latency_clk, self.spec.dram_latency_clk
        return near + self.work.from_dram * (far - near)

    @property
    def restart(self) -> float:
        """Clocks of one step from the end of its MMAs to the next ones, where all of the block waits for them."""
        return RESTART_CLOCKS if self.work.products_awaited else 0.0

    def step_clocks(self, together: Any, *, restarts: bool = True) -> Any:
        """In which each of the blocks on the SM makes one step. restarts: whether they take any time."""
        wait = self.wait + self.fetch(together) + (self.restart if restarts else 0.0)
        blocks = shared_clocks(self.busy, wait, together)
        return largest(blocks, together * self.l2_clocks, self.ahead, self.arrival, self.warps_clocks(together))

    def fetch(self, together: Any) -> Any:
        """Clocks of one step in which a warp waits for its instructions, with no other warp on its scheduler."""
        work, spec = self.work, self.spec
        code = (work.read.code if work.read is not None else 0) or work.code
        if not np.any(code) or spec.compute_capability != (9, 0):  # no other was measured
            return 0.0
        beyond = np.clip((code - FETCHED_FROM) / (FETCHED_WHOLLY - FETCHED_FROM), 0.0, 1.0)
        alone = together * work.warps <= spec.schedulers_per_sm
        return np.where(alone, code * beyond * FETCH_CLOCKS, 0.0)[()]

    @property
    def ahead(self) -> Any:
        """The latency of copies that run ahead, for each step by which they do: of DRAM, if it is not known where the
        data lies."""
        ahead, known = self.work.steps_ahead, self.work.from_dram
        latency = np.where(known, self.load_latency, self.spec.dram_latency_clk)
        return np.where(ahead, latency / np.maximum(1, ahead), 0.0)[()]

    @property
    def arrival(self) -> Any:
        """Clocks until copies by cp.async may be used, for each of the steps by which they run ahead: the whole tile
        arrives, as it does where blocks stop for their loads, and all warps meet behind it."""
        ahead = self.work.awaited_ahead
        met = self.work.step.barriers / self.work.warps * BARRIER_CLOCKS
        arrives = self.spec.dram_latency_clk + self.l2_clocks / BURST_SHARE + met
        return np.where(ahead, arrives / np.maximum(1, ahead), 0.0)[()]

    def warps_clocks(self, together: Any) -> Any:
        """Of a step, as the warps of a scheduler cover each other's waits: for fragments, and for copies ahead."""
        work, schedulers = self.work, self.spec.schedulers_per_sm
        if work.inputs:  # the tensor cores go on by themselves
            return 0.0
        warps = -(-together * work.warps // schedulers)
        if work.read is not None and work.read.issued:
            return shared_clocks(work.read.issued, work.read.covered + self.ahead, warps)
        wait = (CHAIN_CLOCKS - FFMA_CLOCKS) * work.step.fp32 / work.warps + self.ahead
        return shared_clocks(self.step.fp32 * schedulers / work.warps, wait, warps)

    def ends_clocks(self, together: Any) -> Any:
        """Before the first step and after the last one, of blocks that run together."""
        # The first loads, and the last stores; persistent blocks wait for them once.
        first = np.where(self.work.resident, 0.0, 2 * self.spec.l2_latency_clk)
        alone = together * overlapped(self.rest, self.work) + first
        # With ping-pong other warps multiply meanwhile, and share the memory with the store.
        return np.where(self.work.ends_overlap, self.rest.accesses, alone)[()]

    def clocks(self, blocks: Any, together: Any) -> Any:
        """For all the blocks of one SM."""
        rounds, left = np.divmod(blocks, together)
        total = rounds * (self.work.steps * self.step_clocks(together) + self.ends_clocks(together))
        if np.any(left):
            last = self.work.steps * self.step_clocks(left) + self.ends_clocks(left)
            total = total + np.where(left > 0, last, 0.0)
        return total + np.where(self.work.resident, 2 * self.spec.l2_latency_clk, 0.0)[()]


def overlapped(demand: Demand, work: Work) -> Any:
    """Clocks of what a block asks, its warps overlapping it.

    Bank conflicts and scattered lines are replayed by the memory pipe and take no issue slot: what they add overlaps as
    well as what other units do.
    """
    if work.warpgroups:
        return np.maximum(norm(UNITS_OVERLAP, demand.schedulers, demand.tensor, demand.smooth), demand.accesses)
    issued = norm(OVERLAP, demand.schedulers, demand.smooth)
    replayed = norm(UNITS_OVERLAP, demand.schedulers, demand.accesses)
    return np.maximum(norm(UNITS_OVERLAP, issued, demand.tensor), replayed)


def largest(*values: Any) -> Any:
    """The largest of some numbers, or of each entry of some columns."""
    found = values[0]
    for value in values[1:]:
        found = np.maximum(found, value)
    return found


def norm(p: float, *values: Any) -> Any:
    """Between the largest of some times (p is infinity) and their sum (p is 1). p: 2 or 4.

    >>> float(norm(2, 3, 4))
    5.0
    """
    squares = [value * value for value in values]
    if p == 2:
        return np.sqrt(sum(squares))
    assert p == 4, p
    return np.sqrt(np.sqrt(sum(square * square for square in squares)))


def shared_clocks(work: Any, wait: Any, blocks: Any) -> Any:
    """Clocks in which each of some blocks makes a step, of which `work` uses what they share and `wait` does not.

    A closed queue with one server, by mean-value analysis (Reiser and Lavenberg, JACM 27, 1980): never less than
    work * blocks, nor than work + wait.

    >>> [round(float(shared_clocks(*one))) for one in ((100, 0, 2), (100, 50, 1), (100, 50, 2))]
    [200, 150, 217]
    """
    queued, each = 0.0, work + wait
    for count in range(1, int(np.max(blocks)) + 1):
        served = work * (1 + queued)
        made = served + wait
        queued = count * served / np.where(made > 0, made, 1.0)
        each = np.where(count <= blocks, made, each)[()]
    return each
