"""How long kernels of the family wgmma take: a few physical terms whose constants were fitted to measurements.

A block passes through the k tiles of its tile of C. Of each it waits for the slowest of: MMAs, reads of shared memory
by them, arrivals in shared memory, requests to the L2 (a tile that a cluster shares is asked for once), the latency of
memory shared out over the stages of the ring. Then the epilogue. Blocks come in waves. DRAM works beside all this.

The constants come from `benchmarks/fit_choice.py`, which fits them to sweeps of drawn problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import DType
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.wgmma_steps import INSTRUCTION_ROWS, SWIZZLE_ATOM_BYTES, tma_stores
from tilewright.kernels.work import asked_rows, is_misaligned
from tilewright.planning.correction import fit_for, stacked
from tilewright.planning.exchange import exchange_clocks, parts_of
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.units import ceil_div

_INSTRUCTIONS = 4
"""Of a k tile for 64 rows: each takes 32 bytes of k."""

_CLUSTERED_SMS = 120 / 132
"""The share of SMs that clusters of 4 fill: a cluster lies in one GPC. Measured on the H200: a 31st cluster waits.
Clusters of 8 are taken to fill as many."""

_RESCALE_INSTRUCTIONS = 2
"""For an accumulator: a comparison with itself, and a selection."""

_KEPT_IN_L2 = 0.6
"""Share of the L2 up to which matrices that are read again are found there."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What was fitted to sweeps of the H200, by `benchmarks/fit_choice.py`.

    launch: microseconds of a kernel; persistent, split: more of a persistent one, of the sum of parts of split-K.
    dependent, room, crowded, waves: more with dependent launch, of a persistent kernel; of others, where blocks fill
    half of the SMs at most, all, or more than all.
    epilogue: clocks of a tile, and staged, per_thread, swapped for 2 bytes of C of each of these stores; narrow: share
    that subtiles of 8 columns add. hidden: share of an epilogue that other work covers.
    iteration, latency: clocks of a k tile beside its MMAs; from a request to its arrival. mma: clocks of MMAs, by
    nominal ones. arrival, l2: bytes a clock that an SM takes, that it asks the L2 for. boxes: of narrow TMA boxes, the
    power of `boxes_of`. outside: rows outside of a matrix, which TMA fills with zeros, by others. crowd: share that
    blocks of one SM add to each other.
    dram: share of the nominal bandwidth. busy: share of SMs that can ask for all of it. overlap: share of the lesser of
    memory's and the SMs' time that adds to the greater.
    """

    launch: float
    persistent: float
    split: float
    dependent: float
    room: float
    crowded: float
    waves: float
    epilogue: float
    staged: float
    per_thread: float
    swapped: float
    narrow: float
    hidden: float
    iteration: float
    latency: float
    mma: float
    arrival: float
    l2: float
    boxes: float
    outside: float
    crowd: float
    dram: float
    busy: float
    overlap: float


def constants(dtype: DType) -> Constants:
    """Those that are shipped for operands of a format."""
    return Constants(**fit_for("wgmma", dtype).constants)


def _together(c: Any) -> Column:
    """Blocks that share an SM; a table of `wgmma_core` has them as a column."""
    return c.per_sm if "per_sm" in getattr(c, "names", ()) else np.maximum(1, wgmma.blocks_per_sm(c))


def waves_of(c: Any, blocks: Column, spec: DeviceSpec) -> Column:
    """Tiles that the busiest SM computes one after another, of those that it holds at a time."""
    sms = spec.sm_count * np.where((c.cluster_m * c.cluster_n == 4) | (c.cluster_k >= 4), _CLUSTERED_SMS, 1.0)
    return np.maximum(1, np.ceil(blocks / (sms * _together(c)) - 1e-9))


def blocks_of(c: Any, m: Column, n: Column, count: int) -> Column:
    """Blocks, or work items of persistent ones, with those that fill up clusters."""
    rows = ceil_div(ceil_div(m, c.m), c.cluster_m) * c.cluster_m
    columns = ceil_div(ceil_div(n, c.n), c.cluster_n) * c.cluster_n
    return rows * columns * parts_of(c) * count


def boxes_of(rows: Column, gemm: Gemm, name: OperandName) -> Column:
    """Rows of TMA boxes, by those of 128 bytes, that bring a tile: where it runs along m or n in memory, its boxes are
    as wide as the widest swizzle atom that divides it."""
    if gemm.operand(name).contiguous == "k":
        return 1
    row_bytes = rows * gemm.dtype.bytes
    return np.where(row_bytes % 128 == 0, 1, np.where(row_bytes % 64 == 0, 2, 4))


def iteration_clocks(
    c: Any, gemm: Gemm, spec: DeviceSpec, m: Column, n: Column, waves: Column, at: Constants
) -> Column:
    """Clocks of a k tile. TMA fills rows outside of a matrix with zeros more slowly than it copies."""
    outside = np.maximum(0, c.m - m) + np.maximum(0, c.n - n)
    mma, reads = mma_clocks(c, gemm, spec, at), read_bytes(c, gemm)
    a_rows, b_rows = c.m * boxes_of(c.m, gemm, "A") ** at.boxes, c.n * boxes_of(c.n, gemm, "B") ** at.boxes
    stage_bytes = c.pieces * SWIZZLE_ATOM_BYTES
    arriving = (a_rows + b_rows + at.outside * outside) * stage_bytes
    asked = asked_rows(gemm, "A", a_rows, c.cluster_n) + asked_rows(gemm, "B", b_rows, c.cluster_m)
    slowest = np.maximum(np.maximum(mma, reads / spec.shared_bytes_per_clk_per_sm), (at.latency + mma) / c.stages)
    slowest = np.maximum(slowest, np.maximum(arriving / at.arrival, asked * stage_bytes / at.l2))
    alternating = c.ping_pong * (waves > 1)
    return slowest + at.iteration / (1 + alternating) + promotion_clocks(c, gemm)


def mma_clocks(c: Any, gemm: Gemm, spec: DeviceSpec, at: Constants) -> Column:
    """Clocks of the MMAs of a k tile, of all products."""
    rate = spec.tensor.flops_per_clk_per_sm(gemm.multiplied.rate, "f32")
    return len(gemm.products) * 2.0 * c.m * c.n * (SWIZZLE_ATOM_BYTES // gemm.dtype.bytes) / rate * at.mma


def read_bytes(c: Any, gemm: Gemm) -> Column:
    """Bytes of shared memory that the MMAs of a k tile read."""
    rows, columns = np.where(c.swap_ab, c.n, c.m), np.where(c.swap_ab, c.m, c.n)
    instructions = len(gemm.products) * rows / INSTRUCTION_ROWS * _INSTRUCTIONS
    return instructions * (INSTRUCTION_ROWS + columns) * (SWIZZLE_ATOM_BYTES / 4)


def least_clocks(c: Any, gemm: Gemm, spec: DeviceSpec, at: Constants) -> Column:
    """Clocks of a k tile that an SM takes at least for each of its blocks: of MMAs, or of shared memory, which serves
    their reads and what arrives."""
    arriving = c.pieces * (c.m + c.n) * SWIZZLE_ATOM_BYTES
    return np.maximum(
        mma_clocks(c, gemm, spec, at), (read_bytes(c, gemm) + arriving) / spec.shared_bytes_per_clk_per_sm
    )


def promotion_clocks(c: Any, gemm: Gemm) -> Column:
    """Clocks of a k tile in which the accumulators of a warpgroup are read, and not added to: an instruction for each
    to promote it, two where small products of pieces are rescaled. Other warpgroups multiply meanwhile."""
    rescales = sum(product.rescale != 0 for product in gemm.products)
    instructions = wgmma.promotions(c) + _RESCALE_INSTRUCTIONS * rescales
    return instructions * wgmma.accumulators_of(c) / (c.consumers * _together(c))


def epilogue_clocks(c: Any, gemm: Gemm, out_bytes: Column, at: Constants) -> Column:
    """Clocks of a tile's epilogue."""
    staged = wgmma.stages_result(c, gemm) & tma_stores(gemm) & (out_bytes == gemm.out.bytes)
    narrow = 1 + at.narrow * (8 / np.maximum(c.subtile, 8))
    a_result = np.where(staged, at.staged * narrow, np.where(c.swap_ab > 0, at.swapped, at.per_thread))
    return at.epilogue + a_result * c.m * c.n * out_bytes / 2 / c.cluster_k + exchange_clocks(c)


