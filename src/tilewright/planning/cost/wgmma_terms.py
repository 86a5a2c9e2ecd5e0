"""How long kernels of the family wgmma take: a few physical terms whose constants were fitted to measurements.

A block passes through the k tiles of its tile of C. Of each it waits for the slowest of: MMAs, reads of shared memory
by them, arrivals in shared memory, requests to the L2 (a tile that a cluster shares is asked for once), the latency of
memory shared out over the stages of the ring. Then the epilogue. Blocks come in waves. DRAM works beside all this.

The constants come from `benchmarks/fit_choice.py`, which fits them to sweeps of drawn problems.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, DType
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Column, Columns, has_column
from tilewright.kernels.tensor_rate import tensor_rate
from tilewright.kernels.wgmma_scales import columns_of, fragments_of, promotes_in_turn, rows_of, sharing
from tilewright.kernels.wgmma_steps import (
    INSTRUCTION_ROWS,
    SWIZZLE_ATOM_BYTES,
    reads_orders,
    stages_c,
    stores_rows,
    tma_stores,
)
from tilewright.kernels.work import asked_rows, is_misaligned
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.correction import fit_for
from tilewright.planning.cost.early_blocks import uneven
from tilewright.planning.cost.epilogue_terms import beside_clocks, function_clocks, matrices_read, partials
from tilewright.planning.cost.exchange import exchange_clocks, parts_of, streams_k
from tilewright.planning.cost.result_rows import bytes_of_an_element, bytes_where_tiles_meet, times_where_large
from tilewright.planning.cost.short_rows import line_seconds
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.units import ceil_div

_INSTRUCTIONS = 4
"""Of a k tile for 64 rows: each takes 32 bytes of k."""

_FRAGMENT_LOADS = 8
"""Loads by a thread of 64 rows of a k tile, two neighbours each."""

_LOAD_CLOCKS = 40
"""From a load of shared memory to the MMAs that read its value. Assumed, not fitted: no sweep has such kernels yet."""

CLUSTERED_SMS = 120 / 132
"""The share of SMs that clusters of 4 fill, and of 8, it is assumed: each lies in one GPC. H200: a 31st of 4 waits."""

_RESCALE_INSTRUCTIONS = 2
"""For an accumulator: a comparison with itself, and a selection."""

_SCALED, _COPIED, _LOADED = 0.1, 58.0, 16.0
"""Clocks of a k tile, for each warpgroup that multiplies: for an accumulator of a thread that few scales multiply, for
the warp that copies scales, and where TMA brings them. Measured on an H100 at 8192^3: 128 x 128, 128 x 192, 256 x 128
and with three consumers 192 x 128 take 15, 19, 25 and 36 more with scales that are constant than with scales of
tensors, and 111, 129, 112 and 176 more with copies; by TMA 0.3 of that (benchmarks/results/block_scales_h100.json)."""

_SCALED_IN_TURN = 0.25
"""Of the clocks of a promotion with few scales, where a warpgroup promotes its fragments in turn. With constant scales
256 x 128 takes 0.97 and 0.92 of the time of 128 x 192 for 8192^3 and 4096^3 on an H200 (the same record)."""

_SCALED_EACH, _SCALED_APART = 0.3, 1.3
"""The same where each column has a scale of its own, for each warpgroup that multiplies; and more for all together."""

_PROMOTING, _IN_STEP = 150, 110.0
"""Where both operands have scales of 1 x 128: clocks of the promotion of a fragment beyond those of its columns, and
what a k tile takes longer where MMAs of other fragments, two clocks a column, do not hide it: warpgroups fall into
step and promote at once. H200, 2048^3 and 4096^3: 24 such kernels take 1.06 of the estimate without, 16 others 0.97."""

_KEPT_IN_L2 = 0.6
"""Share of the L2 up to which matrices that are read again are found there."""

_LOADED_LATENCY_SECONDS = 1.8e-6
"""From a request to its arrival where memory has all that it can do. Measured on the H200 of products with prepared
weights by bf16x6: 112 blocks with two stages of 54 KB read 3.3 to 3.4 TB/s, those with deeper rings up to 4.2."""

L2_BYTES_PER_SECOND = 6.5e12
"""That the L2 gives to all SMs, beside memory: of products that memory bounds, bytes asked for beyond took so long.
H100, prepared weights by pieces, 8 to 64 rows (docs/decisions/0051-launches-beside-prepared-weights.md)."""

_REPEATED_BYTES_PER_SECOND = 11.5e12
"""That the L2 gives to all SMs, of tiles that several of them ask for at about the same time. Of 18 products in e4m3 on
an H100 the choice took 5.5 % more than the best of 22 plans without this, and 3.1 % with it."""

_ROW_BYTES_PER_CLOCK = 128 / 3
"""That warps bring to C in a clock, by whole rows: 128 bytes from shared memory, then 64."""

_SLOWED = 0.15
"""Of the clocks of MMAs, what an epilogue beside them adds at most."""

_ASKING_SMS, _IDLE_SMS = 0.8, 0.4
"""The share of SMs that ask for all that memory can bring, and how much longer it takes where hardly one does. Of the
same products those by 64 blocks took 2 to 29 % more than those by 128, and those by 112 of larger tiles no more."""

_READ_OVERLAP, _MEETING_SECONDS = 0.1, 0.8e-6
"""`Constants.overlap` where memory bounds a product of pieces; and what blocks that share a sum take to meet."""


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


@cache
def constants(dtype: DType) -> Constants:
    """Those that are shipped for operands of a format."""
    return Constants(**fit_for("wgmma", dtype).constants)


def blocks_together(c: Any, gemm: Gemm) -> Column:
    """Blocks that share an SM; a table of `wgmma_core` has them as a column."""
    return c.per_sm if has_column(c, "per_sm") else np.maximum(1, wgmma.blocks_per_sm(c, gemm))


def boxes_of(rows: Column, gemm: Gemm, name: OperandName) -> Column:
    """Rows of TMA boxes, by those of 128 bytes, that bring a tile: where it runs along m or n in memory, its boxes are
    as wide as the widest swizzle atom that divides it."""
    if gemm.operand(name).contiguous == "k":
        return 1
    return boxes_across(rows * gemm.dtype.bytes)


def boxes_across(row_bytes: Column) -> Column:
    """Of a tile whose rows along m or n in memory have so many bytes, by those of 128 bytes."""
    return np.where(row_bytes % 128 == 0, 1, np.where(row_bytes % 64 == 0, 2, 4))


def pieces_of(gemm: Gemm) -> int:
    """Of which an operand consists."""
    return 1 if gemm.pieces is None else gemm.pieces.count


def stage_row_bytes(gemm: Gemm) -> int:
    """Of a row of A or a column of B in a stage, of all of its pieces."""
    return pieces_of(gemm) * SWIZZLE_ATOM_BYTES


def mma_clocks(c: Any, gemm: Gemm, spec: DeviceSpec, at: Constants) -> Column:
    """Clocks of the MMAs of a k tile, of all products."""
    rate = tensor_rate(gemm, spec)
    return len(gemm.products) * 2.0 * c.m * c.n * (SWIZZLE_ATOM_BYTES // gemm.dtype.bytes) / rate * at.mma


def read_bytes(c: Any, gemm: Gemm) -> Column:
    """Bytes of shared memory that the MMAs of a k tile read."""
    rows, columns = np.where(c.swap_ab, c.n, c.m), np.where(c.swap_ab, c.m, c.n)
    instructions = len(gemm.products) * rows / INSTRUCTION_ROWS * _INSTRUCTIONS
    return instructions * (INSTRUCTION_ROWS + columns) * (SWIZZLE_ATOM_BYTES / 4)


def fragment_clocks(c: Any) -> Column:
    """Clocks of a k tile in which a warpgroup reads an operand through registers, half a tile at a time: what a lane
    asks for takes a turn of its scheduler each, and a latency. MMAs of the other half are under way meanwhile."""
    return c.left_in_registers * (rows_of(c) // INSTRUCTION_ROWS * _FRAGMENT_LOADS + 2 * _LOAD_CLOCKS)


def least_clocks(c: Any, gemm: Gemm, spec: DeviceSpec, at: Constants) -> Column:
    """Clocks of a k tile that an SM takes at least for each of its blocks: of MMAs, or of shared memory, which serves
    their reads and what arrives."""
    arriving = c.pieces * (c.m + c.n) * SWIZZLE_ATOM_BYTES
    return np.maximum(
        mma_clocks(c, gemm, spec, at), (read_bytes(c, gemm) + arriving) / spec.shared_bytes_per_clk_per_sm
    )


def promotion_clocks(c: Any, gemm: Gemm) -> Column:
    """Clocks of a k tile in which the accumulators of a warpgroup are read, and not added to: an instruction for each
    to promote it, two where small products of pieces are rescaled. Other warpgroups multiply meanwhile. Scales of
    blocks: `scaling_clocks`."""
    rescales = sum(product.rescale != 0 for product in gemm.products)
    instructions = wgmma.promotions(c) + _RESCALE_INSTRUCTIONS * rescales
    exposed = _in_turn(c, gemm) / (c.consumers * blocks_together(c, gemm))
    return instructions * wgmma.accumulators_of(c) * exposed + scaling_clocks(c, gemm)


def _in_turn(c: Any, gemm: Gemm) -> Column:
    """The share of a promotion with few scales of blocks that other warpgroups' MMAs do not hide."""
    scales = gemm.block_scales
    if scales is None or min(scales.a, scales.b) == max(scales.a, scales.b) == 1:
        return 1.0
    return np.where(promotes_in_turn(c) & (fragments_of(c) > 1), _SCALED_IN_TURN, 1.0)


