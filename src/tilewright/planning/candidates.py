"""The kernels that come into question for a problem, as NumPy columns, a table for each family.

A table says nothing of speed: `cost` prices every row of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32, FP8_FORMATS, DType
from tilewright.kernels import mma, wgmma
from tilewright.kernels.columns import Columns, Deferred, distinct
from tilewright.kernels.configuration import GemmConfig, row_of
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.mma_presets import BEST as MMA_BEST
from tilewright.kernels.mma_presets import at_depth
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.spaces import mma_core, rows_of_warps, simt_core, stages_more, wgmma_core
from tilewright.kernels.tensor_rate import tensor_rate
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.kernels.wgmma_scales import blocks_fit, scale_registers
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES, function_registers, reads_orders, tma_stores
from tilewright.kernels.work import is_misaligned, rows_begin_at
from tilewright.layout.banks import LINE_BYTES, SECTOR_BYTES
from tilewright.layout.epilogue import UNIT_COLUMNS
from tilewright.planning.clusters import without_clusters
from tilewright.planning.cost.correction import FITTED_FOR
from tilewright.planning.cost.first_cut import k_tile_work
from tilewright.planning.cost.promising import tiles_along
from tilewright.planning.cost.wgmma_terms import boxes_across
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

_MOST_ROWS = 16
"""Rows of tiles that blocks visit together, at most: their strips of A stay in the L2."""


def candidates(gemm: Gemm, spec: DeviceSpec, count: int = 1) -> Mapping[str, Columns]:
    """Tables of what can multiply the formats of a problem on a device, by family. count: of such problems."""
    return {kind: table_of(kind, gemm, spec, count) for kind in families(gemm, spec)}


def families(gemm: Gemm, spec: DeviceSpec) -> tuple[str, ...]:
    """Those that can multiply the formats of a problem on a device, the fastest first."""
    if gemm.pieces is not None:
        return ("wgmma",) if spec.compute_capability[0] == 9 else ()
    return (*(("wgmma",) if _multiplies_by_wgmma(gemm, spec) else ()), _listed_family(gemm, spec))


def table_of(kind: str, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> Columns:
    """The kernels of one of `families`."""
    if kind != "wgmma":
        return listed(gemm, spec)[1]
    c, vectors = _wgmma(gemm, spec, count), gemm.epilogue.vectors
    if not vectors:
        return c
    key = ("vectors", *((one.along, one.dtype) for one in vectors))
    return c.in_table(key, lambda kept: kept.with_columns(stages=wgmma.beside_vectors(kept, gemm)))


def _multiplies_by_wgmma(gemm: Gemm, spec: DeviceSpec) -> bool:
    """Whether a device has wgmma, and that multiplies the formats."""
    return tensor_rate(gemm, spec) > 0 and spec.compute_capability[0] == 9


def families_for(gemm: Gemm, spec: DeviceSpec, family: str) -> tuple[str, ...]:
    """A family that was asked for, as far as the device has what it needs."""
    since = {"simt": (0, 0), "mma": (8, 0), "wgmma": (9, 0)}
    known = family in since and spec.compute_capability >= since[family]
    return (family,) if known and (family != "wgmma" or spec.compute_capability[0] == 9) else ()


def configurations(gemm: Gemm, spec: DeviceSpec) -> Iterator[GemmConfig]:
    """The kernels behind the tables but for wgmma's."""
    kind, table = listed(gemm, spec)
    return (row_of(kind, table, at) for at in range(len(table)))


def _listed_family(gemm: Gemm, spec: DeviceSpec) -> str:
    """Where no tensor core multiplies the formats, the CUDA cores do; mma.sync of compute capability 9.0 multiplies FP8
    as f16 (`isa.summation`)."""
    as_f16 = gemm.multiplied in FP8_FORMATS and spec.compute_capability[0] == 9
    return "mma" if tensor_rate(gemm, spec) and spec.compute_capability >= (8, 0) and not as_f16 else "simt"


