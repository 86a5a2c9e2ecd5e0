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
from tilewright.problem.gemm import Gemm
from tilewright.winners.plan_config import PlanConfig

_ROWS = (16, 8, 4, 2)
"""Of tiles, or of clusters of them, the most first."""

_KEPT_IN_L2 = 0.6
"""Share of the L2 that is found there when it is asked for again: it has two parts, and some lines in both."""


def rows_together(c: Any, gemm: Gemm, spec: DeviceSpec) -> Column:
    """Of persistent kernels of wgmma, or one: rows of tiles, or of clusters, that are visited together."""
    asked = np.stack([_asked_bytes(c, rows, gemm, spec) for rows in _ROWS])
    return np.array(_ROWS)[np.argmin(asked, axis=0)]


def _asked_bytes(c: Any, rows: int, gemm: Gemm, spec: DeviceSpec) -> Column:
    """Of A and B that memory is asked for, with strips of so many rows."""
    kept, m, n, element = (
        _KEPT_IN_L2 * spec.l2_bytes,
        float(gemm.m),
        float(gemm.n) * c.accumulators,
        _row_bytes(c, gemm),
    )
    high, wide, at_once = _at_once(c, rows, gemm, spec)
    strips = np.where(at_once <= kept, n * m / high + m, np.inf)
    anew = m * n / (high * wide) * (high + wide)
    return np.where((m + n) * element <= kept, m + n, np.minimum(strips, anew)) * element


def _row_bytes(c: Any, gemm: Gemm) -> Any:
    return gemm.k * gemm.dtype.bytes * c.pieces


def _at_once(c: Any, rows: int, gemm: Gemm, spec: DeviceSpec) -> tuple[Column, Column, Column]:
    """Of blocks that run at once, with strips of so many rows: rows of C, columns, bytes that they read and write."""
    m, n = float(gemm.m), float(gemm.n) * c.accumulators
    together = np.minimum(1.0 * spec.sm_count * c.m * c.n * c.accumulators, m * n)
    high = np.maximum(np.minimum(1.0 * rows * c.cluster_m * c.m, m), together / n)
    wide = together / high
    return high, wide, (high + wide) * _row_bytes(c, gemm) + together / c.accumulators * gemm.out.bytes


def visited(config: PlanConfig, gemm: Gemm, spec: DeviceSpec) -> PlanConfig:
    """A plan that visits rows of tiles together, with as many as are best, and lets B leave the L2 first where it
    passes by a strip of A that should stay."""
    kernel = config.kernel
    if not isinstance(kernel, WgmmaConfig) or kernel.raster_rows < 2:
        return config
    kernel = replace(kernel, raster_rows=int(rows_together(kernel, gemm, spec)))
    if kernel.evict_first in ("", "C") and _passes_by(kernel, gemm, spec):
        kernel = replace(kernel, evict_first="B" if not kernel.evict_first else "BC")
    return replace(config, kernel=kernel)


_LEAST_OF_L2, _MOST_OF_L2 = 0.5, 0.9
"""Shares of the L2 that a strip of A and what passes by it fill, between which B leaves first. With less room is left
for both, and a block that comes late finds B gone; with more A does not stay either. H200, e4m3, 130 pairs of kernels
of 26 problems: 0.4 % slower below, 1.0 % faster between (-1.4 to 6.8), the same above."""


def _passes_by(kernel: WgmmaConfig, gemm: Gemm, spec: DeviceSpec) -> bool:
    """Whether B, more than the L2 keeps, passes by a strip of A that the L2 just holds."""
    at_once = float(_at_once(kernel, kernel.raster_rows, gemm, spec)[2])
    b_bytes = gemm.n * kernel.accumulators * _row_bytes(kernel, gemm)
    between = _LEAST_OF_L2 * spec.l2_bytes <= at_once <= _MOST_OF_L2 * spec.l2_bytes
    return between and b_bytes > _KEPT_IN_L2 * spec.l2_bytes