def scaling_clocks(c: Any, gemm: Gemm) -> Column:
    """Clocks of a k tile that scales of blocks add to a promotion: of accumulators, whose multiply-adds read a register
    more while MMAs use the registers as well, and of a scale for each where columns have their own; of the warp that
    copies them, or their loads, however large the tile is."""
    scales = gemm.block_scales
    if scales is None:
        return 0.0
    own = np.where(c.swap_ab, scales.a, scales.b) == 1
    of_own = (_SCALED_EACH * c.consumers + _SCALED_APART) * sharing(c)
    accumulator = np.where(own, of_own, _SCALED * c.consumers * _in_turn(c, gemm))
    brought = _LOADED if scales.by_tma else _COPIED
    beside = 2 * columns_of(c) * (fragments_of(c) * sharing(c) * blocks_together(c, gemm) - 1)
    in_step = (columns_of(c) + _PROMOTING > beside) & (max(scales.a, scales.b) == 1)
    told = accumulator * wgmma.accumulators_of(c) + brought * c.consumers * np.logical_not(own)
    return told + _IN_STEP * in_step


def epilogue_clocks(c: Any, gemm: Gemm, out_bytes: int, at: Constants) -> Column:
    """Clocks of a tile's epilogue."""
    staged = wgmma.stages_result(c, gemm) & (out_bytes == gemm.out.bytes)
    narrow = 1 + at.narrow * (8 / np.maximum(c.subtile, 8)) * tma_stores(gemm)
    a_result = np.where(staged, at.staged * narrow, np.where(c.swap_ab > 0, at.swapped, at.per_thread))
    return at.epilogue + a_result * c.m * c.n * out_bytes / 2 / c.cluster_k + exchange_clocks(c)


