"""How many rows of tiles are visited together, column by column: those with which memory is asked for least.

Blocks that run at once take their tiles of C from some rows of tiles, the strip, and as many columns as that leaves.
All go through k at the same pace, so what the strip and these columns have of A and B is read once while it is in the
L2. Where the L2 holds that until the next columns are reached, the strip of A is read once and B once for each strip;
else both are read anew, which a square costs least. H200, e4m3, 8192^3, 128 x 192 in ping-pong, clusters of two along
m: strips of 2048 rows take 707 us, of 4096 729, of 8192 764 (record 0065).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Column
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.kernels.wgmma_steps import tma_stores
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div
from tilewright.winners.plan_config import PlanConfig

_ROWS: Any = np.array((16, 8, 4, 2))
"""Of tiles, or of clusters of them, the most first."""

_KEPT_IN_L2 = 0.5
"""Share of the L2 that is found there when it is asked for again: it has two parts, and some lines in both."""

_KEPT_STRIP = 0.36
"""Share of the L2 that a strip of A may take to stay there, where what is read beside it leaves first: of the H200's 63
MB one of 21 stays, one of 25 does not."""

_WORTH = 0.9
"""Of what memory is asked for, with strips that stay so, up to which B leaves first."""

_SQUARE = 2200
"""Rows of C up to which a strip is low: a square wave of an H200's blocks has some 2048."""

_MANY = 3
"""Consumers whose blocks in clusters fall behind each other."""


def rows_together(c: Any, gemm: Gemm, spec: DeviceSpec) -> Column:
    """Of persistent kernels of wgmma, or one: rows of tiles, or of clusters, that are visited together."""
    rows = _ROWS.reshape(-1, *np.ones_like(np.shape(c.m)))
    return _ROWS[np.argmin(_asked_bytes(c, rows, gemm, spec)[0], axis=0)]


def _asked_bytes(c: Any, rows: Column, gemm: Gemm, spec: DeviceSpec) -> tuple[Column, Column]:
    """Of A and B that memory is asked for, with strips of so many rows; and where B leaves the L2 first, so that a
    strip of A alone must fit."""
    m, n, element = float(gemm.m), float(gemm.n) * c.accumulators, gemm.k * gemm.dtype.bytes * c.pieces
    kept = _KEPT_IN_L2 * spec.l2_bytes
    together = np.minimum(1.0 * spec.sm_count * c.m * c.n * c.accumulators, m * n)
    high = np.maximum(np.minimum(1.0 * rows * c.cluster_m * c.m, m), together / n)
    wide = together / high
    at_once = (high + wide) * element + together / c.accumulators * gemm.out.bytes
    anew, strips = m * n / together * (high + wide), np.minimum(n * m / high + m, m * n / together * (high + wide))
    plain = np.where((m + n) * element <= kept, m + n, np.where(at_once <= kept, strips, anew))
    streamed = np.where(high * element <= _KEPT_STRIP * spec.l2_bytes, strips, np.inf)
    return plain * element, streamed * element


def first_out(c: Any, first: Any, gemm: Gemm, spec: DeviceSpec) -> Any:
    """What leaves the L2 first of kernels, or of one, that visit so many rows of tiles together. first: what does
    anyway. H200, bf16, k = 4096, pairs of kernels in bursts and sustained: ten with a tile for all consumers take 0.992
    and 0.987 of the time, eight in ping-pong 1.002 and 0.989; two at 5120 1.000 and 0.982; at 2560, where both operands
    stay anyway, 1.004 and 1.007; at 6144, where a strip has 25 MB, 1.01 to 1.02 in bursts. Where two products of one A
    are computed at once, so that blocks stream two matrices, k = 4096: four without clusters 0.992 to 0.994, fifteen in
    clusters 1.003 to 1.028.

    What TMA stores leaves with B, so that it does not push out the strip of A either. 4096 x 14336 x 4096: memory is
    asked for 428 MB instead of 649; 16 pairs of kernels of fresh problems, k from 3136, half of them with halves of
    lines: 0.997 of the time, 0.991 to 1.001 (record 0097).

    Not of three consumers in clusters, which fall behind each other: 17 fresh problems by the best such kernel take
    0.987 of the time without, 0.959 to 1.007 (record 0102)."""
    plain, streamed = _asked_bytes(c, c.raster_rows, gemm, spec)
    streams = (c.raster_rows > 1) & (streamed <= _WORTH * plain) & ((first == "") | (first == "C"))
    streams &= (c.cluster_m * c.cluster_n == 1) | ((c.accumulators == 1) & (c.consumers < _MANY))
    return np.where(streams, _with_b(c, first, gemm), first)


