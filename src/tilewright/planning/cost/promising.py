"""Which kernels of warps are priced at all: those whose busiest SM has little more work than that of the best. A few
operations on columns, where the terms take many. Of wgmma: `first_cut`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Columns
from tilewright.model.time import DRAM_SHARE
from tilewright.planning.cost.block_clocks import blocks_per_sm, busiest_clocks
from tilewright.planning.cost.exchange import filled_sms, shared_out, streams_k
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

_KERNELS = 384
"""Kernels of warps that are priced. Of 150 drawn problems each the choice is estimated to take as long by 192 as by
all, by 128 0.04 % longer (FMA kernels) and 0.01 % (mma.sync), by 64 0.14 and 0.12 %; 4481 x 891 x 14 in f32 2.2 % by
192."""


def promising(
    kind: str,
    c: Columns,
    ends: Sequence[int],
    gemm: Gemm,
    spec: DeviceSpec,
    loads_bytes: int,
    count: int = 1,
    within: float = inf,
    most: int = _KERNELS,
) -> Any:
    """Places of kernels of warps, with split-K, whose busiest SM has little more work than that of the best of their
    table. ends: of tables, one behind the other. loads_bytes: that rows of A and B are multiples of. within: seconds of
    the best plan of another family; kernels whose k steps alone take as long are left out. most: how many at most,
    beside a few without split-K."""
    bare, work, whole = _clocks_of_warps(kind, c, gemm, spec, loads_bytes, count)
    possible = bare < within * 1e6 * spec.boost_clock_mhz
    if not possible.any():
        return np.zeros(0, dtype=np.int64)
    kept = np.empty(len(c), dtype=bool)
    for start, end in pairwise((0, *ends)):
        mine, alone = work[start:end], whole[start:end]
        # Without split-K too: a call may have no workspace, or one order of summation.
        best = np.where(alone, mine.min(where=alone, initial=np.inf), mine.min())
        kept[start:end] = mine <= _MOST_CLOCKS * best
    (found,) = (kept & possible).nonzero()
    return found if len(found) <= most else found[likeliest(work.take(found), whole.take(found), most)]


def likeliest(told: Any, whole: Any, most: int) -> Any:
    """Places of the least, ascending, and a few of the least that are computed whole, by one block each: a call may
    have no workspace, or one order of summation."""
    (alone,) = whole.nonzero()
    chosen = np.zeros(len(told), dtype=bool)
    chosen[least(told, most)] = True
    chosen[alone.take(least(told.take(alone), _WHOLE))] = True
    return chosen.nonzero()[0]


def least(values: Any, most: int) -> Any:
    """Places of the least of them."""
    return values.argpartition(most)[:most] if len(values) > most else np.arange(len(values))


_WHOLE = 16
"""Kernels without split-K that are kept in any case."""


def _clocks_of_warps(
    kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, loads_bytes: int, count: int
) -> tuple[Any, Any, Any]:
    """Clocks of the busiest SM for its k steps, or of memory; the same with starts and split-K; which kernels have
    none. No corrected estimate of 4,800 problems with a second family was below the first (H200, H100)."""
    split, together = c.split_k, np.maximum(1, blocks_per_sm(kind, c, gemm, spec))
    tiles = tiles_along(gemm.m, c.m) * tiles_along(gemm.n, c.n)
    blocks, steps = shared_out(c, tiles, tiles_along(gemm.k, c.k), spec.sm_count * together, count)
    sms = filled_sms(c, spec) if kind == "simt" else spec.sm_count
    work = steps * busiest_clocks(kind, c, gemm, spec, loads_bytes, np.ceil(blocks / sms))
    streamed = streams_k(c)
    whole = (split == 1) & np.logical_not(streamed)
    clocks_of_a_byte = 1e6 * spec.boost_clock_mhz / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)
    bare = work = np.maximum(work, count * gemm.compulsory_bytes * clocks_of_a_byte)
    if not whole.all():
        part_clocks = count * F32.bytes * gemm.m * gemm.n * clocks_of_a_byte
        work = bare + np.where(whole, 0.0, _START_CLOCKS + np.where(streamed, 0.0, part_clocks * split * c.cluster_k))
    return bare, work + _START_CLOCKS, whole


_MOST_CLOCKS = 1.35
"""Times of the least clocks, above which kernels of warps are not priced. With 1.2, 6 of 480 drawn problems choose
another plan, and a choice takes as long."""

_START_CLOCKS = 5000
"""Of a launch, and of the first and the last of a block."""


_TILE_SIZES: Any = np.maximum(1, np.arange(2 * wgmma.MAX_COLUMNS + 1))


def tiles_along(size: int, tile: Any) -> Any:
    """`ceil_div(size, tile)`: few sizes of tiles are divided by, and looked up."""
    counts: Any = _counts(size)
    return counts.take(tile)


_counts = lru_cache(maxsize=64)(lambda size: ceil_div(size, _TILE_SIZES))  # a choice asks several times
