"""Board power: what a kernel draws at a clock of the SMs, and the clock that it keeps within a limit.

An operation takes an energy, and the voltage, which rises with the clock, makes the energy of what the SMs do rise in
proportion to the clock: so it does on the H200 from 1.29 to 1.87 GHz. The energies are fitted to records of power of
the H200 at its limit (benchmarks/energies.py). On other architectures those of instructions and of L2 are scaled
(`DeviceSpec.energy_scale`); of their tensor cores no source tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.kernels.work import Phase, Work

MMA_PJ = 0.85
"""Of a FLOP of tensor cores with operands of bf16, at the boost clock. Shared memory that wgmma reads is in it."""

FORMAT_SHARES = {"f16": 1.1, "bf16": 1.0, "tf32": 2.0, "f8": 0.5, "i8": 0.5}
"""Of that energy. f16 from the same records; the others as the rates of tensor cores are."""

INSTRUCTION_PJ = 18.7
"""Of a thread's instruction, at the boost clock: its fetch, registers, arithmetic, and the access if it is one."""

L2_PJ = 23.4
"""Of a byte that an SM loads from L2, at the boost clock: its way, and its store to shared memory."""

DRAM_PJ = 20.9
"""Of a byte of DRAM, at any clock of the SMs. Published for HBM2: 31 (O'Connor et al., MICRO 2017)."""

IDLE_SHARE = 1 / 7
"""Of the board's power, drawn whatever runs: 100 of 700 W of the H200. Fitted."""

_LEAST_SHARE = 0.2
"""Of the clock: no limit brings it lower."""

_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Events:
    """What takes energy in a launch. instructions: of threads; of an MMA its fetch and its registers are one."""

    flops: float
    instructions: float
    l2_bytes: float
    dram_bytes: float

    @classmethod
    def of(cls, work: Work, dram_bytes: float) -> Events:
        flops = _total(work, lambda phase: phase.matrix_flops)
        l2_bytes = work.blocks * work.steps * work.strip_bytes
        return cls(flops, WARP_THREADS * _total(work, _instructions), float(l2_bytes), float(dram_bytes))


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of a launch. core: of the SMs and L2 at the boost clock; dram: at any clock."""

    core: float
    dram: float

    @classmethod
    def of(cls, work: Work, spec: DeviceSpec, dram_bytes: float) -> Energy:
        return cls.of_events(Events.of(work, dram_bytes), spec, work.inputs)

    @classmethod
    def of_events(cls, one: Events, spec: DeviceSpec, inputs: str = "") -> Energy:
        """inputs: the format that tensor cores multiply, if they do."""
        mma = MMA_PJ * FORMAT_SHARES.get(inputs, 1.0) * one.flops
        others = INSTRUCTION_PJ * one.instructions + L2_PJ * one.l2_bytes
        return cls((mma + spec.energy_scale * others) * 1e-12, one.dram_bytes * DRAM_PJ * 1e-12)

    def power_w(self, spec: DeviceSpec, clock_mhz: float, seconds: float) -> float:
        """Of the board, while the kernel runs again and again in so many seconds each."""
        core = self.core * clock_mhz / spec.boost_clock_mhz
        return spec.board_power_w * IDLE_SHARE + (core + self.dram) / seconds


def sustained_mhz(energy: Energy, spec: DeviceSpec, clock_mhz: float, seconds_at: Callable[[float], float]) -> float:
    """The highest clock up to `clock_mhz` at which the board draws no more than its limit. seconds_at: of a launch at a
    clock."""

    def fits(mhz: float) -> bool:
        return energy.power_w(spec, mhz, seconds_at(mhz)) <= spec.board_power_w

    if fits(clock_mhz):
        return clock_mhz
    low, high = _LEAST_SHARE * clock_mhz, clock_mhz
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _total(work: Work, count: Callable[[Phase], Any]) -> float:
    return float(work.blocks * (work.steps * count(work.step) + count(work.rest)))


def _instructions(phase: Phase) -> Any:
    """Of warps."""
    accesses = sum(one.requests for one in phase.accesses if not one.is_far_side)
    return phase.fp32 + phase.matrix_instructions + phase.conversions + phase.other + accesses
