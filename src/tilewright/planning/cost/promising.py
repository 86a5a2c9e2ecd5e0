"""Which kernels of a table are priced at all: those whose busiest SM has little more work than that of the best. A few
operations on columns, where the terms take many."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Column, Columns
from tilewright.model.time import DRAM_SHARE
from tilewright.planning.cost.block_clocks import blocks_per_sm, busiest_clocks
from tilewright.planning.cost.exchange import filled_sms, shared_out, streams_k
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

_LEAST_WORK = 40
"""Elements of C whose products take as long as the arrival of a row of A or a column of B."""

_WORK_OF_A_BYTE = 1 / 75
"""Elements of C whose products take as long as a byte of memory, with all SMs asking."""

_OTHER_WORK = 80_000
"""Elements of C whose products take as long as start, prologue and epilogue of a block."""

_MOST_WORK = 1.35
"""Times of the least work of the busiest SM, above which kernels are not looked at closely."""


def promising(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, loads_bytes: int, count: int = 1) -> Columns:
    """Kernels, with split-K, whose busiest SM has little more work than that of the best of them. loads_bytes: that
    rows of A and B are multiples of."""
    if not len(c):
        return c
    if kind == "wgmma":
        return _promising_of_wgmma(c, gemm, spec, count)
    split, together = c.split_k, np.maximum(1, blocks_per_sm(kind, c, gemm, spec))
    tiles = tiles_along(gemm.m, c.m) * tiles_along(gemm.n, c.n)
    blocks, steps = shared_out(c, tiles, tiles_along(gemm.k, c.k), spec.sm_count * together, count)
    sms = filled_sms(c, spec) if kind == "simt" else spec.sm_count
    work = steps * busiest_clocks(kind, c, gemm, spec, loads_bytes, np.ceil(blocks / sms))
    streamed = streams_k(c)
    whole = (split == 1) & np.logical_not(streamed)
    clocks_of_a_byte = 1e6 * spec.boost_clock_mhz / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)
    work = np.maximum(work, count * gemm.compulsory_bytes * clocks_of_a_byte)
    if not whole.all():
        part_clocks = count * F32.bytes * gemm.m * gemm.n * clocks_of_a_byte
        work += np.where(whole, 0.0, _START_CLOCKS + np.where(streamed, 0.0, part_clocks * split * c.cluster_k))
    work += _START_CLOCKS
    least = np.where(whole, work.min(where=whole, initial=np.inf), work.min())
    return c[work <= _MOST_CLOCKS * least]


_MOST_CLOCKS = 1.35
"""Times of the least clocks, above which kernels of warps are not priced. With 1.2, 6 of 480 drawn problems choose
another plan, and a choice takes as long."""

_START_CLOCKS = 5000
"""Of a launch, and of the first and the last of a block."""


def _promising_of_wgmma(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int) -> Columns:
    split = c.split_k
    parts = split * c.cluster_k if c.cluster_k.max() > 1 else split
    blocks = c.tiles * parts * count
    # Blocks of a batch whose sums are short begin and end too often, if each has one tile.
    if count > 1:
        (many,) = ((c.persistent > 0) | (blocks <= spec.sm_count)).nonzero()
        if len(many):
            c, blocks, parts, split = c[many], blocks[many], parts[many], split[many]
    whole = split == 1
    steps = tiles_along(ceil_div(gemm.k, int(c.k[0])), parts)
    work = np.ceil(blocks / (spec.sm_count * c.per_sm)) * c.k_tile_work * steps
    work = np.maximum(work, count * gemm.compulsory_bytes * _WORK_OF_A_BYTE) + _OTHER_WORK * (2.0 - whole)
    # Without split-K too: a call may have no workspace, or one order of summation.
    least = np.where(whole, work.min(where=whole, initial=np.inf), work.min())
    return c[work <= _MOST_WORK * least]


def k_tile_work(core: Columns, products: int) -> Column:
    """Work of a k tile of all blocks of an SM, of kernels of wgmma. products: of pieces."""
    return core.per_sm * np.maximum(products * core.m * core.n, 1.0 * core.pieces * _LEAST_WORK * (core.m + core.n))


_TILE_SIZES: Any = np.arange(1, 2 * wgmma.MAX_COLUMNS + 1)


def tiles_along(size: int, tile: Any) -> Any:
    """`ceil_div(size, tile)`: few sizes of tiles are divided by, and looked up."""
    counts: Any = _counts(size)
    return counts.take(tile - 1)


_counts = lru_cache(maxsize=64)(lambda size: ceil_div(size, _TILE_SIZES))  # a choice asks several times
