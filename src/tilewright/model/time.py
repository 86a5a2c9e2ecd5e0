"""How long a kernel takes on a GPU, from what one block does. docs/model.md explains it term by term.

A step over k keeps several things of an SM busy: its schedulers and arithmetic pipes, its load/store unit with the
shared memory behind it, its share of L2. Warps overlap them, though not perfectly. What a block waits for with nothing
to do (values of global memory, barriers) is covered by the other blocks of the SM, as far as there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from tilewright.device.spec import DeviceSpec
from tilewright.model.demand import FFMA_CLOCKS, Demand, demand_of
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.model.relief import relief_of
from tilewright.model.work import Work
from tilewright.units import format_bytes

OVERLAP = 2.0
"""How well warps overlap arithmetic with accesses: 1 is not at all, infinity perfectly. Fitted; the prototype on other
data found the same."""

UNITS_OVERLAP = 4.0
"""The same for units that go on by themselves while warps issue other things: tensor cores, the copy engine, and the
memory pipe that replays accesses with bank conflicts. Fitted."""

BURST_SHARE = 0.4
"""Of its L2 bandwidth, what an SM gets while its blocks stop for their loads, all at once. Fitted."""

BARRIER_CLOCKS = 60.0
"""From the last arrival at a barrier to the first result after it: the barrier and one load of shared memory (23 to 30
clocks each, benchmarks/results/shared_memory_h200.json)."""

RESTART_CLOCKS = 300.0
"""From the end of products that a whole block waits for to its next ones, while its tensor cores stand idle: the drain,
a barrier, the copies one thread asks for while others wait, a memory barrier, descriptors. In machine code (hopper/2)
some 60 instructions of one warp in a row, about 5 clocks each as no other warp issues between them."""

AWAITED = "products awaited"
"""The term of these restarts."""

_WORTH_TELLING = 0.1
"""Share of the time from which on it is told how to be rid of them, even if something else takes longer."""

CHAIN_CLOCKS = 1.3
"""Of a multiply-add of a warp that has a scheduler for itself: while it waits for its fragments, nobody else issues.
From 28 figures of f32 on the H200 whose blocks have four or eight warps and an SM for themselves
(benchmarks/results/tune_suite_h200.jsonl): mean error 6 %, with 1.15 or 1.6 7 %."""

DRAM_SHARE = 0.875
"""What a kernel reaches of the nominal bandwidth of DRAM: a copy on the H200 moves 4.2 of 4.8 TB/s."""

LAUNCH_SECONDS = 3e-6
"""From the end of the kernel before to the first instruction of this one."""

EARLY_SECONDS = 1e-6
"""What of it is saved by a kernel that starts while the one before still ends (`Overlap`, sm_90 and later). Measured:
H200, 2048^3 in bf16, whose 24 us went from 0.97 to 1.00 of cuBLAS; not told apart by how much room the SMs have."""


def predict_time(
    work: Work,
    spec: DeviceSpec,
    *,
    blocks_per_sm: int,
    dram_bytes: float,
    clock_mhz: float | None = None,
) -> Prediction:
    """The time of a kernel. blocks_per_sm: that run on an SM at a time. dram_bytes: that the whole grid moves.

    clock_mhz: of the SMs; by default that of the data sheet for the units that the kernel uses.
    """
    clock_hz = _clock_hz(work, spec, clock_mhz)
    sm = _Sm.of(work, spec)
    most, together = sm.blocks(blocks_per_sm)
    dram_seconds = dram_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)
    total = predict_seconds(work, spec, blocks_per_sm=blocks_per_sm, dram_bytes=dram_bytes, clock_mhz=clock_mhz)
    bounds = (
        *_bounds(sm, clock_hz),
        Term(
            "DRAM",
            dram_seconds,
            f"{format_bytes(round(dram_bytes))} at {DRAM_SHARE:.0%} of {spec.dram_gb_per_s:g} GB/s",
        ),
    )
    exposed = _exposed(sm, together, most, clock_hz, total, max(bounds, key=_seconds))
    binding = max((*bounds, *exposed), key=_seconds)
    relieved = [binding, *(one for one in exposed if one.name == AWAITED and one.seconds > _WORTH_TELLING * total)]
    return Prediction(
        seconds=total,
        low_s=total * LOW,
        high_s=total * HIGH,
        tflops=work.flops / total / 1e12,
        clock_hz=clock_hz,
        terms=(*bounds, *exposed),
        binding=binding,
        relief=" ".join(relief_of(term, work, spec, blocks_per_sm) for term in dict.fromkeys(relieved)),
        device=spec.name,
        blocks_per_sm=blocks_per_sm,
    )


def predict_seconds(
    work: Work, spec: DeviceSpec, *, blocks_per_sm: int, dram_bytes: float, clock_mhz: float | None = None
) -> float:
    """The time alone, without the terms that explain it: what a choice among many kernels asks."""
    sm = _Sm.of(work, spec)
    sm_seconds = sm.clocks(*sm.blocks(blocks_per_sm)) / _clock_hz(work, spec, clock_mhz)
    return max(sm_seconds, dram_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)) + LAUNCH_SECONDS


def _clock_hz(work: Work, spec: DeviceSpec, clock_mhz: float | None) -> float:
    return 1e6 * (clock_mhz or (spec.tensor_clock_mhz if work.inputs else spec.boost_clock_mhz))


def _seconds(term: Term) -> float:
    return term.seconds


@dataclass(frozen=True, slots=True)
class _Sm:
    """One SM and the blocks it runs. step, rest: what one of them asks."""

    work: Work
    spec: DeviceSpec
    step: Demand
    rest: Demand

    @classmethod
    def of(cls, work: Work, spec: DeviceSpec) -> _Sm:
        return cls(work, spec, demand_of(work.step, work, spec), demand_of(work.rest, work, spec))

    def blocks(self, per_sm: int) -> tuple[int, int]:
        """Of the busiest SM: all of them, and those that run together."""
        most = ceil(self.work.blocks / self.spec.sm_count)
        return most, max(1, min(per_sm, most))

    @property
    def l2_clocks(self) -> float:
        """For the strips of one step."""
        return self.work.strip_bytes / self.spec.l2_bytes_per_clk_per_sm

    @property
    def busy(self) -> float:
        """Clocks of one step of one block, as its warps overlap what it asks."""
        return overlapped(self.step, self.work)

    @property
    def wait(self) -> float:
        """Clocks of one step in which one block waits for memory and barriers."""
        work = self.work
        barriers = work.step.barriers / work.warps * BARRIER_CLOCKS
        strips = min(1.0, work.load_groups) * self.l2_clocks / BURST_SHARE
        return barriers + work.load_groups * self.spec.l2_latency_clk + strips

    @property
    def restart(self) -> float:
        """Clocks of one step from the end of its products to the next ones, where all of the block waits for them."""
        return RESTART_CLOCKS if self.work.products_awaited else 0.0

    def step_clocks(self, together: int, *, restarts: bool = True) -> float:
        """In which each of the blocks on the SM makes one step. restarts: whether they take any time."""
        wait = self.wait + (self.restart if restarts else 0.0)
        blocks = shared_clocks(self.busy, wait, together)
        return max(blocks, together * self.l2_clocks, self.ahead, self.warps_clocks(together))

    @property
    def ahead(self) -> float:
        """The latency of copies that run ahead, for each step by which they do. All SMs ask for new strips at once, so
        these come from DRAM."""
        return self.spec.dram_latency_clk / self.work.steps_ahead if self.work.steps_ahead else 0.0

    def warps_clocks(self, together: int) -> float:
        """Of a step, as the warps of a scheduler cover each other's waits: for fragments, and for copies ahead."""
        work, schedulers = self.work, self.spec.schedulers_per_sm
        if work.inputs:  # the tensor cores go on by themselves
            return 0.0
        wait = (CHAIN_CLOCKS - FFMA_CLOCKS) * work.step.fp32 / work.warps + self.ahead
        return shared_clocks(self.step.fp32 * schedulers / work.warps, wait, ceil(together * work.warps / schedulers))

    def ends_clocks(self, together: int) -> float:
        """Before the first step and after the last one, of blocks that run together."""
        if self.work.ends_overlap:
            return self.rest.accesses  # other warps multiply meanwhile, and share the memory with it
        first = 0.0 if self.work.resident else 2 * self.spec.l2_latency_clk  # the first loads, and the last stores
        return together * overlapped(self.rest, self.work) + first

    def clocks(self, blocks: int, together: int) -> float:
        """For all the blocks of one SM."""
        rounds, left = divmod(blocks, together)
        total = rounds * (self.work.steps * self.step_clocks(together) + self.ends_clocks(together))
        if left:
            total += self.work.steps * self.step_clocks(left) + self.ends_clocks(left)
        return total + (2 * self.spec.l2_latency_clk if self.work.resident else 0.0)


