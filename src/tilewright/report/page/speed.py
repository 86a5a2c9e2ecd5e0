"""How fast a rung is at several sizes: recorded, predicted, and where it stands under the roofs of the device.

Picture: the order of the blocks. Which tiles of C run at the same time, and what of A and B they share in L2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.kernels.work import Phase, Work
from tilewright.ladders.rung import Rung
from tilewright.layout.banks import SECTOR_BYTES, WAVEFRONT_BYTES
from tilewright.model.l2 import tiles_in_order
from tilewright.model.prediction import Prediction, Term
from tilewright.model.time import DRAM_SHARE
from tilewright.prediction import predict
from tilewright.prediction.counting import work_of
from tilewright.problem.formats import FormatOptions, format_name
from tilewright.report.figures import Figure, Size, recorded_figure, suite_figure
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import Build, build, grid_of
from tilewright.units import ceil_div


def block_order(built: Build, spec: DeviceSpec, blocks_per_sm: int) -> dict[str, Any] | None:
    """The tiles of C in the order in which they start, and how many of them run together: a wave.

    None where the kernel does not say which tile a block computes.
    """
    gemm, tile = built.gemm, built.kernel.tile
    tiles = tiles_in_order(built.program, built.kernel, grid_of(built.kernel, gemm))
    if not tiles or not blocks_per_sm:
        return None
    wave = min(spec.sm_count * blocks_per_sm, len(tiles))
    columns = ceil_div(gemm.n, tile["n"])
    a, b, _ = gemm.operands
    return {
        "rows": ceil_div(gemm.m, tile["m"]),
        "columns": columns,
        "blocks": len(tiles),
        "wave": wave,
        "runs": _runs([row * columns + column for row, column in tiles]),
        "aBytes": tile["m"] * gemm.k * a.dtype.bytes,
        "bBytes": tile["n"] * gemm.k * b.dtype.bytes,
        "l2Bytes": spec.l2_bytes,
    }


def _runs(numbers: Sequence[int]) -> list[int]:
    """Numbers as (first, step, count) of runs with equal steps, one after the other.

    >>> _runs([0, 1, 2, 3, 8, 6, 4])
    [0, 1, 4, 8, -2, 3]
    """
    runs, at = [], 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        runs += [numbers[at], step, end - at]
        at = end
    return runs


def speed_at(
    rung: Rung, size: Size, spec: DeviceSpec, formats: FormatOptions, cache: CubinCache | None
) -> dict[str, Any]:
    """What is known of a rung at one size, as plain values; what is missing is None, and `problem` says why."""
    gemm = rung.gemm(*size, **formats)
    own = format_name(gemm)
    figure = recorded_figure(rung, size, own, spec) or suite_figure(rung, size, own, spec)
    found: dict[str, Any] = {"recorded": figure and _recorded(figure), "predicted": None, "bytes": None, "order": None}
    try:
        built = build(gemm, rung.on(spec))
        work = work_of(built)
        prediction = predict(built, spec, cache=cache, work=work)
    except TilewrightError as error:
        return {**found, "problem": str(error)}
    return {
        **found,
        "predicted": _predicted(prediction),
        "bytes": _bytes(work, prediction, spec),
        "flops": gemm.flops,
        "order": block_order(built, spec, prediction.blocks_per_sm),
        "problem": "",
    }


def _recorded(figure: Figure) -> dict[str, Any]:
    share = figure.share_of_cublas
    return {**asdict(figure), "cublas": figure.tflops / share if share else None}


def _predicted(prediction: Prediction) -> dict[str, Any]:
    return {
        "tflops": prediction.tflops,
        "low": prediction.tflops_low,
        "high": prediction.tflops_high,
        "ms": prediction.seconds * 1e3,
        "clock_mhz": prediction.clock_hz / 1e6,
        "binding": prediction.binding.name,
        "relief": prediction.relief,
        "bounds": _terms(prediction.bounds),
        "stacked": _terms(prediction.stacked),
    }


def _terms(terms: Iterable[Term]) -> list[dict[str, Any]]:
    return [{"name": term.name, "ms": term.seconds * 1e3, "what": term.what, "kind": term.kind} for term in terms]


def _bytes(work: Work, prediction: Prediction, spec: DeviceSpec) -> dict[str, float]:
    """Bytes that cross each border of memory, of the whole grid: counted, but for DRAM, which the model estimates."""
    dram = next(term for term in prediction.terms if term.name == "DRAM")
    phases = ((work.step, work.steps), (work.rest, 1.0))
    return {
        "shared": work.blocks * sum(times * _shared_bytes(phase) for phase, times in phases),
        "l2": work.blocks * sum(times * _l2_bytes(phase) for phase, times in phases),
        "dram": dram.seconds * DRAM_SHARE * spec.dram_gb_per_s * 1e9,
    }


def _shared_bytes(phase: Phase) -> float:
    """What the data pipe of shared memory is busy for: whole wavefronts, conflicts included."""
    waves = sum(access.wavefronts for access in phase.accesses if access.space == "shared")
    return float(waves * WAVEFRONT_BYTES + phase.operand_bytes + phase.tma_bytes)


def _l2_bytes(phase: Phase) -> float:
    """Whole sectors, as if L1 kept nothing."""
    sectors = sum(access.sectors for access in phase.accesses if access.space == "global")
    return float(sectors * SECTOR_BYTES + phase.tma_bytes)


def ceiling_of(built: Build, spec: DeviceSpec) -> dict[str, Any]:
    """The arithmetic peak that the kernel works under: of the tensor cores where it uses them, else of FFMA."""
    tensorized = built.program.tensorized
    if tensorized is None:
        return {"name": "FFMA peak", "tflops": spec.peak_fp32_tflops}
    instruction = tensorized.instruction
    inputs, sums = instruction.product, str(instruction.accumulate)
    peak = spec.peak_tensor_tflops(inputs.rate, sums)
    return {"name": f"tensor-core peak, {inputs} into {sums}", "tflops": peak}


def roofs(spec: DeviceSpec) -> list[dict[str, Any]]:
    """The bandwidths of the memory levels of a device, 10^9 bytes per second, at the boost clock."""
    l2 = spec.sm_count * spec.l2_bytes_per_clk_per_sm * spec.boost_clock_mhz * 1e-3
    return [
        {"level": "shared", "name": "shared memory", "gb_per_s": spec.peak_shared_gb_per_s},
        {"level": "l2", "name": "L2", "gb_per_s": l2},
        {"level": "dram", "name": "DRAM", "gb_per_s": spec.dram_gb_per_s},
    ]
