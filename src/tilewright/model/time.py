"""How long a kernel takes on a GPU, from what one block does: docs/model.md explains it term by term.

A step over k keeps three things of an SM busy: its schedulers and arithmetic pipes, its load/store unit with the
shared memory behind it, and its share of L2. Warps overlap them, though not perfectly; what a block waits for with
nothing to do (global memory, barriers) is covered by the other blocks of the SM, as far as there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.device.spec import DeviceSpec
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.model.relief import relief_of
from tilewright.model.work import Access, Code, Phase, Work

OVERLAP = 2.5
"""How well warps overlap arithmetic with accesses: 1 is not at all, infinity perfectly. Fitted (docs/model.md)."""

UNITS_OVERLAP = 3.0
"""The same for the tensor cores, the copy engine and shared memory, which wgmma and TMA keep busy by themselves. Fitted."""

LOADED_LATENCY = 2.5
"""How much longer a load takes when all SMs load than when one does. Fitted; published curves of latency under load
reach 2 to 3 times the idle latency near the bandwidth of L2."""

BARRIER_CLOCKS = 60.0
"""From the last warp's arrival at a barrier to the first result after it: the barrier, and one load of shared memory."""

CONFLICT_CLOCKS = 0.6
"""What a second read of one register bank costs, of a clock: part of it hides in slots that are free anyway. Fitted."""

MMA_SYNC_SHARE = 0.62
"""What mma.sync reaches of wgmma's rate on sm_90: benchmarks/results/matrix_rate_h200.json."""

DRAM_SHARE = 0.9
"""What a kernel reaches of the nominal bandwidth of DRAM: 4.2 of 4.8 TB/s by a copy on the H200."""

LAUNCH_SECONDS = 3e-6
"""From one kernel's end to the next one's first instruction, in a stream of launches."""

_SECTORS_PER_CLOCK = 4
_ALU_CLOCKS = (
    2.0 * 0.7
)  # two clocks each; about three in ten are moves or uniform instructions, with pipes of their own


@dataclass(frozen=True, slots=True)
class _Step:
    """Clocks that one block makes busy: arithmetic of each scheduler, accesses and units of the SM; and waits.

    issue, math: of the schedulers and of the arithmetic pipe. wait: with nothing to do.
    """

    issue: float
    math: float
    tensor: float
    shared: float
    wait: float
    l2: float
    is_asynchronous: bool

    @property
    def schedulers(self) -> float:
        return max(self.issue, self.math, 0.0 if self.is_asynchronous else self.tensor)

    @property
    def busy(self) -> float:
        if self.is_asynchronous:
            return norm(UNITS_OVERLAP, self.tensor, self.shared, self.schedulers)
        return norm(OVERLAP, self.schedulers, self.shared)


def norm(p: float, *values: float) -> float:
    """Between the largest of some times (p = infinity) and their sum (p = 1).

    >>> norm(2, 3, 4)
    5.0
    """
    most = max(values)
    return most * sum((value / most) ** p for value in values) ** (1 / p) if most > 0 else 0.0


def shared_rate(work: float, wait: float, blocks: int) -> float:
    """Clocks in which each of some blocks makes a step, of which `work` uses what they share and `wait` does not.

    A closed queue of one server: Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks,
    JACM 27 (1980). Never less than work * blocks, never less than work + wait.
    """
    queued, each = 0.0, work + wait
    for count in range(1, blocks + 1):
        served = work * (1 + queued)
        each = served + wait
        queued = count * served / each if each else 0.0
    return each


def predict_time(
    work: Work,
    code: Code,
    spec: DeviceSpec,
    *,
    blocks_per_sm: int,
    dram_bytes: float,
    clock_mhz: float | None = None,
) -> Prediction:
    """The time of a kernel. blocks_per_sm: that run on an SM at a time. dram_bytes: that the grid moves.

    clock_mhz: of the SMs; by default that of the data sheet for the units that the kernel uses.
    """
    clock_hz = 1e6 * (clock_mhz or (spec.tensor_clock_mhz if work.inputs else spec.boost_clock_mhz))
    step = _step(work, code, spec)
    most = ceil(work.blocks / spec.sm_count)
    together = max(1, min(blocks_per_sm, most))
    full, left = divmod(most, together)
    ends = _ends(work, code, spec)
    clocks = full * (work.steps * _together(step, together) + ends * together)
    if left:
        clocks += work.steps * _together(step, left) + ends * left
    steps = work.steps * most
    even = work.blocks / spec.sm_count
    seconds_of = lambda value: value / clock_hz  # noqa: E731
    dram = dram_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)
    total = max(seconds_of(clocks), dram) + LAUNCH_SECONDS
    bounds = tuple(
        Term(name, seconds_of(work.steps * even * value), what) for name, value, what in _bounds(step, work, code, spec)
    )
    bounds = (
        *bounds,
        Term("DRAM", dram, f"{dram_bytes / 1e9:.3g} GB at {DRAM_SHARE:.0%} of {spec.dram_gb_per_s:g} GB/s"),
    )
    exposed = _exposed(step, work, seconds_of, together, most, even, ends, total, bounds)
    binding = max((*bounds, *exposed), key=lambda term: term.seconds)
    return Prediction(
        seconds=total,
        low_s=total * LOW,
        high_s=total * HIGH,
        tflops=work.flops / total / 1e12,
        clock_hz=clock_hz,
        terms=(*bounds, *exposed),
        binding=binding,
        relief=relief_of(binding, work, code, blocks_per_sm),
        device=spec.name,
    )
