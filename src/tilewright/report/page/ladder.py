"""Everything that the page of one ladder shows, collected: rows, views of the rungs, speeds at several sizes.

f32 products by pieces on tensor cores, beside a ladder that multiplies f32: bounds, predictions, and records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.bench import records
from tilewright.device.catalog import H200, device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.frontend.options import Precision
from tilewright.frontend.predicting import predict_precision
from tilewright.ladders.rung import Rung
from tilewright.problem.emulation import ALGORITHMS, EMULATIONS, f32_units
from tilewright.problem.formats import FormatOptions
from tilewright.report.collect import Progress, Target, collect_ladder
from tilewright.report.figures import Size
from tilewright.report.outlook import Outlook, outlook
from tilewright.report.page.rungs import RungView, view_of
from tilewright.report.page.speed import ceiling_of, roofs, speed_at
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


SPEED_SIZES = (1024, 2048, 4096, 8192)
"""Where speeds are shown; the second largest is where most records were taken."""


@dataclass(frozen=True)
class Page:
    """One ladder. size: at which rungs were verified and counted. data: plain values for the scripts. pieces: what
    multiplies the same operands by pieces, of f32."""

    ladder: str
    size: Size
    spec: DeviceSpec
    views: tuple[RungView, ...]
    data: dict[str, Any]
    pieces: tuple[PiecesRow, ...] = ()


def collect_page(
    rungs: Sequence[Rung],
    size: Size,
    target: Target,
    *,
    formats: FormatOptions | None = None,
    cache: CubinCache | None = None,
    progress: Progress | None = None,
) -> Page:
    """The page of a ladder for one device; nothing is measured.

    Rungs that cannot be built, simulated or compiled keep their place, and say why.
    """
    tell = progress or (lambda what, done, total: None)
    formats = formats or {}
    spec = target.spec or H200
    rows, _ = collect_ladder(rungs, size, target, formats=formats, cache=cache, progress=tell)
    by_label = {row.rung.label: row for row in rows}
    with ThreadPoolExecutor(1) as beside:
        jobs = [beside.submit(_speeds, rung, spec, formats, cache) for rung in rungs]
        try:
            views = []
            for at, row in enumerate(rows):
                tell(f"drawing {row.rung.name}", at, len(rows))
                view = view_of(row, by_label.get(row.rung.builds_on or ""))
                tell(f"trying edits of {row.rung.name}", at, len(rows))
                views.append(replace(view, outlook=_outlook(row.rung, spec, formats)))
            speeds = []
            for at, job in enumerate(jobs):
                tell(f"predicting {rungs[at].name}", at, len(jobs))
                speeds.append(job.result())
        except BaseException:  # Ctrl-C need not wait for them
            beside.shutdown(wait=False, cancel_futures=True)
            raise
    data = {
        "ladder": rungs[0].ladder,
        "device": spec.name,
        "sizes": list(SPEED_SIZES),
        "size": 4096,
        "roofs": roofs(spec),
        "rungs": [_rung_data(view, speed, spec) for view, speed in zip(views, speeds, strict=True)],
    }
    pieces = pieces_rows(spec) if all(view.format == "f32" for view in views) else ()
    return Page(rungs[0].ladder, size, spec, tuple(views), data, pieces)


def _outlook(rung: Rung, spec: DeviceSpec, formats: FormatOptions) -> Outlook | None:
    try:
        return outlook(rung, spec, formats)
    except TilewrightError:  # the row says why
        return None


def _speeds(rung: Rung, spec: DeviceSpec, formats: FormatOptions, cache: CubinCache | None) -> dict[str, Any]:
    """What is known of a rung, by size."""
    return {str(n): speed_at(rung, (n, n, n), spec, formats, cache) for n in SPEED_SIZES}


def _rung_data(view: RungView, speeds: dict[str, Any], spec: DeviceSpec) -> dict[str, Any]:
    rung = view.rung
    return {
        "name": rung.name,
        "label": rung.label,
        "slug": rung.slug,
        "title": rung.title,
        "idea": rung.idea,
        "format": view.format,
        "ceiling": ceiling_of(view.row.built, spec),
        "speeds": speeds,
        "pictures": view.pictures,
    }