def listed(gemm: Gemm, spec: DeviceSpec) -> tuple[str, Columns]:
    """The family that multiplies the formats, and its kernels, but for wgmma's."""
    if _listed_family(gemm, spec) == "simt":
        return "simt", _simt(gemm, spec)
    if spec.compute_capability != FITTED_FOR:
        return "mma", _mma(gemm.dtype)
    c = mma_core(gemm)
    k_tiles = tuple(min(_MOST_STAGES, 1 + ceil_div(gemm.k, k)) for k in sorted(set(c.k.tolist())))
    c = c.in_table(("filled ring", k_tiles), lambda kept: _filled(kept, gemm.k))
    return "mma", c.with_columns(raster_rows=_raster_rows(gemm, spec, c) * np.ones_like(c.m))


_MOST_STAGES = 6
"""Of the rings of `mma_core`."""


def _filled(c: Columns, length: int) -> Columns:
    """Kernels of mma.sync with no more stages than a sum of this length fills, and one, as all but one are filled
    ahead: others would keep blocks from an SM. 46 kernels with one more than there are tiles along k take 0.983 of the
    time of those with as many, 0.87 to 1.16 (H200, record 0111)."""
    return c.with_columns(stages=np.minimum(c.stages, np.maximum(2, 1 + ceil_div(length, c.k))))


def _simt(gemm: Gemm, spec: DeviceSpec) -> Columns:
    """On devices whose plans nobody measured the few that the terms alone tell apart."""
    if spec.compute_capability == FITTED_FOR:
        c = simt_core(gemm)
        return c.with_columns(raster_rows=_raster_rows(gemm, spec, c) * np.ones_like(c.m))
    few_rows = gemm.b is Order.ROW and gemm.dtype is F32
    c = _simt_list(few_rows=few_rows)
    if few_rows and not 8 < gemm.m <= 16:
        c = c[c.stages == 2]
    return c.with_columns(raster_rows=np.where(c.stages == 2, _raster_rows(gemm, spec, c), 1))


@cache
def _simt_list(*, few_rows: bool) -> Columns:
    """k is unrolled by 8, but for the largest tiles: in a longer run of FMAs ptxas moves the loads of the next tile to
    its end, right before their use, which few warps have nothing to cover with (tests/planning/test_candidates.py).

    few_rows: with one for some rows of A. Where these nearly fill its tile it may be as fast as the GEMV kernel: copies
    of B run ahead by several stages.
    """
    found = []
    for m, n, warp_m, warp_n in (
        (128, 256, 64, 64),
        (256, 128, 64, 64),
        (128, 128, 64, 64),
        (128, 128, 32, 64),
        (64, 256, 64, 64),
        (64, 256, 32, 64),
        (128, 64, 64, 32),
        (64, 128, 32, 64),
        (64, 64, 32, 32),
        (32, 64, 16, 32),
    ):
        found.append(SimtConfig((m, n, 16), (warp_m, warp_n), unroll=16 if m * n == 128 * 256 else 8))
    if few_rows:
        found.append(SimtConfig((16, 256, 16), (16, 64), b_transport="cp_async", stages=4, unroll=8))
    return Columns.of(found, SimtConfig.columns).kept()


def _raster_rows(gemm: Gemm, spec: DeviceSpec, c: Columns) -> Any:
    """Rows of tiles that blocks visit together. One row after another, each would read all of B anew, where it does not
    fit into the L2 and a row has more tiles than run at a time."""
    if gemm.k * gemm.n * gemm.dtype.bytes <= spec.l2_bytes:
        return 1
    rows, columns = ceil_div(gemm.m, c.m), ceil_div(gemm.n, c.n)
    return np.where(columns > spec.sm_count, np.minimum(_MOST_ROWS, rows), 1)


@cache
def _mma(dtype: DType) -> Columns:
    found = []
    for m, n, warp_m, warp_n, stages in (
        (128, 256, 64, 64, 3),
        (128, 128, 64, 64, 3),
        *(((128, 128, 64, 32, 3),) if dtype in FP8_FORMATS else ()),  # with room for sums that are promoted
        (64, 128, 32, 64, 4),
        (64, 64, 32, 32, 4),
    ):
        config = replace(MMA_BEST, tile=(m, n, 32), warp_tile=(warp_m, warp_n), stages=stages)
        found.append(at_depth(config, Gemm(1, 1, 1, dtype)))
    return Columns.of(found, MmaConfig.columns).kept()


