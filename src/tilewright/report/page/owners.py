"""Picture: the tile hierarchy. Which thread computes which element of C, and so which of A and B it needs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.report.page.watch import Watched, operand_of
from tilewright.simulator.findings import Access, TmaCopy
from tilewright.toolchain import grid_of

_MATRIX_ROWS, _LANES_OF_A_ROW = 8, 4
"""stmatrix: four lanes hold a row of 8 elements. Source: PTX ISA 9.0, stmatrix."""

NOBODY = -1


def hierarchy(watched: Watched) -> dict[str, Any]:
    """The levels of tiles of a kernel, as plain values."""
    built, tile = watched.built, watched.built.kernel.tile
    gemm, tensorized = built.gemm, built.program.tensorized
    owners = owners_of(watched)
    return {
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "tile": [tile["m"], tile["n"], tile["k"]],
        "grid": list(grid_of(built.kernel, gemm)),
        "threads": built.kernel.threads_per_block,
        "owners": _packed(owners),
        "instruction": "" if tensorized is None else tensorized.instruction.name,
        "isOpaque": tensorized is not None and tensorized.instruction.c.opaque,
    }


def owners_of(watched: Watched) -> Array:
    """The thread that stores each element of the block's tile of C, (m, n); NOBODY where none was seen to.

    Results that leave through shared memory belong to the thread that put them there.
    """
    region = watched.region("C")
    owners = np.full((region.rows, region.columns), NOBODY, np.int32)
    in_shared: dict[str, Array] = {}
    for event in watched.events:
        if isinstance(event, Access) and event.store and watched.is_ours(event.warps):
            if event.space is Space.SHARED and event.buffer.name.startswith("C"):
                buffer = event.buffer
                kept = in_shared.setdefault(buffer.name, np.full(buffer.elements, NOBODY, np.int32))
                for threads, elements in _stored(watched, event):
                    kept[elements] = threads
            elif event.buffer.name == "C":
                for threads, elements in _stored(watched, event):
                    _claim(watched, owners, threads, elements)
        elif isinstance(event, TmaCopy) and operand_of(event) == "C" and watched.is_ours(event.warps):
            kept = next(iter(in_shared.values()))
            inside = event.inside
            _claim(watched, owners, kept[event.shared[inside] % len(kept)], event.places[inside])
    return owners


def _stored(watched: Watched, access: Access) -> list[tuple[Array, Array]]:
    """(threads, elements) of a store, warp by warp."""
    found = []
    for warp, first, lanes in zip(*watched.lanes_of(access), strict=True):
        if access.matrices:
            found.append(_stored_matrices(warp, first, access))
            continue
        threads = warp * WARP_THREADS + np.flatnonzero(lanes)
        elements = first[lanes][:, None] + np.arange(access.width)
        found.append((np.repeat(threads, access.width), elements.reshape(-1)))
    return found


def _stored_matrices(warp: int, first: Array, access: Access) -> tuple[Array, Array]:
    """Lane 8j + i names row i of matrix j, whose elements come from the lanes 4i to 4i + 3, in turn."""
    row = np.arange(_MATRIX_ROWS * access.matrices)
    width = 16 // access.buffer.dtype.bytes
    lanes = row[:, None] % _MATRIX_ROWS * _LANES_OF_A_ROW + np.arange(width) * _LANES_OF_A_ROW // width
    if getattr(access.site.stmt, "transposed", False):
        lanes = np.arange(width) * _LANES_OF_A_ROW + (row[:, None] % _MATRIX_ROWS) * _LANES_OF_A_ROW // width
    return (warp * WARP_THREADS + lanes).reshape(-1), (first[row][:, None] + np.arange(width)).reshape(-1)


def _claim(watched: Watched, owners: Array, threads: Array, offsets: Array) -> None:
    region = watched.region("C")
    rows, columns = watched.place("C", offsets)
    rows, columns = rows - region.row, columns - region.column
    here = (rows >= 0) & (rows < region.rows) & (columns >= 0) & (columns < region.columns)
    owners[rows[here], columns[here]] = threads[here]


def _packed(owners: Array) -> dict[str, Any]:
    """The owners as a sum of a number of the row and one of the column, where they are one; else every number."""
    rows, columns = owners[:, 0] - owners[0, 0], owners[0]
    if (owners == rows[:, None] + columns).all():
        return {"rows": rows.tolist(), "columns": columns.tolist()}
    return {"all": base64.b64encode(owners.astype("<i2").tobytes()).decode()}