def _with_b(c: Any, first: Any, gemm: Gemm) -> Any:
    """B, what leaves with it anyway, and what TMA stores."""
    return np.where(tma_stores(gemm) & (np.asarray(c.subtile) > 0), "BC", np.char.add("B", first))


def _twice_as_high(kernel: WgmmaConfig, gemm: Gemm, spec: DeviceSpec) -> bool:
    """Whether strips of twice as many rows of tiles stay in the L2 as well if B leaves first, which does not stay by
    itself: B is read half as often. H200, bf16 and f16, the chosen kernels of 15 fresh problems, most of k = 2048 and
    2560: 0.994 of the time, 0.987 to 1.000; of six looked at, of which all of A is one strip then, 0.984. e4m3 1.004
    (8; record 0102)."""
    high, row = kernel.raster_rows * kernel.cluster_m * kernel.m, gemm.k * gemm.dtype.bytes
    most = _KEPT_STRIP * spec.l2_bytes
    is_plain = kernel.persistent and kernel.accumulators == 1 and kernel.pieces == 1 and kernel.consumers < _MANY
    is_low = high <= _SQUARE and 1.5 * high <= gemm.m
    stays = min(2 * high, gemm.m) * row <= most < gemm.n * row
    return is_plain and is_low and stays and gemm.dtype.bytes == 2 and kernel.evict_first in ("", "C", "B", "BC")


def goes_back(c: Any, gemm: Gemm, spec: DeviceSpec) -> Any:
    """Whether persistent blocks begin each tile in k where the one before has ended: where a strip of A does not stay
    in the L2, what was read of it last is asked for first. H200, 8192^3 bf16: memory is asked for 944 MB instead of
    1074; 22 fresh problems by their chosen kernels 0.995 of the time, 0.988 to 1.001 (record 0097)."""
    element = gemm.k * gemm.dtype.bytes * c.pieces
    strip = np.minimum(1.0 * c.raster_rows * c.cluster_m * c.m, gemm.m) * element
    both = (gemm.m + gemm.n * c.accumulators) * element
    again = (c.persistent > 0) & (c.raster_rows > 1) & (both > _KEPT_IN_L2 * spec.l2_bytes)
    return again & (strip > _KEPT_STRIP * spec.l2_bytes) & (gemm.block_scales is None)


def visited(
    config: PlanConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1, *, fixed_order: bool = False
) -> PlanConfig:
    """A plan that visits rows of tiles together, with as many as are best, and B first out of the L2 where A then stays
    from one column to the next (record 0069), or back and forth where it does not (record 0097). Where each persistent
    block has a tile at most, all of them run at once: it is a block a tile then, in the order that `_down_columns`
    tells. count: of such problems. fixed_order: whether sums must be in the order of k."""
    kernel = config.kernel
    if not isinstance(kernel, WgmmaConfig) or kernel.raster_rows < 2:
        return config
    if kernel.persistent and not kernel.ping_pong and count * _blocks(kernel, gemm) <= spec.sm_count:
        kernel = replace(kernel, persistent=False)
        if not _down_columns(kernel, gemm):
            return replace(config, kernel=replace(kernel, raster_rows=1))
    kernel = replace(kernel, raster_rows=int(rows_together(kernel, gemm, spec)))
    first = first_out(kernel, np.array(kernel.evict_first), gemm, spec)
    if _twice_as_high(kernel, gemm, spec):
        kernel = replace(kernel, raster_rows=2 * kernel.raster_rows)
        first = _with_b(kernel, kernel.evict_first.replace("B", ""), gemm)
    back = not fixed_order and bool(goes_back(kernel, gemm, spec))
    return replace(config, kernel=replace(kernel, evict_first=first.item(), serpentine=back))


def _down_columns(kernel: WgmmaConfig, gemm: Gemm) -> bool:
    """Whether blocks that all run at once go down the columns of tiles: two that follow each other, on the two SMs of a
    TPC, ask for one tile of B then, the longer operand, where no cluster shares it. H200, bf16, f16, tf32, pairs of
    kernels that differ in this alone: 0.959 of the time row by row takes (25 of 16 problems), 0.989 in clusters along n
    (30); 1.020 in clusters along m (29), 1.020 where A is longer (8), 1.013 with one row of tiles (14; record 0095)."""
    rows, columns = ceil_div(gemm.m, kernel.m), ceil_div(gemm.n, kernel.n)
    return kernel.cluster_m == 1 and 1 < rows <= columns


def _blocks(kernel: WgmmaConfig, gemm: Gemm) -> int:
    """Blocks that have a tile of a problem, of whole clusters."""
    rows, columns = ceil_div(gemm.m, kernel.m * kernel.cluster_m), ceil_div(gemm.n, kernel.n * kernel.cluster_n)
    return rows * columns * kernel.cluster_m * kernel.cluster_n