_LONG_FLOPS = 1.05e11
"""Of a persistent kernel that does not start under the one before. Blocks that start where others have just ended lie
on the SMs in any order, and neighbours no longer ask for the same lines at the same time: more requests reach the L2.
Measured on the H200 in bf16 at 4096 x 14336 x 4096, sustained: 0.990 of cuBLAS with dependent launch, else 1.000; at
2048^3, 24 us in a burst, 1.000 with it, else 0.973 (benchmarks/results/early_start_h200.jsonl)."""

_EARLY_BLOCKS = 0.25
"""Of the SMs. FMA kernels that start under the kernel before take 0.79 of the time where they have up to 16 blocks,
0.85 up to 33, and 1.1 to 3.7 of it between 34 and 600: blocks that wait lie unevenly on the SMs (257 pairs of plans,
H100, benchmarks/choice_sweep.py)."""

_LARGE_THREADS = 96
"""Accumulators of a thread from which on copies lie between k steps, in blocks of two by two warps. Tiles of 96 x 128
and 128 x 128 take 0.95 to 0.96 of the time then, 64 x 128 0.99 to 1.02; 128 x 256, with
8 warps, 1.02 to 1.09; with guards up to 1.44 (1536 x 5632 x 2048 and 384 x 4608 x 3584 among others, H100). Not as
stream-K: where m or n has an edge and k is 3072 or more, 96 x 128 takes 1.25 of the time, in 12 of 12 (H200)."""


def _wgmma(gemm: Gemm, spec: DeviceSpec, count: int) -> Columns:
    """Tiles that a problem fills, without clusters (`clusters`); ping-pong where tiles wait for SMs."""
    across = (reads_orders(gemm) and gemm.operand(name).contiguous != "k" for name in ("A", "B"))
    core = _core(wgmma_core(gemm), len(gemm.products), tuple(gemm.dtype.bytes * of for of in across))
    c = without_clusters(core)
    tiles = tiles_along(gemm.m, c.m) * tiles_along(gemm.n, c.n)
    kept = (tiles * count > spec.sm_count) | (c.ping_pong == 0)
    if min(gemm.m, gemm.n) <= wgmma.MAX_COLUMNS:
        kept &= (c.least_m < gemm.m) & (c.least_n < gemm.n)
    return c.with_columns(tiles=tiles)[kept]


@cache
def _core(core: Columns, products: int, across_bytes: tuple[int, int]) -> Columns:
    """A table of `wgmma_core` with what no size changes: sizes that a problem must exceed, and the time of a k tile of
    all blocks of an SM as `first_cut` sees it. products: of pieces. across_bytes: of an element of A, and of B, that
    runs along m or n in memory; 0 where it runs along k."""
    kind, (a_bytes, b_bytes) = 2 * core.swap_ab + core.left_in_registers, across_bytes
    return core.with_columns(
        least_m=_next_smaller(core.m, kind, boxes_across(a_bytes * core.m)),
        least_n=_next_smaller(core.n, kind, boxes_across(b_bytes * core.n)),
        k_tile_work=k_tile_work(core, products),
    ).kept()


_WIDER = 1.5
"""Times of a tile that fits, up to which a wider one may be faster for the sake of its boxes."""


def _next_smaller(sizes: Any, kinds: Any, boxes: Any) -> Any:
    """The next smaller size that tiles of the same kind have, in boxes as wide or much smaller, or 0: a side of no more
    has no use for a tile. Where an operand runs along m or n in memory, tiles are further apart than elsewhere.

    >>> _next_smaller(np.array([8, 64, 16, 32, 128]), np.array([0, 1, 0, 0, 1]), np.ones(5)).tolist()
    [0, 0, 8, 16, 64]
    >>> _next_smaller(np.array([64, 128, 144, 160, 192]), np.zeros(5), np.array([1, 1, 4, 2, 1])).tolist()
    [0, 64, 128, 128, 128]
    """
    found = np.zeros_like(sizes)
    for kind, most in product(distinct(kinds), distinct(boxes)):
        mine, alike = np.flatnonzero((kinds == kind) & (boxes == most)), sizes[kinds == kind]
        smaller = [distinct(alike[boxes[kinds == kind] <= most]), distinct(_WIDER * alike)]
        least = [np.concatenate([[0], of])[np.searchsorted(of, sizes[mine])] for of in smaller]
        found[mine] = np.maximum(least[0], least[1] / _WIDER)
    return found