def dram_bytes(c: Any, gemm: Gemm, m: Column, n: Column, k: Column, count: int, spec: DeviceSpec) -> Column:
    """Each matrix once; operands that the L2 does not hold as often as waves of tiles come back to them."""
    size_bytes = gemm.dtype.bytes * c.pieces
    once = (m * k + n * k) * size_bytes
    kept = _KEPT_IN_L2 * spec.l2_bytes
    tiles_m, tiles_n = ceil_div(m, c.m), ceil_div(n, c.n)
    together = np.minimum(spec.sm_count * _together(c), tiles_m * tiles_n)
    high = np.minimum(np.minimum(c.raster_rows, tiles_m), together)
    wide = np.minimum(tiles_n, together / high)
    high = np.maximum(high, together / wide)
    again = tiles_m * tiles_n / together * (high * c.m + wide * c.n) * k * size_bytes
    read = np.where(once > kept, np.maximum(once, np.minimum(again, tiles_n * m * k + tiles_m * n * k)), once)
    written = m * n * gemm.out.bytes * (1 if gemm.beta == 0 else 2)
    return count * (read + written)


def _dependent_us(c: Any, blocks: Column, spec: DeviceSpec, at: Constants) -> Column:
    """What dependent launch adds: where the next kernel's blocks find free SMs they save a start."""
    fill = blocks / (spec.sm_count * _together(c))
    alone = np.where(fill <= 0.5, at.room, np.where(fill <= 1, at.crowded, at.waves))
    return np.where(c.persistent > 0, at.dependent, alone)