@lru_cache(maxsize=64)
def class_of(gemm: Gemm) -> int:
    """The number of what of a problem decides the clocks of a k tile, of an epilogue, and how results are stored."""
    sides = () if gemm.block_scales is None else (gemm.block_scales.a, gemm.block_scales.b, gemm.block_scales.lie)
    formats = (gemm.dtype, gemm.b_dtype, gemm.product, gemm.out, gemm.pieces, gemm.accumulators, *sides)
    stores = stages_c(gemm), tma_stores(gemm)
    lie = gemm.a, gemm.b, gemm.c, *(is_misaligned(gemm, name) for name in ("A", "B", "C"))
    return _CLASSES.setdefault((*formats, *stores, *lie), next(_NUMBERS))


_CLASSES: dict[tuple[object, ...], int] = {}
_NUMBERS = itertools.count()
"""Numbers are faster to look up than what they stand for."""


def with_clocks(c: Columns, gemm: Gemm, spec: DeviceSpec, at: Constants | None = None) -> Columns:
    """Kernels with what no size of a problem changes: found once for a table that is kept, with the constants that are
    shipped.

    asked_bytes: of the L2 by a block for a k tile. slots, room: blocks of all SMs, and of those that blocks fill.
    slowest: clocks of a k tile, but for what arrives from outside of a matrix; arriving: rows of its tiles, by the
    boxes that bring them. promoted, least: `promotion_clocks`, `least_clocks`. crowd: times of a block's clocks where
    several share an SM. parted: bytes that memory moves more for a row of C where two tiles meet; cut: for an element
    of C whose rows begin inside sectors. exchange: seconds in which blocks of a cluster exchange sums. whole, part:
    clocks of an epilogue that stores C, or a part; between: the
    share of one that lies between two tiles. start: microseconds of a launch, infinite of kernels that a device or the
    operands rule out. uneven_waves: see `early_blocks`. All are floats, and sizes as well: NumPy converts integers at
    each operation.
    """

    def found(c: Columns) -> dict[str, Any]:
        used = at or constants(gemm.dtype)
        multiplied = ("m", "n", "cluster_m", "cluster_n", "cluster_k", "ping_pong", "persistent")
        mma, reads = mma_clocks(c, gemm, spec, used), read_bytes(c, gemm)
        a_rows = c.m * boxes_of(c.m, gemm, "A") ** used.boxes
        b_rows = c.n * boxes_of(c.n, gemm, "B") ** used.boxes
        asked = asked_rows(gemm, "A", a_rows, c.cluster_n) + asked_rows(gemm, "B", b_rows, c.cluster_m)
        row_bytes = stage_row_bytes(gemm)
        slowest = np.maximum(np.maximum(mma, reads / spec.shared_bytes_per_clk_per_sm), (used.latency + mma) / c.stages)
        slowest = np.maximum(slowest, fragment_clocks(c))
        slowest = np.maximum(slowest, (a_rows + b_rows) * row_bytes / used.arrival)
        together = blocks_together(c, gemm) * np.ones(len(c), dtype=np.int64)
        clustered = (c.cluster_m * c.cluster_n >= 4) | (c.cluster_k >= 4)
        sms = spec.sm_count * np.where(clustered, CLUSTERED_SMS, 1.0)
        by_warps = stores_rows(c.subtile, gemm) * c.m * c.n * gemm.out.bytes
        runs = (blocks_per_sm("wgmma", c, gemm, spec) > 0) & (reads_orders(gemm) | wgmma.reads(c, gemm))
        return {
            **{name: 1.0 * getattr(c, name) for name in multiplied},
            "together": 1.0 * together,
            "slots": spec.sm_count * together,
            "room": sms * together,
            "crowd": np.where(together > 1, together * (1 + used.crowd), 1.0),
            "slowest": np.maximum(slowest, asked * row_bytes / used.l2),
            "asked_bytes": asked * row_bytes,
            "arriving": a_rows + b_rows,
            "promoted": promotion_clocks(c, gemm),
            "least": least_clocks(c, gemm, spec, used),
            "parted": bytes_where_tiles_meet(c, gemm),
            "cut": bytes_of_an_element(c, gemm),
            "whole": epilogue_clocks(c, gemm, gemm.out.bytes, used) + by_warps / _ROW_BYTES_PER_CLOCK,
            "part": epilogue_clocks(c, gemm, F32.bytes, used),
            "exchange": exchange_clocks(c) / spec.tensor_clock_mhz / 1e6,
            "between": 1 - used.hidden * c.persistent,
            "start": np.where(runs, used.launch + used.persistent * c.persistent, np.inf),
            "uneven_waves": np.where(c.persistent > 0, np.inf, 1.0),
        }

    if at is not None:
        return c.with_columns(**found(c))
    return c.with_facts(("clocks", class_of(gemm), spec), found)