def promoted(tables: Mapping[str, Columns], every: int, gemm: Gemm) -> Mapping[str, Columns]:
    """The kernels of tensor cores that promote their accumulators every so many of k: those whose registers hold both
    sums, and the scales of blocks."""
    found = {}
    for kind in ("wgmma", "mma"):
        if kind in tables:
            key = ("promoted", every, *_sides(gemm), gemm.dtype, gemm.b_dtype)
            c = tables[kind].in_table(key, lambda kept, kind=kind: _promoted(kind, kept, every, gemm))  # type: ignore[misc]
            found[kind] = c[c.promotes > 0]
    return found


def _sides(gemm: Gemm) -> tuple[object, ...]:
    """Of blocks that have scales, and how these lie."""
    return () if gemm.block_scales is None else (gemm.block_scales.a, gemm.block_scales.b, gemm.block_scales.lie)


def _promoted(kind: str, c: Columns, every: int, gemm: Gemm) -> Columns:
    """Kernels that promote their accumulators; promotes: whether they have room to."""
    c = c.with_columns(promote_every=np.full(len(c), every))
    if kind == "mma":
        return c.with_columns(promotes=mma.promotes(c, gemm))
    if gemm.block_scales is not None:  # which take room in each stage
        c = c.with_columns(stages=np.minimum(c.stages, wgmma.deepest_ring(c, c.blocks, gemm)))
    registers = wgmma.registers_of(c) + scale_registers(c, gemm)
    fits = (registers <= wgmma.consumer_registers(c, gemm)) & blocks_fit(c, gemm)
    return c.with_columns(promotes=fits & (c.left_in_registers == 0))


CLUSTERS_ALONG_K: tuple[int, ...] = (2, 4, 8)
"""Blocks of clusters that share the sum over k, as the choice proposes them. Of 210 skinny problems in bf16 on the H200
they were the fastest in 152 (benchmarks/choice_sweep.py --skinny)."""


CLUSTERS_OF_PIECES: tuple[int, ...] = (2,)
"""And of products of pieces: clusters of 4 were slower wherever 4096 x 4096 weights were read (H100)."""


def starts_early(gemm: Gemm, count: int) -> bool:
    """Whether a persistent kernel for so many problems starts under the one before."""
    return len(gemm.products) * gemm.flops * count < _LONG_FLOPS


def _always_early(c: Columns, gemm: Gemm) -> Any:
    """Kernels of FP8 in clusters along n, whose blocks read one tile of A: wherever on the SMs they lie, they ask for
    the same lines. H200: 46 pairs take 0.96 to 0.98 of the time so, 18 more, 16 of them with scales of blocks, 0.976 to
    0.998 (records 0076, 0078)."""
    if gemm.dtype not in FP8_FORMATS:
        return np.zeros(len(c), dtype=bool)
    return (c.persistent > 0) & (c.cluster_n > 1)


