"""What the network of `correction` is asked about kernels of the family wgmma, beside their estimated times."""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Columns, has_column
from tilewright.kernels.wgmma_steps import tma_stores
from tilewright.kernels.work import is_misaligned, rows_begin_at
from tilewright.planning.cost.early_blocks import filled
from tilewright.planning.cost.wgmma_terms import (
    L2_BYTES_PER_SECOND,
    Timed,
    blocks_together,
    boxes_of,
    constants,
    mma_clocks,
    read_bytes,
    stage_row_bytes,
    with_clocks,
)
from tilewright.problem.gemm import Gemm, Order


def class_features(c: Columns, gemm: Gemm, spec: DeviceSpec) -> tuple[Any, ...]:
    """The first of the features: what no size of a problem changes."""
    return (
        *(np.log2(c.m), np.log2(c.n), c.consumers, c.ping_pong, c.swap_ab, c.persistent, c.cluster_m, c.cluster_n),
        *(c.stages, c.stages * (c.m + c.n), c.subtile, c.subtile_stages, gemm.dtype.bytes),
        *(gemm.a is Order.COL, gemm.b is Order.ROW, spec.sm_count * blocks_together(c, gemm)),
        *((c.m / c.cluster_n + c.n / c.cluster_m) / (c.m + c.n), c.m / (c.m + c.n)),
        *(wgmma.stages_result(c, gemm), tma_stores(gemm), gemm.out.bytes),
        *(boxes_of(c.m, gemm, "A"), boxes_of(c.n, gemm, "B"), is_misaligned(gemm, "A"), is_misaligned(gemm, "B")),
        *(c.cluster_k, wgmma.promotions(c) > 0, log2(spec.dram_gb_per_s)),
        *_of_slowest(c, gemm, spec),
        *_left_of_an_sm(c, gemm, spec),
    )


def _of_slowest(c: Columns, gemm: Gemm, spec: DeviceSpec) -> tuple[Any, ...]:
    """What may bound a k tile, as shares of the slowest: MMAs, their reads of shared memory, requests to the L2,
    arrivals, latency."""
    c, at = with_clocks(c, gemm, spec), constants(gemm.dtype)
    mma = mma_clocks(c, gemm, spec, at)
    clocks = (
        *(mma, read_bytes(c, gemm) / spec.shared_bytes_per_clk_per_sm, c.asked_bytes / at.l2),
        *(c.arriving * stage_row_bytes(gemm) / at.arrival, (at.latency + mma) / c.stages),
    )
    return tuple(one / c.slowest for one in clocks)


def _left_of_an_sm(c: Columns, gemm: Gemm, spec: DeviceSpec) -> tuple[Any, Any]:
    """Beside the blocks that share one, what launches before and behind them find: KiB of shared memory; and warpgroups
    that they do not displace."""
    together = blocks_together(c, gemm)
    held = c.shared_bytes if has_column(c, "shared_bytes") else wgmma.plain_bytes(c, gemm)
    return (spec.shared_bytes_per_sm - together * held) / 1024, together * (c.consumers + 1)


def sized_features(
    c: Columns, gemm: Gemm, spec: DeviceSpec, timed: Timed, seconds: Any, packing: Any, count: int = 1
) -> tuple[Any, ...]:
    """The others. seconds: as estimated. packing: of the launch before."""
    c = with_clocks(c, gemm, spec)
    rows, columns, blocks, waves, clocks = timed.rows, timed.columns, timed.blocks, timed.waves, timed.clocks
    slots, clock_hz = c.slots, spec.tensor_clock_mhz * 1e6
    m, n, k, element = gemm.m, gemm.n, gemm.k, gemm.dtype.bytes * count
    a_bytes, b_bytes = max(m * k, 1) * element, max(n * k, 1) * element
    memory = (a_bytes + b_bytes + m * n * gemm.out.bytes * count) / (spec.dram_gb_per_s * 1e9)
    sizes = np.log2((m, n, max(k, 1), a_bytes / spec.l2_bytes, b_bytes / spec.l2_bytes)).tolist()
    operands = gemm.epilogue.operands
    return (
        *(c.dependent_launch, c.split_k, c.raster_rows, np.log2(blocks / slots), blocks / (slots * waves)),
        *(np.log2(waves), np.log2(np.maximum(timed.steps, 1)), np.log2(clocks), np.log2(rows), np.log2(columns)),
        *(np.minimum(c.raster_rows, rows) / rows, rows * c.m / m, columns * c.n / n),
        *(memory / seconds, timed.steps * clocks * waves / clock_hz / seconds, np.log2(seconds)),
        *sizes,
        *(c.exchange / seconds, c.promoted / clocks),
        *(len(operands), sum(one.is_vector and not one.single for one in operands), log2(count)),
        *(*_asked_of_l2(c, timed, gemm, seconds), log2(rows_begin_at(gemm, "C"))),
        *_beside_other_launches(c, timed, spec, seconds, packing),
        *(np.where(c.split_k > 1, c.part, c.whole) / (seconds * clock_hz), 1e-6 * c.start / seconds),
    )


def _beside_other_launches(c: Columns, timed: Timed, spec: DeviceSpec, seconds: Any, packing: Any) -> tuple[Any, ...]:
    """The launch that packs: whether there is one, its time, beside that of the kernel as well. Of the SMs' room, what
    blocks fill; with dependent launch, how many launches find room together, and how much of one in what is left; SMs
    that get no block."""
    share, left = filled(c, timed.blocks, timed.waves)
    early = c.dependent_launch * (timed.waves <= c.uneven_waves)
    idle = np.maximum(0.0, spec.sm_count - np.ceil(timed.blocks / c.together))
    return (
        *(packing > 0, packing / seconds, 1e6 * packing),
        *(share, early * left, early * np.minimum(np.floor(1 / share + 1e-9), _MOST_LAUNCHES), np.log2(1 + idle)),
    )


_MOST_LAUNCHES = 4
"""That are told apart by how many find room together."""


def _asked_of_l2(c: Columns, timed: Timed, gemm: Gemm, seconds: Any) -> tuple[Any, Any]:
    """Requests to the L2 of the longer operand, which comes from memory, and of both, as shares of what it can give.
    Clusters ask once for what their blocks share; so do two blocks that follow each other, on the two SMs of a TPC: of
    a tile of B where they go down the rows, else of A."""
    alone = c.cluster_m * c.cluster_n * c.cluster_k * c.split_k == 1
    down = np.minimum(c.raster_rows, timed.rows) > 1
    a_rows = c.m / np.where(alone & ~down & (timed.columns > 1), 2, c.cluster_n)
    b_rows = c.n / np.where(alone & down, 2, c.cluster_m)
    share = timed.blocks * timed.steps * stage_row_bytes(gemm) / (L2_BYTES_PER_SECOND * seconds)
    return (b_rows if gemm.n > gemm.m else a_rows) * share, (a_rows + b_rows) * share