class Timed(NamedTuple):
    """Columns of kernels. rows, columns: of tiles. blocks: with those that fill up clusters, or work items of
    persistent kernels. waves: tiles that the busiest SM computes one after another, of those that it holds at a time.
    steps: k tiles of a block. clocks: of a k tile."""

    rows: Any
    columns: Any
    blocks: Any
    waves: Any
    steps: Any
    clocks: Any
    seconds: Any

    def at(self, rows: Any) -> Timed:
        """Of some of the kernels."""
        return Timed(*(column.take(rows) for column in self))


def dram_bytes(c: Any, gemm: Gemm, tiles: tuple[Column, Column], spec: DeviceSpec) -> Column:
    """Each matrix once; operands that the L2 does not hold as often as waves of tiles come back to them. tiles: rows
    and columns of them."""
    m, n, k = gemm.m, gemm.n, gemm.k
    size_bytes = gemm.dtype.bytes * pieces_of(gemm)
    read: Column = (m * k + n * k) * size_bytes
    if read > _KEPT_IN_L2 * spec.l2_bytes:
        high_tiles, wide_tiles = tiles
        of_grid = high_tiles * wide_tiles
        together = np.minimum(c.slots, of_grid)
        high = np.minimum(np.minimum(c.raster_rows, high_tiles), together)
        wide = np.minimum(wide_tiles, together / high)
        high = np.maximum(high, together / wide)
        again = of_grid / together * (high * c.m + wide * c.n) * k * size_bytes
        most = wide_tiles * m * k + high_tiles * n * k
        read = np.maximum(read, np.minimum(again, most))
    return read + m * n * gemm.out.bytes * (1 + matrices_read(gemm))