def with_simt_options(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int) -> Columns:
    """SIMT kernels of few blocks start under the kernel before, and so do those of stream-K, behind the launch that
    clears their flags. Copies lie between the k steps of large threads where they go through registers, k has no edge,
    as with guards there are too few registers, and blocks of stream-K do not begin anew with each of their tiles; by
    cp.async where an SM has few warps to cover for each other."""
    blocks = tiles_along(gemm.m, c.m) * tiles_along(gemm.n, c.n) * c.cluster_k * count
    few = (c.split_k == 1) & (blocks <= _EARLY_BLOCKS * spec.sm_count)
    unrolled, sums = c.unroll == c.k, accumulators_of(c)
    by_registers = (c.a_transport == "registers") & (c.b_transport == "registers")
    large = (sums >= _LARGE_THREADS) & (c.m == 2 * c.warp_m) & (c.n == 2 * c.warp_n) & (gemm.k % c.k == 0)
    large &= c.stream_k == 0
    warps = warps_of(c) * np.ceil(blocks * c.split_k / spec.sm_count)
    small = (sums >= _LEAST_BETWEEN) & (sums <= _MOST_BETWEEN)
    covered = small & ((sums * warps <= _FEW_SUMS) | ((sums == _MOST_BETWEEN) & (c.k == _DEEP)))
    by_async = (c.a_transport == "cp_async") & (c.b_transport == "cp_async")
    ahead = by_async & unrolled & _runs_ahead(c)
    between = ahead | (unrolled & ((by_registers & large) | (by_async & covered)))
    early = few | (c.stream_k > 0)
    return c.with_columns(dependent_launch=early, interleaved_copies=between, double_buffered_fragments=ahead)


def _runs_ahead(c: Columns) -> Any:
    """Kernels by cp.async that load fragments a k step ahead of their FMAs, the first of a tile behind the barrier
    before it, with copies between the k steps: their warps never all wait. Beside those that do not (H200, record
    0083): threads of 48 and 64 accumulators with a k of 16 take 0.976 of the time (115 kernels, 0.86 to 1.07). Eight
    warps with 64 and a k of 8 take 0.95 (18, 0.86 to 1.09), with 80 0.93 (16), with 96 0.95 (30), with 112 0.96 (12,
    0.82 to 1.11), with 128 0.93 (67, 0.85 to 1.01), as stream-K 0.87 (98, 0.77 to 1.05; record 0093); five or six with
    80 to 112 1.07 (58, 0.84 to 1.32). Four warps with 96 or more take 0.96 at edges, and as stream-K 0.99 (184, 0.66 to
    1.88), 0.976 elsewhere (42): by guards of a thread's own row there are registers (`guards_own_rows`). With copies
    through registers there are not (1.06)."""
    sums, warps = accumulators_of(c), warps_of(c)
    found = (sums >= 48) & (sums <= _MOST_BETWEEN) & (c.k == _DEEP)
    found |= (sums >= _MOST_BETWEEN) & (warps == 8)
    return found | ((sums >= _LARGE_THREADS) & (warps == 4))


_LEAST_BETWEEN, _MOST_BETWEEN, _DEEP, _FEW_SUMS = 32, 64, 16, 768
"""Accumulators of a thread between which copies by cp.async lie between k steps; the k of a tile with which they always
do in threads of the most; accumulators of a thread, by the warps of an SM, up to which they do. In 115 pairs of kernels
such took 0.966 of the time, 0.74 to 1.16; others 1.04, and those with 128 accumulators 1.19 to 1.26 (H200): ptxas keeps
more registers then, which costs blocks an SM, and mixes up banks. `_runs_ahead` tells of others."""

_READERS = 2
"""Blocks that read a tile, at most, of an operand that leaves the L2 first."""

_KEPT_C_BYTES = 100 << 20
"""Of a C of which the next kernel may find a part in the L2. Below, the hint is worth nothing: 38 pairs of kernels of
fresh problems took 0.956 to 1.055 of the time with it, 1.004 in the mean."""

_KEPT_BESIDE_BYTES = 30 << 20
"""Of A and C of a batch, up to which they stay in the L2 where B leaves it first. H200, 85 pairs of kernels of 26
batches: 0.969 of the time with the hint up to 25 MB (30 pairs, 0.91 to 1.02), 1.019 up to 38 MB (20, 0.95 to 1.11),
1.022 beyond (35, 0.996 to 1.06; record 0089). Of groups: record 0070."""