def overlapped(demand: Demand, work: Work) -> float:
    """Clocks of what a block asks, its warps overlapping it.

    Bank conflicts and scattered lines are replayed by the memory pipe and take no issue slot: what they add overlaps as
    well as what other units do.
    """
    if work.warpgroups:
        return max(norm(UNITS_OVERLAP, demand.schedulers, demand.tensor, demand.smooth), demand.accesses)
    issued = norm(OVERLAP, demand.schedulers, demand.smooth)
    replayed = norm(UNITS_OVERLAP, demand.schedulers, demand.accesses)
    return max(norm(UNITS_OVERLAP, issued, demand.tensor), replayed)


def norm(p: float, *values: float) -> float:
    """Between the largest of some times (p is infinity) and their sum (p is 1).

    >>> norm(2, 3, 4)
    5.0
    """
    most = max(values)
    return float(most * sum((value / most) ** p for value in values) ** (1 / p)) if most > 0 else 0.0


def shared_clocks(work: float, wait: float, blocks: int) -> float:
    """Clocks in which each of some blocks makes a step, of which `work` uses what they share and `wait` does not.

    A closed queue with one server, by mean-value analysis (Reiser and Lavenberg, JACM 27, 1980): never less than
    work * blocks, nor than work + wait.

    >>> shared_clocks(100, 0, 2), shared_clocks(100, 50, 1), round(shared_clocks(100, 50, 2))
    (200.0, 150.0, 217)
    """
    queued, each = 0.0, float(work + wait)
    for count in range(1, blocks + 1):
        served = work * (1 + queued)
        each = served + wait
        queued = count * served / each if each else 0.0
    return each


