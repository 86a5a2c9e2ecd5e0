"""Everything that the page of one ladder shows, collected: rows, views of the rungs, speeds at several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.device.catalog import H200
from tilewright.device.spec import DeviceSpec
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import FormatOptions, format_name
from tilewright.report.collect import Progress, Target, collect_ladder
from tilewright.report.figures import TIMED_SIZE, Size
from tilewright.report.page.on_gpu import SPEED_SIZES, PiecesRow, begun, caller, on_gpu, pieces_rows
from tilewright.report.page.rungs import RungView, view_of
from tilewright.report.page.speed import ceiling_of, roofs
from tilewright.runtime.cubin_cache import CubinCache


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
    workers: int = 1,
) -> Page:
    """The page of a ladder for one device; nothing is measured.

    Rungs that cannot be built, simulated or compiled keep their place, and say why. workers: as for `caller`.
    """
    tell = progress or (lambda what, done, total: None)
    formats = formats or {}
    spec = target.spec or H200
    with caller(rungs, workers) as call:
        pieces = begun(call, pieces_rows, spec) if _multiplies_f32(rungs, formats) else lambda: ()
        folder = None if cache is None else cache.folder
        longest_first = rungs[::-1]
        begun_of = {rung.label: begun(call, on_gpu, rung, spec, formats, folder) for rung in longest_first}
        rows, _ = collect_ladder(rungs, size, target, formats=formats, cache=cache, progress=tell)
        by_label = {row.rung.label: row for row in rows}
        views = []
        for at, row in enumerate(rows):
            tell(f"drawing {row.rung.name}", at, len(rows))
            views.append(view_of(row, by_label.get(row.rung.builds_on or "")))
        found = {}
        for at, rung in enumerate(longest_first):
            tell(f"trying edits of {rung.name}", at, len(rungs))
            found[rung.label] = begun_of[rung.label]()
        of_pieces = pieces()
    views = [replace(view, outlook=found[view.rung.label].outlook) for view in views]
    data = {
        "ladder": rungs[0].ladder,
        "device": spec.name,
        "sizes": list(SPEED_SIZES),
        "size": TIMED_SIZE[0],
        "roofs": roofs(spec),
        "rungs": [_rung_data(view, found[view.rung.label].speeds, spec) for view in views],
    }
    return Page(rungs[0].ladder, size, spec, tuple(views), data, of_pieces)


def _multiplies_f32(rungs: Sequence[Rung], formats: FormatOptions) -> bool:
    return all(format_name(rung.gemm(*TIMED_SIZE, **formats)) == "f32" for rung in rungs)


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