def leaves_first(c: Any, gemm: Gemm, count: int = 1, readers: int = _READERS) -> Any:
    """The operands whose lines leave the L2 first: that of which each tile is read by one or two neighbours, and a C
    that the L2 does not hold, where each store has whole lines: what is left of one would be written on its own. count:
    of such problems. readers: rows of tiles whose blocks are neighbours in time.

    H200, bf16, cold operands, NT: 96 x 5120 x 5120 17.0 us, without the hint 17.8; 12 x 6144 x 4096 15.7 and 16.4; 197
    x 8192 x 7168 42.7 and 44.0; but with four rows of tiles, 577 x 4096 x 11008, 74.1 and 73.1. Of C: record 0064.
    """
    rows, columns = ceil_div(gemm.m, c.m), ceil_div(gemm.n, c.n)
    b_once = (rows == 1) | ((rows <= readers) & (c.raster_rows >= readers))
    beside_bytes = count * gemm.m * (gemm.k * gemm.dtype.bytes + gemm.n * gemm.out.bytes)
    is_large = count > 1 and readers == _READERS and beside_bytes > _KEPT_BESIDE_BYTES  # a batch
    a_once = (columns <= _READERS) & (c.raster_rows == 1)
    whole = tma_stores(gemm) and rows_begin_at(gemm, "C") == LINE_BYTES
    large = whole and count * gemm.m * gemm.n * gemm.out.bytes > _KEPT_C_BYTES
    lines = (np.asarray(c.subtile) > 0) & (c.subtile * gemm.out.bytes % LINE_BYTES == 0)
    read = np.where(b_once, 0 if is_large else 1, np.where(a_once, 2, 0))
    return _LEAVING.take(read + 3 * (large & lines))


_LEAVING: Any = np.array(("", "B", "A", "C", "BC", "AC"))
"""One of A and B, or neither; then the same with C."""


def _leaves_first(gemm: Gemm, count: int) -> Deferred:
    """The operands that leave the L2 first. No estimate asks for them, and few kernels are made."""
    return Deferred(lambda c: leaves_first(c, gemm, count))


def other_options(c: Columns, gemm: Gemm, count: int) -> Columns:
    """Each kernel of wgmma with and without dependent launch, in both orders of tiles, and with less of C staged beside
    a longer ring, or more of it. staging: 0 of plans that stage C as kernels do, 1 of less, 2 of more."""
    assert c.table is not None and c.rows is not None
    worth, staged = c.table.known(
        ("staged", *_sides(gemm), function_registers(gemm), *gemm.epilogue.scale), lambda kept: _staged(kept, gemm)
    )
    row, option = np.divmod(np.arange(len(c) * _OPTIONS), _OPTIONS)
    place = c.rows.take(row) + len(c.table) * (option >> 2)
    in_line: Any = (c.m >= gemm.m) | (c.n >= gemm.n)  # one row or column of tiles has one order
    persistent = c.persistent.take(row) > 0
    kept = np.where(option & 2 > 0, persistent | ~in_line.take(row), ~persistent)
    kept &= (option & 1 > 0) | ~_always_early(c, gemm).take(row)
    (kept,) = (kept & worth.take(place)).nonzero()
    row, option = row[kept], option[kept]
    given = {name: getattr(c, name).take(row) for name in c.given - {"evict_first"}}
    given |= {
        "dependent_launch": option & 1,
        "raster_rows": np.where(option & 2, _MOST_ROWS, 1),
        "staging": option >> 2,
    }
    found: Columns = staged[place[kept]].with_columns(**given, evict_first=_leaves_first(gemm, count))
    return found


def _staged(c: Columns, gemm: Gemm) -> tuple[Any, Columns]:
    """Kernels as they are, then with less of C staged, then with more; and which of these are something else."""
    less, more = _one_epilogue_stage(c, gemm), _more_staged(c, gemm)
    columns = {name: np.concatenate([getattr(way, name) for way in (c, less, more)]) for name in c.names}
    return np.concatenate([np.ones(len(c), dtype=bool), less.worth > 0, more.worth > 0]), Columns(columns).kept()


_OPTIONS = 12
"""1: dependent launch. 2: many rows of tiles are visited together. 4: less of C is staged. 8: more."""