def _dependent_us(c: Any, blocks: Column, at: Constants) -> Column:
    """What dependent launch adds: where the next kernel's blocks find free SMs they save a start."""
    fill = blocks / c.slots
    alone = np.where(fill <= 0.5, at.room, np.where(fill <= 1, at.crowded, at.waves))
    return np.where(c.persistent > 0, at.dependent, alone)


def reads_pieces(gemm: Gemm, spec: DeviceSpec) -> bool:
    """Whether memory bounds a product of pieces, whatever multiplies them."""
    if gemm.pieces is None:
        return False
    flops = len(gemm.products) * 2.0 * gemm.m * gemm.n * gemm.k
    rate = tensor_rate(gemm, spec) * spec.sm_count * spec.tensor_clock_mhz * 1e6
    return flops / rate < gemm.compulsory_bytes / (spec.dram_gb_per_s * 1e9)


def _reading(
    c: Columns, memory: Any, again_bytes: Any, blocks: Any, waves: Any, spec: DeviceSpec, at: Constants
) -> Any:
    """The seconds of memory and the L2 where they bound a product. again_bytes: asked of the L2 beyond what memory
    moves."""
    l2 = np.maximum(again_bytes, 0) / L2_BYTES_PER_SECOND
    idle = 1 + _IDLE_SMS * np.maximum(0, 1 - blocks / (_ASKING_SMS * spec.sm_count))
    waits = (waves - 1) * _LOADED_LATENCY_SECONDS + (c.cluster_k > 1) * _MEETING_SECONDS
    return idle * np.maximum(memory, l2) + at.overlap * np.minimum(memory, l2) + waits


def _function_clocks(c: Columns, gemm: Gemm, body: Any) -> Any:
    """Clocks of a tile for what functions of the epilogue apply, read and fold. body: of all of its k tiles."""
    if not (function_clocks(gemm) or matrices_read(gemm) or gemm.epilogue.written):
        return 0.0
    beside, lost = beside_clocks(c, gemm)
    function = function_clocks(gemm) * c.m * c.n / c.cluster_k + beside
    return np.where(c.ping_pong > 0, np.maximum(0.0, function - body) + lost, function)


