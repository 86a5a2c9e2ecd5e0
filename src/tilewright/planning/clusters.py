"""Kernels of wgmma in clusters, whose blocks share what they load: thought of when the kernels without are few."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Columns
from tilewright.planning.cost.promising import tiles_along
from tilewright.problem.gemm import Gemm

_SAME = ("m", "n", "consumers", "ping_pong", "swap_ab", "persistent", "subtile", "staged", "left_in_registers")
"""What kernels that differ in their clusters alone have in common, beside the stages of their rings."""


class _Relatives(NamedTuple):
    """Of a table, the rows of kernels that are alike but for their clusters, one group behind the other, and where the
    group of each row begins and how many it has; the row itself where it is in a cluster."""

    rows: Any
    start: Any
    count: Any


def without_clusters(c: Columns) -> Columns:
    """The kernels of a table that is kept that have a cluster of one block."""
    return c[c.known("alone", lambda kept: np.flatnonzero((kept.cluster_m == 1) & (kept.cluster_n == 1)))]


def in_clusters(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> Columns:
    """Kernels without clusters, and the same in each cluster that a problem fills: of both ways where no tile waits for
    an SM. count: of a batch."""
    assert c.table is not None and c.rows is not None
    relatives = c.table.known("relatives", _relatives)
    counts = relatives.count.take(c.rows)
    ends = counts.cumsum()
    row = np.arange(len(c)).repeat(counts)
    place = relatives.start.take(c.rows).repeat(counts) + np.arange(len(row)) - (ends - counts).repeat(counts)
    found = c.table[relatives.rows.take(place)].with_columns(**{name: getattr(c, name).take(row) for name in c.given})
    rows, columns = tiles_along(gemm.m, found.m), tiles_along(gemm.n, found.n)
    waits = found.tiles * count > spec.sm_count
    kept = (found.cluster_m <= rows) & (found.cluster_n <= columns)
    return found[kept & ~(waits & (found.cluster_m > 1) & (found.cluster_n > 1))]


def _relatives(c: Columns) -> _Relatives:
    """Found once for a table. Kernels whose clusters share the sum over k have no others."""
    key = np.zeros(len(c), dtype=np.int64)
    for name in (*_SAME, "stages", "subtile_stages", "cluster_k"):
        column = getattr(c, name)
        key = key * (int(column.max(initial=0)) + 1) + column
    order = np.lexsort((c.cluster_n, c.cluster_m, key))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    counts = np.diff([*starts, len(order)])
    start, count = (np.empty(len(c), dtype=np.int64) for _ in range(2))
    start[order], count[order] = starts.repeat(counts), counts.repeat(counts)
    clustered = c.cluster_m * c.cluster_n > 1
    place = np.empty(len(c), dtype=np.int64)
    place[order] = np.arange(len(c))
    return _Relatives(order, np.where(clustered, place, start), np.where(clustered, 1, count))