def _one_epilogue_stage(c: Columns, gemm: Gemm) -> Columns:
    """Kernels with one epilogue stage as large as one of two, and the deepest ring; worth: whether that is deeper.
    Rows of a sector become longer by half where there is room: 1.2 % less time in the mean of five pairs of kernels
    (H100, bf16, dense problems in bursts). Not one of rows of a sector in ping-pong: with two of them and a ring of
    four 128 x 208 takes 0.975 of the time with one and five, less in 14 of 16 pairs (FP8 by rows, H200)."""
    narrow = np.where(c.subtile_stages == 1, c.subtile // 2, c.subtile)  # one stage of long rows is as large as two
    one = c.with_columns(subtile=narrow, subtile_stages=np.ones(len(c), dtype=np.int64))
    one = one.with_columns(stages=wgmma.deepest_ring(one, one.blocks, gemm))
    wider = one.with_columns(subtile=narrow + UNIT_COLUMNS)
    fits = wgmma.fits(wider, one.blocks, gemm) & wgmma.has_registers(wider, gemm)
    longer = (narrow * gemm.out.bytes == SECTOR_BYTES) & (wider.subtile <= c.n) & fits
    subtile = np.where(longer, wider.subtile, narrow)
    waits = (c.ping_pong > 0) & (subtile * gemm.out.bytes <= SECTOR_BYTES)
    return one.with_columns(subtile=subtile, worth=(c.subtile > 0) & (one.stages > c.stages) & ~waits)


def _more_staged(c: Columns, gemm: Gemm) -> Columns:
    """Persistent kernels that stage more of C, or longer rows of it, and the ring that is left; worth: whether they
    do."""
    more = _whole_rows(c, gemm) if is_misaligned(gemm, "C") else _twice_staged(c, gemm)
    other = (wgmma.staged_c_bytes(more, gemm) > wgmma.staged_c_bytes(c, gemm)) | (more.subtile > c.subtile)
    fits = stages_more(more) & wgmma.has_registers(more, gemm)
    return more.with_columns(worth=other & (c.subtile > 0) & (c.persistent > 0) & (c.swap_ab == 0) & fits)


def _twice_staged(c: Columns, gemm: Gemm) -> Columns:
    """With two epilogue stages in the place of one, of rows as long as a swizzle atom where that leaves a ring of four
    and registers.
    Where sums are short, C takes most of the time: ping-pong 128 x 192 with two stages of 32 columns and a ring of four
    takes 0.90 to 1.02 of the time with one and five, 0.96 in the mean of five problems; two stages of 64 take 0.90 to
    1.11 of two of 32, 0.99 in the mean of 49 pairs of kernels of four batches (H200)."""
    atom = SWIZZLE_ATOM_BYTES // gemm.out.bytes
    more = _with_stages(c, np.minimum(atom, c.n), 2, gemm)
    longer = np.where(c.subtile_stages == 1, c.subtile, np.minimum(2 * c.subtile, np.minimum(atom, c.n)))
    less = _with_stages(c, longer, 2, gemm)
    deep = (more.stages > wgmma.LEAST_RING) & wgmma.has_registers(more, gemm)
    return more.with_columns(
        subtile=np.where(deep, more.subtile, less.subtile), stages=np.where(deep, more.stages, less.stages)
    )


def _whole_rows(c: Columns, gemm: Gemm) -> Columns:
    """With all of a tile in one stage, where TMA cannot store rows, or they have whole swizzle atoms: warps store them
    (`wgmma_steps`), so that they meet others in two sectors."""
    atom = SWIZZLE_ATOM_BYTES // gemm.out.bytes
    whole = c.n % atom == 0 if tma_stores(gemm) else rows_of_warps(c.n, gemm) == c.n
    return _with_stages(c, np.where(whole, c.n, c.subtile), 1, gemm)


def _with_stages(c: Columns, subtile: Any, count: int, gemm: Gemm) -> Columns:
    """With so many epilogue stages of so many columns, and the deepest ring beside them, or one stage."""
    more = c.with_columns(subtile=subtile, subtile_stages=np.full(len(c), count, dtype=np.int64))
    return more.with_columns(stages=np.maximum(1, wgmma.deepest_ring(more, more.blocks, gemm)))