def timed(
    c: Columns, gemm: Gemm, spec: DeviceSpec, count: int = 1, at: Constants | None = None, *, packed: bool = False
) -> Timed:
    """Of each configuration, for `count` problems. gemm: behind the packing, if it is packed. at: by default what is
    shipped."""
    c = with_clocks(c, gemm, spec, at)
    at = at or constants(gemm.dtype)
    rows, columns = np.ceil(gemm.m / c.m), np.ceil(gemm.n / c.n)
    parts = parts_of(c)
    in_clusters = np.ceil(rows / c.cluster_m) * c.cluster_m * (np.ceil(columns / c.cluster_n) * c.cluster_n)
    blocks = in_clusters * parts * count
    waves = np.maximum(1, np.ceil(blocks / c.room - 1e-9))
    streamed = streams_k(c)
    if streamed is not False and streamed.any():  # `exchange_clocks` knows what it costs to add up
        waves = np.where(streamed, np.maximum(1, blocks / c.room), waves)
    steps = np.ceil(ceil_div(gemm.k, SWIZZLE_ATOM_BYTES // gemm.dtype.bytes) / parts)
    clocks = c.slowest
    if min(gemm.m, gemm.n) < wgmma.MAX_COLUMNS:
        # TMA fills rows outside of a matrix with zeros more slowly than it copies.
        outside = np.maximum(0, c.m - gemm.m) + np.maximum(0, c.n - gemm.n)
        clocks = np.maximum(clocks, (c.arriving + at.outside * outside) * stage_row_bytes(gemm) / at.arrival)
    clocks = clocks + at.iteration / (1 + c.ping_pong * (waves > 1)) + c.promoted
    read = reads_pieces(gemm, spec)
    full = c.room / c.together if read else spec.sm_count
    crowd = np.where(blocks > full, c.crowd, 1.0)
    body = steps * clocks * crowd
    if gemm.pieces is not None:  # of others, `correction` knows better
        shared = np.where(crowd == 1, 1, c.together)
        body = np.maximum(body, steps * shared * c.least)
    split = c.split_k > 1
    epilogue = np.where(split, c.part, c.whole)
    # Between two tiles comes an epilogue; with ping-pong it slows MMAs, and two take longer than those of short sums.
    between = epilogue * c.between
    if tma_stores(gemm):
        waiting = np.minimum(between, _SLOWED * body) + np.maximum(0.0, (epilogue - body) / 2)
        between = np.where(c.ping_pong > 0, waiting, between)
    busy_clocks = waves * (body + _function_clocks(c, gemm, body)) + epilogue + (waves - 1) * between
    sm_seconds = busy_clocks / (spec.tensor_clock_mhz * 1e6)
    asked_bytes = blocks * steps * c.asked_bytes
    if gemm.pieces is None:
        sm_seconds = np.maximum(sm_seconds, asked_bytes / _REPEATED_BYTES_PER_SECOND)
        in_lines = line_seconds(c, gemm, (rows, columns), steps)
        if in_lines is not None:
            sm_seconds = np.maximum(sm_seconds, in_lines[0]) + in_lines[1]
    moved_bytes, behind = _moved_bytes(c, gemm, spec, (rows, columns), count)
    # Few SMs do not ask for all that memory can bring.
    busy = np.minimum(1.0, blocks / (spec.sm_count * at.busy))
    memory = moved_bytes / (at.dram * spec.dram_gb_per_s * 1e9 * np.maximum(busy, 0.05))
    early = np.any(c.dependent_launch)
    if early and not packed:  # launches that pack come between those that multiply
        memory = memory * (1 + uneven(c, blocks, waves))
    if gemm.pieces is not None:
        ahead_bytes = np.minimum(blocks, c.slots) * (c.stages - 1) * wgmma.stage_bytes(c)
        memory = np.maximum(memory, moved_bytes * _LOADED_LATENCY_SECONDS / ahead_bytes)
        if read:
            memory = _reading(c, memory, asked_bytes - moved_bytes, blocks, waves, spec, at)
            memory = memory + epilogue / (spec.tensor_clock_mhz * 1e6)  # which comes when memory has done its work
    launch = c.start + at.split * split
    if early:
        launch = launch + c.dependent_launch * _dependent_us(c, blocks, at)
    overlap = _READ_OVERLAP if read else at.overlap
    seconds = 1e-6 * launch + np.maximum(sm_seconds, memory) + overlap * np.minimum(sm_seconds, memory) + behind
    if read:  # a block that has an SM to itself takes the deepest ring
        seconds = np.where((c.together > 1) & (blocks <= full), np.inf, seconds)
    return Timed(rows, columns, blocks, waves, steps, clocks, seconds)


def _moved_bytes(
    c: Columns, gemm: Gemm, spec: DeviceSpec, tiles: tuple[Column, Column], count: int
) -> tuple[Column, Column]:
    """That memory moves, with what tiles that meet inside sectors add and partial results of folds; seconds of the
    launches that read these. tiles: rows and columns of them."""
    written_bytes, behind = partials(c, gemm, spec)
    parted_bytes = gemm.m * c.parted * (tiles[1] - 1) + written_bytes
    if is_misaligned(gemm, "C"):
        times = times_where_large(gemm, spec, count)
        parted_bytes = parted_bytes + gemm.m * gemm.n * c.cut * (c.split_k == 1) * times
    return count * (dram_bytes(c, gemm, tiles, spec) + parted_bytes), behind
