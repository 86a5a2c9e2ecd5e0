"""How long plans take, by arithmetic over columns: the GEMM kernel by the performance model (docs/model.md), and the
launches around it, which move bytes. The one place where planning and tuning estimate time.

All times are seconds, of a whole table of candidates at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd, log2
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.tensor_rate import tensor_rate
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.planning.cost import simt_features, wgmma_features, wgmma_terms
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.correction import FITTED_FOR, Fit, Trees, fit_for, stacked
from tilewright.planning.cost.exchange import parts_of
from tilewright.planning.cost.launches import (
    MORE_LAUNCHES_SECONDS,
    Around,
    Sizes,
    finishing_seconds,
    moving,
    packing_seconds,
)
from tilewright.planning.cost.narrow_copies import loops_fit_caches
from tilewright.planning.cost.simt_features import Busiest
from tilewright.planning.cost.warp_terms import kernels_timed
from tilewright.planning.packing import TMA_BYTES, behind_packing
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

CORRECTED: Mapping[str, int] = {"wgmma": 192, "mma": 64, "simt": 128}
"""Plans of a problem whose estimates are corrected by measurements: the best by the terms. Of wgmma 192 take 0.4 ms
more than 128, and three of 93 fresh products 0.82 to 0.89 of the time (H200, record 0110). Of SIMT kernels, whose terms
tell less, the choice of 64 is estimated to take 0.4 % longer than that of all, of 128 0.2 % (80 drawn problems)."""


class Estimate(NamedTuple):
    """Seconds of the plans of a table, as the terms say: of the launch that packs, of the GEMM kernel, of what takes
    C from a workspace, of the host for further launches. read: the problem behind the packing. timed: what those of
    wgmma are made of, and of kernels of warps what the busiest SM does."""

    columns: Columns
    read: Gemm
    sizes: Sizes
    packing: Any
    kernel: Any
    reduced: Any
    more: Any
    timed: Any

    @property
    def total(self) -> Any:
        return self.packing + self.kernel + self.reduced + self.more


def plan_seconds(
    kind: str,
    tables: Sequence[tuple[Columns, Around]],
    gemm: Gemm,
    spec: DeviceSpec,
    *,
    corrected: int | None = None,
) -> list[Any]:
    """Of each plan of each table of a family: packing, the kernel, and what takes C from a workspace. Infinite where a
    block does not fit on an SM, or cannot read operands as they lie behind the packing. The host's time for further
    launches counts. corrected: so many of the best of all get what measurements add to the estimate, where there are
    some of the family, by default `CORRECTED`; the others follow behind them."""
    found = [_estimate(kind, c, gemm, spec, around) for c, around in tables]
    fit = fit_for(kind, gemm.dtype) if spec.compute_capability == FITTED_FOR and gemm.pieces is None else Fit({})
    most = CORRECTED[kind] if corrected is None else corrected
    if fit.trees is None or not found or not most:
        return [one.total for one in found]
    return _as_measured(kind, found, spec, fit, tables[0][1].count, most)


def _estimate(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, around: Around) -> Estimate:
    packing = around.packing
    sizes = Sizes.of(gemm, c, packing)
    read = behind_packing(gemm, kind, packing)
    timed: Any
    if kind == "wgmma":
        timed = wgmma_terms.timed(c, read, spec, around.count, packed=bool(packing.packed))
        kernel = timed.seconds
    else:
        kernel, timed = kernels_timed(kind, c, read, spec, around, sizes)
        if kind == "mma" and around.loads_bytes < TMA_BYTES and spec.compute_capability == FITTED_FOR:
            kernel = np.where(loops_fit_caches(c, gemm, around), kernel, np.inf)
    before: Any = 0.0
    if packing.packed:
        before = packing_seconds(kind, c, gemm, spec, packing, around.count)
    parts = c.split_k > 1
    reduced = finishing_seconds(c, sizes, gemm, spec)
    more = parts * MORE_LAUNCHES_SECONDS
    return Estimate(c, read, sizes, before, kernel, reduced, more, timed)


def _as_measured(kind: str, found: Sequence[Estimate], spec: DeviceSpec, fit: Fit, count: int, most: int) -> list[Any]:
    """The seconds of plans. `correction` corrects those of the kernels with their reduction, of the best plans."""
    assert fit.trees is not None
    terms = [one.kernel + one.reduced for one in found]
    chosen = least_of([one.packing + of for one, of in zip(found, terms, strict=True)], most)
    if not any(map(len, chosen)):
        return [one.total for one in found]
    kernels = [of[rows] for of, rows in zip(terms, chosen, strict=True)]
    left, ranks = _asked(kind, fit.trees, found, chosen, kernels, spec, count)
    factor = np.exp(fit.trees.logarithms(ranks, left))
    totals, end = [], 0
    for one, of, rows, kernel in zip(found, terms, chosen, kernels, strict=True):
        shared = shared_factor(kind, one.read, count)
        if kind == "mma" and np.any(one.packing):
            shared *= _MMA_BEHIND_PACKING
        total = one.packing + one.more + of * shared
        total[rows] += kernel * shared * (factor[end : end + len(rows)] - 1)
        totals.append(total)
        end += len(rows)
    slowest = max(total[rows].max(initial=0.0) for total, rows in zip(totals, chosen, strict=True))
    for total, rows in zip(totals, chosen, strict=True):
        mine = total[rows]
        np.maximum(total, slowest, out=total)
        total[rows] = mine
    return totals


def least_of(seconds: Sequence[Any], most: int) -> list[Any]:
    """Places of the least of several tables together, as far as they are finite."""
    together = seconds[0] if len(seconds) == 1 else np.concatenate(seconds)
    best = together.argpartition(most)[:most] if len(together) > most else np.arange(len(together))
    best = best[np.isfinite(together[best])]
    best.sort()
    if len(seconds) == 1:
        return [best]
    starts = np.cumsum([0, *map(len, seconds)])
    return [rows - start for rows, start in zip(np.split(best, best.searchsorted(starts[1:-1])), starts, strict=False)]


_MMA_BEHIND_PACKING = 1.18
"""Times that kernels of mma.sync, which do not start under the launch that packs, take of what they take alone: 1.02 to
1.42 in 29 problems of three sweeps, 1.18 in the mean; those of wgmma 1.00."""


@lru_cache(maxsize=64)
def shared_factor(kind: str, read: Gemm, count: int = 1) -> float:
    """What the times of all kernels of a family are multiplied by for a problem, which is asked for several times in a
    choice."""
    trees = fit_for(kind, read.dtype).shared
    if trees is None:
        return 1.0
    return float(np.exp(trees.logarithm(problem_features(read, count))))


def problem_features(read: Gemm, count: int = 1) -> tuple[Any, ...]:
    """What the trees ask about that know a problem alone."""
    moved_bytes = count * ((read.m * read.k + read.n * read.k) * read.dtype.bytes + read.m * read.n * read.out.bytes)
    sizes = (log2(max(1, size)) for size in (read.m, read.n, read.k, count * read.flops, moved_bytes))
    return *sizes, read.dtype.bytes, read.out.bytes, *_how_operands_lie(read), log2(count)


def _asked(
    kind: str,
    trees: Trees,
    found: Sequence[Estimate],
    chosen: Sequence[Any],
    seconds: Sequence[Any],
    spec: DeviceSpec,
    count: int,
) -> tuple[Any, Any]:
    """What the trees know of the chosen rows of each table, one behind the other, as `wgmma_features.asked`. Where
    tables have the same rows behind several packings, all are asked at once."""
    if kind != "wgmma" and len(found) > 1 and all(one.columns is found[0].columns for one in found):
        lengths = [len(rows) for rows in chosen]
        lie = [_how_operands_lie(one.read) for one in found]
        lies = tuple(np.repeat(of, lengths) for of in zip(*lie, strict=True))
        along = [one.sizes.at(rows) for one, rows in zip(found, chosen, strict=True)]
        m, n, k = (
            np.concatenate([np.full(rows, size) for rows, size in zip(lengths, of, strict=True)])
            for of in zip(*along, strict=True)
        )
        c, read = found[0].columns[np.concatenate(chosen)], found[0].read
        busiest = Busiest.joined([one.timed.at(rows) for one, rows in zip(found, chosen, strict=True)])
        finishing = np.concatenate([one.reduced[rows] for one, rows in zip(found, chosen, strict=True)])
        each = busiest, np.concatenate(seconds), finishing
        return _tiled_asked(kind, trees, c, read, lies, spec, (m, n, k), each, count)
    told = []
    for one, rows, us in zip(found, chosen, seconds, strict=True):
        if not len(rows):
            continue
        c, read = one.columns[rows], one.read
        if kind == "wgmma":
            told.append(wgmma_features.asked(trees, c, read, spec, one.timed.at(rows), us, count))
        else:
            sizes, each = one.sizes.at(rows), (one.timed.at(rows), us, one.reduced[rows])
            told.append(_tiled_asked(kind, trees, c, read, _how_operands_lie(read), spec, sizes, each, count))
    if len(told) == 1:
        return told[0]
    return np.concatenate([left for left, _ in told]), np.concatenate([ranks for _, ranks in told], axis=1)


def _tiled_asked(
    kind: str,
    trees: Trees,
    c: Columns,
    read: Gemm,
    lie: tuple[Column, ...],
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    each: tuple[Busiest, Any, Any],
    count: int,
) -> tuple[Any, Any]:
    """Of kernels of warps. lie: `_how_operands_lie`. each: what the busiest SM does, seconds, and those behind the
    kernel."""
    key = read.dtype, read.out, spec
    left, at = trees.left_by_class(c, key, lambda kept: _class_features(kind, kept, read, spec))
    return left, trees.ranks(_sized_features(kind, c, read, lie, spec, sizes, each, count), len(c), at)


def features(
    kind: str,
    c: Columns,
    read: Gemm,
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    seconds: Any,
    finishing: Any = 0.0,
    busiest: Busiest | None = None,
    count: int = 1,
) -> Any:
    """What the trees of `correction` ask about, (plans, features). read: behind the packing. seconds: as estimated, of
    which `finishing` behind the kernel. busiest: of kernels of warps."""
    if busiest is None:
        timed = wgmma_terms.timed(c, read, spec, count)
        sized = wgmma_features.sized_features(c, read, spec, timed, seconds, count)
        return stacked((*wgmma_features.class_features(c, read, spec), *sized), len(c))
    sized = _sized_features(kind, c, read, _how_operands_lie(read), spec, sizes, (busiest, seconds, finishing), count)
    return stacked((*_class_features(kind, c, read, spec), *sized), len(c))


@lru_cache(maxsize=64)
def _how_operands_lie(gemm: Gemm) -> tuple[int, ...]:
    """Whether A and B lie in columns, and bytes that rows of A, B and C are multiples of."""
    aligned = (gcd(gemm.leading(one.name) * one.dtype.bytes, TMA_BYTES) for one in gemm.operands)
    return gemm.a is Order.COL, gemm.b is Order.COL, *aligned


def _class_features(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec) -> tuple[Any, ...]:
    """The first of them: what no size of a problem changes; those of the options of one family last."""
    if kind == "simt":
        return simt_features.class_features(c, gemm, spec)
    per_sm = np.maximum(1, blocks_per_sm(kind, c, gemm, spec))
    tile = np.log2(c.m), np.log2(c.n), c.k * gemm.dtype.bytes, c.warp_m, c.warp_n, c.stages, np.log2(c.cluster_k)
    store, warps = (c.store == "shared") + 2 * (c.store == "quad_shuffle"), warps_of(c)
    return (
        *(*tile, per_sm, np.log2(warps), warps & (warps - 1) > 0, np.log2(accumulators_of(c)), store),
        *(c.double_buffered_fragments, c.in_place_fragments, c.interleaved_copies, c.n_outer, c.persistent),
    )


def _sized_features(
    kind: str,
    c: Columns,
    gemm: Gemm,
    lie: tuple[Column, ...],
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    each: tuple[Busiest, Any, Any],
    count: int,
) -> tuple[Any, ...]:
    """The others. lie: `_how_operands_lie`. each: as `_tiled_ranks`."""
    busiest, seconds, finishing = each
    if kind == "simt":
        return simt_features.sized_features(c, gemm, lie, spec, sizes, busiest, seconds, finishing, count)
    m, n, k = sizes
    tile_m, tile_n = c.m, c.n
    rows, columns = ceil_div(m, tile_m), ceil_div(n, tile_n)
    slots = spec.sm_count * np.maximum(1, blocks_per_sm(kind, c, gemm, spec))
    blocks = rows * columns * parts_of(c) * count
    parts = blocks / (rows * columns * count)
    fill = blocks / slots
    size_bytes = gemm.dtype.bytes
    moved_bytes = count * ((m * k + n * k) * size_bytes + m * n * gemm.out.bytes)
    depth = np.maximum(k, 1)
    return (
        *(c.raster_rows, size_bytes, np.log2(c.split_k), *lie),
        *(np.log2(fill), fill / np.ceil(fill), np.log2(rows), np.log2(columns)),
        *(rows * tile_m / m, columns * tile_n / n, np.log2(m), np.log2(n), np.log2(depth), np.log2(depth / parts)),
        *(np.log2(moved_bytes / spec.l2_bytes), np.log2(seconds)),
        *(
            moved_bytes / (spec.dram_gb_per_s * 1e9) / seconds,
            np.log2(np.maximum(count * gemm.flops, 1) / seconds),
        ),
        log2(count),
        getattr(c, "dependent_launch", 0),
    )


_FUNCTION_K = 400
"""Elements of k whose MMAs take as long as the function of two sums."""


def combining_us(wide: Gemm, spec: DeviceSpec) -> float:
    """Microseconds of a function of two sums, where nothing hides it. wide: the product of both."""
    rate = tensor_rate(wide, spec)
    return _FUNCTION_K * 2 * wide.m * wide.n / (rate * spec.sm_count * spec.tensor_clock_mhz) if rate else 0.0


_BEHIND_ESTIMATES = 1.23
"""Times that products of pieces take of what is estimated, at most, beside the time of reading the pieces, which is as
estimated: f32 arithmetic is as fast as its estimate. H200, NT, estimated and measured TFLOP/s with the pieces side by
side along k: bf16x6 104 and 94 at 4096^3, 118 and 98 at 8192^3, bf16x9 79 and 64 there, tf32x3 125 and 103."""


def most_us_of_pieces(estimated_us: float, pieces: Gemm, spec: DeviceSpec) -> float:
    """What a product of pieces takes at most, by its estimate. pieces: the product."""
    reading_us = min(estimated_us, 1e6 * float(moving(pieces.compulsory_bytes, spec, 0)))
    return reading_us + _BEHIND_ESTIMATES * (estimated_us - reading_us)
