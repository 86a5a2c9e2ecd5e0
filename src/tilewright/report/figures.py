"""Figures: TFLOP/s with the word that says where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tilewright.bench import records
from tilewright.bench.records import Record, recorded
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError, UnknownName
from tilewright.files import json_lines
from tilewright.ladders.rung import Rung
from tilewright.prediction import predict_rung
from tilewright.problem.formats import FormatOptions, format_name
from tilewright.runtime.cubin_cache import CubinCache

Size = tuple[int, int, int]
FigureKind = Literal["measured", "recorded", "predicted"]

_Asked = tuple[str, Size, str]
"""The rung, the size and the formats of a figure of a suite."""

TIMED_SIZE: Size = (4096, 4096, 4096)
"""Where figures are measured, and where the published ones are."""


@dataclass(frozen=True, slots=True)
class Figure:
    """TFLOP/s of one rung. share_of_cublas: of the same run, 0 .. . verified: the timed results were right."""

    kind: FigureKind
    tflops: float
    share_of_cublas: float | None
    size: Size
    device: str
    date: str
    command: str
    verified: bool = True


def figure_of(record: Record, kind: FigureKind) -> Figure:
    """The figure in a record."""
    origin = record.origin
    return Figure(
        kind=kind,
        tflops=record.tflops,
        share_of_cublas=record.share_of_cublas,
        size=(record.m, record.n, record.k),
        device=origin.device,
        date=origin.date,
        command=origin.command,
        verified=bool(record.extra.get("verified", True)),
    )


def recorded_figure(rung: Rung, size: Size, dtype: str = "", spec: DeviceSpec | None = None) -> Figure | None:
    """The newest shipped record of a right result of a rung at a size, on any GPU or on one; None if there is none.

    dtype: the name of the formats; those of the rung if not said.
    """
    wanted = (rung.name, *size, dtype or format_name(rung.gemm(*size)))
    found = [r for r in recorded(rung.ladder) if (r.rung, r.m, r.n, r.k, r.dtype) == wanted]
    found = [record for record in found if record.extra.get("verified", True)]
    if spec is not None:
        found = [record for record in found if _is_of(record.origin.device, spec)]
    return figure_of(found[-1], "recorded") if found else None


def predicted_figure(
    rung: Rung, size: Size, spec: DeviceSpec, formats: FormatOptions, cache: CubinCache | None = None
) -> Figure | None:
    """What the time model says of a rung at a size; None where it cannot run there."""
    try:
        predicted = predict_rung(rung, rung.gemm(*size, **formats), spec, cache=cache)
    except TilewrightError:
        return None
    return Figure("predicted", predicted.tflops, None, size, spec.name, "", "")


def suite_figure(rung: Rung, size: Size, dtype: str, spec: DeviceSpec) -> Figure | None:
    """The newest figure of a rung in a suite, which benchmarks/against_cublas.py recorded beside cuBLAS in bursts, as
    the ladders are timed; None if there is none."""
    found = [figure for asked, figure in _figures(records.recorded_folder()) if asked == (rung.name, size, dtype)]
    return max((one for one in found if _is_of(one.device, spec)), key=lambda one: one.date, default=None)


@cache
def _figures(folder: Path) -> tuple[tuple[_Asked, Figure], ...]:
    """Every figure of a suite that ships with the package; other files there hold other things."""
    found: list[tuple[_Asked, Figure]] = []
    for path in sorted(folder.glob("*.jsonl")):
        first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        if '"candidate"' in first and '"burst"' in first:
            found += json_lines(path, _figure, "a record of a suite", _HINT)
    return tuple(found)


_HINT = "another version may have written it: take the line out, or measure again."


def _figure(data: dict[str, Any]) -> tuple[_Asked, Figure]:
    m, n, k = data["shape"]
    figure = Figure(
        kind="recorded",
        tflops=float(data["burst"]["tflops"]),
        share_of_cublas=data["burst"]["share_of_cublas"],
        size=(m, n, k),
        device=str(data["device"]),
        date=str(data["date"]),
        command=str(data["command"]),
    )
    return (str(data["candidate"]), (m, n, k), str(data["dtype"])), figure


def _is_of(name: str, spec: DeviceSpec) -> bool:
    """Whether a record names a GPU."""
    try:
        return device(name) == spec
    except UnknownName:
        return False
