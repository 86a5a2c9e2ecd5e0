"""Picture: who loads what. The requests for A and B in the first step over k, lane by lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.layout.banks import SECTOR_BYTES, sectors
from tilewright.problem.gemm import OperandName
from tilewright.report.page.watch import Region, Watched, operand_of
from tilewright.simulator.findings import Access, TmaCopy

_MOST_REQUESTS = 48
"""Requests that are kept for a picture; the others are counted."""


def loads(watched: Watched) -> list[dict[str, Any]]:
    """The loads of A and of B, as plain values."""
    return [_operand(watched, operand) for operand in ("A", "B")]


def _operand(watched: Watched, operand: OperandName) -> dict[str, Any]:
    region, gemm = watched.region(operand), watched.gemm
    accesses = watched.accesses(Space.GLOBAL, store=False, buffer=operand)
    requests = [_requests(watched, access, region) for access in accesses]
    boxes = [one for event in watched.events for one in _boxes(watched, event, region)]
    matrix = gemm.operand(operand)
    return {
        "operand": operand,
        "rows": region.rows,
        "columns": region.columns,
        "row": region.row,
        "column": region.column,
        "rowsContiguous": matrix.contiguous == matrix.dims[1],
        "leading": gemm.leading(operand),
        "elementBytes": matrix.dtype.bytes,
        "count": sum(len(one.warps) for one in requests),
        "sectors": sum(int(one.sectors.sum()) for one in requests),
        "fewest": sum(int(one.fewest.sum()) for one in requests),
        "requests": [request for one in requests for request in one.as_dicts()][:_MOST_REQUESTS],
        "boxes": list({(box["row"], box["column"]): box for box in boxes}.values()),
    }


@dataclass(frozen=True)
class _Requests:
    """The requests of one execution of a load. at: places in the region, row by row, (requests, 32); -1: no part."""

    access: Access
    warps: Array
    at: Array
    sectors: Array
    fewest: Array

    def as_dicts(self) -> Iterator[dict[str, Any]]:
        for warp, at, taken, fewest in zip(self.warps, self.at, self.sectors, self.fewest, strict=True):
            yield {
                "warp": int(warp),
                "line": self.access.site.text,
                "width": self.access.width,
                "at": at.tolist(),
                "sectors": int(taken),
                "fewest": int(fewest),
            }


def _requests(watched: Watched, access: Access, region: Region) -> _Requests:
    """Lanes that ask for another step over k, or another tile, take no part."""
    warps, first, lanes = watched.lanes_of(access)
    rows, columns = watched.place(region.operand, first)
    rows, columns = rows - region.row, columns - region.column
    inside = lanes & (rows >= 0) & (rows < region.rows) & (columns >= 0) & (columns < region.columns)
    some = inside.any(axis=1)
    first, inside = first[some], inside[some]
    size = access.buffer.dtype.bytes
    taken = sectors(first * size + access.base_bytes, access.width_bytes, inside) if len(first) else np.zeros(0, int)
    fewest = [_fewest(row[active], access.width_bytes) for row, active in zip(first, inside, strict=True)]
    at = np.where(inside, (rows * region.columns + columns)[some], -1)
    return _Requests(access, warps[some], at, taken, np.array(fewest, int))


def _fewest(first: Array, width_bytes: int) -> int:
    """Sectors that would hold the distinct elements of a request, side by side."""
    return -(-len(np.unique(first)) * width_bytes // SECTOR_BYTES)


def _boxes(watched: Watched, event: object, region: Region) -> list[dict[str, Any]]:
    """Boxes of TMA that lie in the region; those of another block only where they land in ours as well."""
    if not isinstance(event, TmaCopy) or operand_of(event) != region.operand:
        return []
    found, lands_elsewhere = [], getattr(event.site.stmt, "mask", None) is not None
    ours = watched.rows_of(event.warps)
    for places, inside, lane in zip(event.places, event.inside, event.lanes, strict=True):
        own = lane // WARP_THREADS in ours
        if not own and not lands_elsewhere:
            continue
        rows, columns = watched.place(region.operand, places[inside])
        rows, columns = rows - region.row, columns - region.column
        if not len(rows) or rows.min() < 0 or columns.min() < 0:
            continue
        if rows.max() >= region.rows or columns.max() >= region.columns:
            continue
        found.append(
            {
                "warp": int(event.warps.numbers[lane // WARP_THREADS]),
                "own": own,
                "row": int(rows.min()),
                "column": int(columns.min()),
                "rows": int(np.ptp(rows)) + 1,
                "columns": int(np.ptp(columns)) + 1,
                "sectors": event.sectors // event.boxes,
            }
        )
    return found
