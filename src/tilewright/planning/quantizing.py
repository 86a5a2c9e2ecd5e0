"""What makes FP8 codes and scales: one launch, or three where all numbers share a scale."""

from __future__ import annotations

from dataclasses import replace

from tilewright.dtypes import F32
from tilewright.kernels.quantization import QuantizationConfig
from tilewright.planning.kernels import Kernels
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.problem.quantization import Quantization
from tilewright.units import round_up

_ALIGNED = 256
"""Of what lies in a workspace, in bytes."""


def quantizing_plan(kernels: Kernels, problem: Quantization, aligned_bytes: int) -> Plan:
    """Codes at `Place.OUT` and scales at `Place.SCALE_A`. aligned_bytes: what the address and the lines of the source
    are multiples of."""

    def step(one: Quantization, aligned: int, *places: tuple[int, int]) -> Step:
        config = QuantizationConfig.of(one, aligned, overlapped=kernels.overlaps)
        return Step(kernels.auxiliary(config, one), places, Role.QUANTIZE, one.title)

    source, codes, scales = (Place.A, 0), (Place.OUT, 0), (Place.SCALE_A, 0)
    if problem.groups != "all":
        return Plan((step(problem, aligned_bytes, source, codes, scales),), 0, problem.title)
    lines, largest = (Place.SCRATCH, 0), (Place.SCRATCH, round_up(problem.lines * F32.bytes, _ALIGNED))
    of_lines = replace(problem, groups="largest")
    of_all = Quantization(1, problem.lines, problem.lines, problem.lines, F32, problem.out, "largest")
    steps = (
        step(of_lines, aligned_bytes, source, lines),
        step(of_all, _ALIGNED, lines, largest),
        step(problem, aligned_bytes, source, codes, scales, largest),
    )
    return Plan(steps, largest[1] + _ALIGNED, problem.title)
