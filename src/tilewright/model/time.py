"""How long a kernel takes on a GPU, from what one block does. docs/model.md explains it term by term.

A step over k keeps several things of an SM busy: its schedulers and arithmetic pipes, its load/store unit with the
shared memory behind it, its share of L2. Warps overlap them, though not perfectly. What a block waits for with nothing
to do (values of global memory, barriers, MMAs) is covered by the other blocks of the SM, as far as there are any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.work import Work
from tilewright.model.demand import WAVEFRONT_CLOCKS
from tilewright.model.power import Energy, sustained_mhz
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.model.relief import relief_of
from tilewright.model.sm import Sm
from tilewright.model.terms import AWAITED, bounds_of, exposed_of
from tilewright.units import format_bytes

DRAM_SHARE = 0.875
"""What a kernel reaches of the nominal bandwidth of DRAM: a copy on the H200 moves 4.2 of 4.8 TB/s."""

LAUNCH_SECONDS = 3e-6
"""From the end of the kernel before to the first instruction of this one."""

EARLY_SECONDS = 1e-6
"""What programmatic dependent launch saves of it (`DependentLaunch`, sm_90 and later). Measured:
H200, 2048^3 in bf16, whose 24 us went from 0.97 to 1.00 of cuBLAS; not told apart by how much room the SMs have."""

_WORTH_TELLING = 0.1
"""Share of the time that restarts take, from which on it is told how to avoid them, even if another term is larger."""


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
    work = work.from_dram_as(dram_bytes)
    sm = Sm.of(work, spec)
    most, together = (int(count) for count in sm.blocks(blocks_per_sm))
    dram_seconds = dram_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)

    def seconds_at(mhz: float) -> float:
        return float(predict_seconds(work, spec, blocks_per_sm=blocks_per_sm, dram_bytes=dram_bytes, clock_mhz=mhz))

    total = seconds_at(clock_hz / 1e6)
    energy = Energy.of(work, spec, dram_bytes)
    kept_mhz = sustained_mhz(energy, spec, clock_hz / 1e6, seconds_at)
    bounds = (
        *bounds_of(sm, clock_hz),
        Term(
            "DRAM",
            dram_seconds,
            f"{format_bytes(round(dram_bytes))} at {DRAM_SHARE:.0%} of {spec.dram_gb_per_s:g} GB/s",
        ),
    )
    exposed = exposed_of(sm, together, most, clock_hz, total, LAUNCH_SECONDS, max(bounds, key=_seconds))
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
        power_w=energy.power_w(spec, clock_hz / 1e6, total),
        limit_w=spec.board_power_w,
        sustained_hz=kept_mhz * 1e6,
        sustained_s=seconds_at(kept_mhz),
    )


def predict_seconds(
    work: Work,
    spec: DeviceSpec,
    *,
    blocks_per_sm: Any,
    dram_bytes: Any,
    clock_mhz: float | None = None,
    wavefront_clocks: float = WAVEFRONT_CLOCKS,
) -> Any:
    """The time alone, without the terms that explain it: what a choice among many kernels asks.

    The numbers of `work`, blocks_per_sm and dram_bytes may be NumPy columns with an entry for each kernel.
    """
    sm = Sm.of(work, spec, wavefront_clocks)
    sm_seconds = sm.clocks(*sm.blocks(blocks_per_sm)) / _clock_hz(work, spec, clock_mhz)
    return np.maximum(sm_seconds, dram_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)) + LAUNCH_SECONDS


def _clock_hz(work: Work, spec: DeviceSpec, clock_mhz: float | None) -> float:
    return 1e6 * (clock_mhz or (spec.tensor_clock_mhz if work.inputs else spec.boost_clock_mhz))


def _seconds(term: Term) -> float:
    return term.seconds
