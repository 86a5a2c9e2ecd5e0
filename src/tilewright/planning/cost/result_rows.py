"""What memory moves more where rows of C begin or end inside sectors: each part of a sector is written on its own, and
costs more than its bytes unless the rest of it follows at once."""

from __future__ import annotations

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.wgmma_steps import tma_stores
from tilewright.kernels.work import is_misaligned
from tilewright.layout.banks import SECTOR_BYTES
from tilewright.problem.gemm import Gemm, Order

_PARTED_BYTES = 192
"""For a row of C where two tiles meet inside a sector, which TMA stores a part of from each. H100, bf16, 2048 x 11008 x
512: tiles of 128 x 168 take 48.8 us, of 128 x 176 37.6 (benchmarks/choice_sweep.py)."""

_CUT_BYTES, _LARGE_CUT = 96, 1.4
"""For a row of a box of TMA, where every other row of C begins inside a sector, and times of it where the L2 does not
hold C (record 0069)."""

_APART_BYTES, _OWN_PIECES = 250, (8, 16)
"""For what is stored together of a row that TMA cannot store: a row of an epilogue subtile; of threads that store their
own accumulators so many elements, of tiles as they are and under swap-AB. H200, 5824 x 6075 x 17: rows of 256, 128 and
64 elements of f16 take 41, 47 and 63 us; of f32 of 256, 64 and 32 58, 68 to 80 and 80 to 118. The bytes are fitted to
461 products with such rows (record 0109)."""


def bytes_where_tiles_meet(c: Columns, gemm: Gemm) -> Column:
    """For each row of C, of kernels of wgmma whose tiles meet inside sectors."""
    return _PARTED_BYTES * (
        (c.n * gemm.out.bytes % SECTOR_BYTES != 0) & (not is_misaligned(gemm, "C")) & (c.subtile > 0)
    )


def bytes_of_an_element(c: Columns, gemm: Gemm) -> Column:
    """For an element of C, of kernels of wgmma, where rows of C begin inside sectors."""
    if not is_misaligned(gemm, "C"):
        return np.zeros(len(c))
    if tma_stores(gemm):
        return _CUT_BYTES / np.where(c.subtile > 0, c.subtile, 64)
    along_rows = (c.swap_ab > 0) == (gemm.c is Order.ROW)
    own = np.where(along_rows, _OWN_PIECES[1], _OWN_PIECES[0])
    return _APART_BYTES / np.where(wgmma.stages_result(c, gemm), np.maximum(c.subtile, 1), own)


def times_where_large(gemm: Gemm, spec: DeviceSpec, count: int) -> float:
    """Times of `bytes_of_an_element` for so many problems."""
    large = tma_stores(gemm) and count * gemm.m * gemm.n * gemm.out.bytes > spec.l2_bytes
    return _LARGE_CUT if large else 1.0
