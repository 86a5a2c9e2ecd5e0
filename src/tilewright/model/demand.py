"""Clocks: what each unit of an SM would need for a phase of one block, if it had nothing to wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.work import Access, Phase, Work

SHARED_BYTES_PER_CLOCK = 128
"""Of the shared memory of an SM, read by wgmma and written by TMA: 32 banks of 4."""

WAVEFRONT_CLOCKS = 1.08
"""Of the load/store unit where it is the bound: 32 warps that only read and write shared memory take 1.06 to 1.11
clocks for a wavefront, by instruction, and 1.08 on average (benchmarks/results/shared_memory_h200.json, `rates`)."""

MMA_SYNC_SHARE = 0.62
"""What mma.sync reaches of the tensor cores' rate on sm_90, which only wgmma reaches: 617 of 989 TFLOP/s in f16 on an
H200, measured (benchmarks/results/matrix_rate_h200.json)."""

FFMA_CLOCKS = 1.15
"""Of a scheduler that issues an FFMA each clock at best: two of its three operands may lie in one register bank.
Fitted, and taken where no machine code tells (`WarpStep.ffma`): that of 8 x 8 thread tiles says 1.05 to 1.4."""

ADDED_PER_COPY = 1.5
"""Instructions that compute addresses and guards, for each access that moves a tile. Fitted; in machine code 1 to 4."""

TF32_ROUNDING = 1.5
"""Instructions in which machine code rounds a value to tf32: it adds half a unit, and asks of two values together
whether one is NaN. 96 of them for 64 values in ampere/6, which has none where its operands are truncated."""

_SECTORS_PER_CLOCK = 4  # that the tag stage of L1 resolves; NVIDIA developer forum, thread 312884
_LANE_BYTES_PER_CLOCK = 4  # that L1 returns to each lane of a warp
_SCATTERED_LINES = 8  # a request over more lines than this is an uncoalesced one


@dataclass(frozen=True, slots=True)
class Demand:
    """Clocks of one block. issue: of a scheduler, one warp instruction a clock. fp32, integer: of the pipes it feeds.

    tensor: of the tensor cores. accesses: of the load/store unit and shared memory; smooth: the part that would be left
    without bank conflicts and uncoalesced accesses.
    """

    issue: Any = 0.0
    fp32: Any = 0.0
    integer: Any = 0.0
    tensor: Any = 0.0
    accesses: Any = 0.0
    smooth: Any = 0.0

    @property
    def schedulers(self) -> Any:
        """The busiest of what a scheduler feeds instruction by instruction."""
        return np.maximum(np.maximum(self.issue, self.fp32), self.integer)


def ffma_clocks(work: Work, spec: DeviceSpec) -> float:
    """Of a scheduler, from one FFMA to the next: register banks do not matter where it has two clocks for each."""
    return max(float(spec.ffma_issue_interval_clk), _by_banks(work))


def _by_banks(work: Work) -> float:
    return (work.read.ffma if work.read is not None else 0.0) or FFMA_CLOCKS


def demand_of(phase: Phase, work: Work, spec: DeviceSpec, wavefront_clocks: float = WAVEFRONT_CLOCKS) -> Demand:
    """What a phase of one block asks of an SM."""
    # Where an FFMA has two clocks, its operands come in time.
    ffma = _by_banks(work) if spec.ffma_issue_interval_clk == 1 else 1.0
    issued = sum(one.requests for one in phase.accesses if not one.is_far_side)
    added = ADDED_PER_COPY * sum(one.requests for one in phase.accesses if _is_copying(one))
    units = (phase.operand_bytes + phase.tma_bytes) / SHARED_BYTES_PER_CLOCK
    rounding = (TF32_ROUNDING - 1) * phase.conversions if work.inputs == "tf32" else 0.0
    rate = tensor_rate(work, spec)
    schedulers = spec.schedulers_per_sm
    return Demand(
        issue=(phase.fp32 * ffma + phase.matrix_instructions + issued + added + rounding + phase.other) / schedulers,
        fp32=phase.fp32 * ffma_clocks(work, spec) / schedulers,
        integer=phase.conversions * spec.alu_issue_interval_clk / schedulers,
        tensor=phase.matrix_flops / rate if rate else 0.0,
        accesses=units + sum(access_clocks(one, spec, wavefront_clocks) for one in phase.accesses),
        smooth=units + sum(access_clocks(one, spec, smooth=True) for one in phase.accesses),
    )


def tensor_rate(work: Work, spec: DeviceSpec) -> float:
    """Operations per clock and SM of the tensor cores, in the formats of the kernel; 0 where it does not use them."""
    rate = spec.tensor.flops_per_clk_per_sm(work.inputs, work.sums) if work.inputs else 0
    only_wgmma_is_full = spec.compute_capability[0] == 9
    return rate * (MMA_SYNC_SHARE if only_wgmma_is_full and not work.warpgroups else 1.0)


def access_clocks(
    access: Access, spec: DeviceSpec, wavefront_clocks: float = WAVEFRONT_CLOCKS, *, smooth: bool = False
) -> Any:
    """Clocks of an SM's load/store unit: wavefront_clocks for each wavefront of shared memory.

    Of global memory one for each line (or as many as were counted for lines and banks), each four sectors and each 128
    bytes returned, whichever is most. smooth: as if
    nothing conflicted and no request were scattered, a clock a wavefront: what that overlaps is fitted so.
    """
    least = 0.0 if access.is_far_side else access.requests * spec.lsu_issue_interval_clk
    if access.space == "shared":
        return np.maximum(access.ideal if smooth else wavefront_clocks * access.wavefronts, least)
    spread = np.maximum(access.passes or access.lines, access.sectors / _SECTORS_PER_CLOCK)
    if smooth:
        spread = np.where(access.lines > _SCATTERED_LINES * access.requests, access.requests, spread)
    return np.maximum(np.maximum(spread, access.requests * access.width_bytes / _LANE_BYTES_PER_CLOCK), least)


def _is_copying(access: Access) -> bool:
    """Accesses of global memory, and stores: they stand outside the innermost loop, each with an address to compute."""
    return access.space == "global" or access.kind == "store"