def kernel_seconds(
    c: Columns,
    gemm: Gemm,
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    *,
    out_bytes: Column,
    count: int = 1,
    at: Constants | None = None,
) -> Any:
    """Of each configuration, for m, n, k as it finds them, of `count` problems. out_bytes: of an element of C, or of
    the parts of split-K. at: by default what is shipped."""
    at = at or constants(gemm.dtype)
    m, n, k = sizes
    clock_hz = spec.tensor_clock_mhz * 1e6
    blocks = blocks_of(c, m, n, count)
    waves = waves_of(c, blocks, spec)
    steps = ceil_div(ceil_div(k, c.k), parts_of(c))
    together = _together(c)
    crowd = np.where((together > 1) & (blocks > spec.sm_count), together * (1 + at.crowd), 1.0)
    body = steps * iteration_clocks(c, gemm, spec, m, n, waves, at) * crowd
    if gemm.pieces is not None:  # of others, `correction` knows better
        shared = np.where(crowd == 1, 1, together)
        body = np.maximum(body, steps * shared * least_clocks(c, gemm, spec, at))
    epilogue = epilogue_clocks(c, gemm, out_bytes, at)
    hidden = np.where(c.ping_pong > 0, np.minimum(epilogue * at.hidden, body), epilogue * at.hidden * c.persistent)
    clocks = waves * body + epilogue + (waves - 1) * (epilogue - hidden)
    sm_seconds = clocks / clock_hz
    # Few SMs do not ask for all that memory can bring.
    busy = np.minimum(1.0, blocks / (spec.sm_count * at.busy))
    memory = dram_bytes(c, gemm, m, n, k, count, spec) / (at.dram * spec.dram_gb_per_s * 1e9 * np.maximum(busy, 0.05))
    launch = at.launch + at.persistent * c.persistent + at.split * (c.split_k > 1)
    launch = launch + c.dependent_launch * _dependent_us(c, blocks, spec, at)
    return 1e-6 * launch + np.maximum(sm_seconds, memory) + at.overlap * np.minimum(sm_seconds, memory)


def features(
    c: Columns, gemm: Gemm, spec: DeviceSpec, sizes: tuple[Column, Column, Column], seconds: Any, count: int = 1
) -> Any:
    """What the trees of `correction` ask about, (plans, features). seconds: as estimated."""
    m, n, k = sizes
    blocks = blocks_of(c, m, n, count)
    waves = waves_of(c, blocks, spec)
    slots = spec.sm_count * _together(c)
    clocks = iteration_clocks(c, gemm, spec, m, n, waves, constants(gemm.dtype))
    steps = ceil_div(ceil_div(k, c.k), parts_of(c))
    rows, columns = ceil_div(m, c.m), ceil_div(n, c.n)
    element = gemm.dtype.bytes * count
    a_bytes, b_bytes, c_bytes = (
        np.maximum(m * k, 1) * element,
        np.maximum(n * k, 1) * element,
        m * n * gemm.out.bytes * count,
    )
    memory = (a_bytes + b_bytes + c_bytes) / (spec.dram_gb_per_s * 1e9)
    found = (
        *(np.log2(c.m), np.log2(c.n), c.consumers, c.ping_pong, c.swap_ab, c.persistent, c.dependent_launch),
        *(c.cluster_m, c.cluster_n, c.stages, c.stages * (c.m + c.n), c.split_k, c.raster_rows),
        *(c.subtile, c.subtile_stages, gemm.dtype.bytes, gemm.a is Order.COL, gemm.b is Order.ROW),
        *(
            np.log2(blocks / slots),
            blocks / (slots * waves),
            np.log2(waves),
            np.log2(np.maximum(steps, 1)),
            np.log2(clocks),
        ),
        *(np.log2(rows), np.log2(columns), np.minimum(c.raster_rows, rows) / rows, slots),
        *(rows * c.m / m, columns * c.n / n, (c.m / c.cluster_n + c.n / c.cluster_m) / (c.m + c.n), c.m / (c.m + c.n)),
        *(memory / seconds, steps * clocks * waves / (spec.tensor_clock_mhz * 1e6) / seconds, np.log2(seconds)),
        *(
            np.log2(m),
            np.log2(n),
            np.log2(np.maximum(k, 1)),
            np.log2(a_bytes / spec.l2_bytes),
            np.log2(b_bytes / spec.l2_bytes),
        ),
        *(wgmma.stages_result(c, gemm), tma_stores(gemm), gemm.out.bytes),
        *(boxes_of(c.m, gemm, "A"), boxes_of(c.n, gemm, "B")),
        *(is_misaligned(gemm, "A"), is_misaligned(gemm, "B")),
        *(c.cluster_k, exchange_clocks(c) / spec.tensor_clock_mhz / 1e6 / seconds),
        *(promotion_clocks(c, gemm) / clocks, wgmma.promotions(c) > 0, len(gemm.epilogue.operands)),
        sum(one.is_vector and not one.single for one in gemm.epilogue.operands),
    )
    return stacked(found, len(c))