def _bounds(sm: _Sm, clock_hz: float) -> list[Term]:
    """What each unit alone would take, the blocks spread evenly over all SMs."""
    work, spec, step, rest = sm.work, sm.spec, sm.step, sm.rest
    blocks = work.blocks / spec.sm_count

    def seconds(each: float, end: float = 0.0) -> float:
        return blocks * (work.steps * each + end) / clock_hz

    accesses = work.step.accesses
    wavefronts = sum(one.wavefronts for one in accesses)
    lost = wavefronts - sum(one.ideal for one in accesses)
    loads = sum(one.requests for one in accesses) / max(work.step.fp32 + work.step.matrix_instructions, 1)
    what = f"one a clock and scheduler; {loads:.3g} accesses for each arithmetic instruction"
    found = [Term("issue slots", seconds(step.issue, rest.issue), what)]
    if work.step.fp32:
        what = f"FFMA, each {FFMA_CLOCKS:g} clocks, as register banks conflict"
        found.append(Term("FP32 pipe", seconds(step.fp32, rest.fp32), what))
    if step.integer > step.fp32:
        found.append(Term("integer pipe", seconds(step.integer, rest.integer), "addressing and conversions"))
    if step.tensor:
        found.append(Term("tensor cores", seconds(step.tensor, rest.tensor), f"{work.inputs} into {work.sums}"))
    if wavefronts or work.step.operand_bytes or work.step.engine_bytes:
        what = f"{wavefronts:,.0f} wavefronts a step and block, {lost:,.0f} of them bank conflicts"
        if work.step.operand_bytes:
            what = f"{format_bytes(round(work.step.operand_bytes))} a step and block read by wgmma"
        found.append(Term("shared memory", seconds(step.accesses, rest.accesses), what))
    else:
        found.append(Term("L1", seconds(step.accesses, rest.accesses), "a clock for each line that a request touches"))
    strip = format_bytes(round(work.strip_bytes))
    what = f"{strip} a step and block at {spec.l2_bytes_per_clk_per_sm} bytes a clock and SM"
    found.append(Term("L2", seconds(sm.l2_clocks), what))
    return found


def _exposed(sm: _Sm, together: int, most: int, clock_hz: float, total: float, bound: Term) -> tuple[Term, ...]:
    """What comes on top of the largest bound. If that is not of the SMs, it covers all but the launch."""
    work = sm.work
    launch = Term("launch", LAUNCH_SECONDS, "from the kernel before to this one", "exposed")
    even = work.blocks / sm.spec.sm_count
    share = even / clock_hz
    step = sm.step_clocks(together) / together
    covered = sm.step_clocks(together, restarts=False) / together
    steps = work.steps * share
    least = bound.seconds
    busy = max(least, steps * max(sm.busy, sm.l2_clocks))
    waited = max(busy, steps * covered)
    restarted = max(waited, steps * step)
    ended = max(restarted, steps * step + share * sm.ends_clocks(together) / together)
    end = total - LAUNCH_SECONDS
    marks = [min(mark, end) for mark in (least, busy, waited, restarted, ended)] + [end]
    blocks = f"{together} block{'s' if together > 1 else ''} an SM"
    names = (
        ("overlap", "warps do not keep all units busy at once"),
        ("latency", f"waits for memory and barriers that {blocks} cannot cover"),
        (AWAITED, f"from the products of a step to the next, which {blocks} cannot cover either"),
        ("prologue and epilogue", "the first loads, and storing C"),
        (
            "waves and tail",
            f"{work.blocks:,} block{'s' if work.blocks > 1 else ''} over {sm.spec.sm_count} SMs: at most {most}, "
            f"on average {even:.2f}",
        ),
    )
    lengths = (after - before for before, after in pairwise(marks))
    terms = (Term(n, length, what, "exposed") for (n, what), length in zip(names, lengths, strict=True))
    return (*(one for one in terms if work.products_awaited or one.name != AWAITED), launch)
