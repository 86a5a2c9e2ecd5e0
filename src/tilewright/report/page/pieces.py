"""f32 products by pieces on tensor cores, beside a ladder that multiplies f32: bounds, predictions, and records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from tilewright.bench import records
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.frontend.options import Precision
from tilewright.frontend.predicting import predict_precision
from tilewright.problem.emulation import ALGORITHMS, EMULATIONS, f32_units
from tilewright.runtime.cubin_cache import CubinCache

SIZE = 4096
"""m, n and k, where most records were taken."""

_FILE_PATTERN = "emulation_*.jsonl"


@dataclass(frozen=True, slots=True)
class PiecesRow:
    """One precision. bound: W of |C - AB| <= W u |A||B|. tflops, sustained, low, high, binding: predicted. recorded: on
    the device itself, in a burst, with row-major operands; None where nothing was."""

    precision: str
    bound: int
    tflops: float
    low: float
    high: float
    sustained: float
    binding: str
    recorded: float | None


@cache
def pieces_rows(spec: DeviceSpec) -> tuple[PiecesRow, ...]:
    """Every precision that multiplies pieces; none on devices without wgmma, or where no compiler is installed."""
    if spec.compute_capability[0] != 9:
        return ()
    try:
        return tuple(_row(name, spec) for name in EMULATIONS)
    except TilewrightError:
        return ()


def _row(name: Precision | str, spec: DeviceSpec) -> PiecesRow:
    found, _ = predict_precision(name, SIZE, SIZE, SIZE, spec, cache=CubinCache())  # type: ignore[arg-type]
    bound = ALGORITHMS[name].units(SIZE) if name in ALGORITHMS else f32_units(SIZE)
    rates = found.tflops, found.tflops_low, found.tflops_high, found.sustained_tflops
    return PiecesRow(name, round(bound), *rates, found.binding.name, _recorded(spec).get(name))


@cache
def _recorded(spec: DeviceSpec) -> dict[str, float]:
    """TFLOP/s of each precision, the newest first of several."""
    found: dict[str, float] = {}
    for path in sorted(records.recorded_folder().glob(_FILE_PATTERN)):
        of_device = False
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "device" in row:
                of_device = device(row["device"]) == spec
            elif of_device and (row.get("problem"), row.get("orders")) == (f"{SIZE}x{SIZE}x{SIZE}", "NN"):
                found[row["precision"]] = row["tflops"]
    return found
