"""Everything that the page of one ladder shows, collected: rows, views of the rungs, speeds at several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tilewright.device.catalog import H200
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import FormatOptions
from tilewright.report.collect import Progress, Target, collect_ladder
from tilewright.report.figures import Size
from tilewright.report.outlook import Outlook, outlook
from tilewright.report.page.pieces import PiecesRow, pieces_rows
from tilewright.report.page.rungs import RungView, view_of
from tilewright.report.page.speed import ceiling_of, roofs, speed_at
from tilewright.runtime.cubin_cache import CubinCache

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
