"""Figures from suites of shapes, which were recorded beside cuBLAS by benchmarks/against_cublas.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tilewright.bench import records
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError, UnknownName
from tilewright.files import parse_json
from tilewright.ladders.rung import Rung
from tilewright.report.figures import Figure, Size

Asked = tuple[str, Size, str]
"""The rung, the size and the formats of a figure."""


def suite_figure(rung: Rung, size: Size, dtype: str, spec: DeviceSpec) -> Figure | None:
    """The newest figure of a rung in a suite, taken in short bursts as the ladders are; None if there is none."""
    found = [figure for asked, figure in _figures(records.recorded_folder()) if asked == (rung.name, size, dtype)]
    return max((one for one in found if _is_of(one.device, spec)), key=lambda one: one.date, default=None)


@cache
def _figures(folder: Path) -> tuple[tuple[Asked, Figure], ...]:
    """Every figure of a suite that ships with the package; other files there hold other things."""
    found: list[tuple[Asked, Figure]] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines and '"candidate"' in lines[0] and '"burst"' in lines[0]:
            found += [_figure(path, number, line) for number, line in enumerate(lines, 1)]
    return tuple(found)


def _figure(path: Path, number: int, line: str) -> tuple[Asked, Figure]:
    """Raises TilewrightError where another version wrote the line, or it is damaged."""
    try:
        data = parse_json(line)
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
    except (ValueError, KeyError, TypeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise TilewrightError(
            f"Line {number} of {path.name} is not a record of a suite: {what}.",
            hint="another version may have written it: take the line out, or measure again.",
        ) from None


def _is_of(name: str, spec: DeviceSpec) -> bool:
    try:
        return device(name) == spec
    except UnknownName:
        return False
