"""How long plans take, by arithmetic over columns: the GEMM kernel by the performance model (docs/model.md), and the
launches around it, which move bytes. The one place where planning and tuning estimate time.

All times are seconds, of a whole table of candidates at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from math import gcd, inf, log2
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.tensor_rate import tensor_rate
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.planning.cost import simt_features, wgmma_features, wgmma_terms
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.correction import FITTED_FOR, Network, fit_for, stacked
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
from tilewright.planning.cost.wgmma_terms import class_of
from tilewright.planning.packing import TMA_BYTES, Packing, behind_packing
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

CORRECTED: Mapping[str, int] = {"wgmma": 512, "mma": 64, "simt": 128}
"""Plans of a problem whose estimates are corrected by measurements: the best by the terms. Of SIMT kernels, whose terms
tell less, the choice of 64 is estimated to take 0.4 % longer than that of all, of 128 0.2 % (80 drawn problems). Those
of wgmma are all that `first_cut` leaves, behind several packings too."""

CLOSE: Mapping[str, float] = {"wgmma": 1.35}
"""Times of the least by the terms that plans take, beyond which a choice does not ask for what measurements add: 150
fresh problems are estimated to take 0.01 % more by 1.35, 0.03 % by 1.25."""


class Estimate(NamedTuple):
    """Seconds of the plans of a table, as the terms say: of the launch that packs, of the GEMM kernel, of what takes
    C from a workspace, of the host for further launches. read: the problem behind the packing. packs: whether A, and B;
    how many it transposes; whether it fills up tiles. timed: what those of wgmma are made of, and of kernels of warps
    what the busiest SM does."""

    columns: Columns
    read: Gemm
    packs: tuple[bool, bool, int, bool]
    sizes: Sizes
    packing: Any
    kernel: Any
    reduced: Any
    more: Any
    timed: Any

    @property
    def own(self) -> Any:
        """Of the kernel and what takes C from a workspace."""
        return self.kernel + self.reduced

    @property
    def launches(self) -> Any:
        """Of all launches, without the host: what sweeps measure."""
        return self.packing + self.own

    @property
    def total(self) -> Any:
        return self.launches + self.more


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
    found = [estimate(kind, c, gemm, spec, around) for c, around in tables]
    is_known = spec.compute_capability == FITTED_FOR and gemm.pieces is None
    network = fit_for(kind, gemm.dtype).network if is_known else None
    most, within = (CORRECTED[kind], CLOSE.get(kind, inf)) if corrected is None else (corrected, inf)
    if network is None or not found or not most:
        return [one.total for one in found]
    return _as_measured(kind, found, gemm, spec, network, tables[0][1].count, (most, within))


def estimate(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, around: Around) -> Estimate:
    """Kernels of a family behind one packing."""
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
    return Estimate(c, read, _packs(packing, gemm, read), sizes, before, kernel, reduced, more, timed)


def _packs(way: Packing, gemm: Gemm, read: Gemm) -> tuple[bool, bool, int, bool]:
    transposes = sum(read.operand(name).order is not gemm.operand(name).order for name in ("A", "B"))
    return "A" in way.packed, "B" in way.packed, transposes, way.tile_multiples


def _as_measured(
    kind: str,
    found: Sequence[Estimate],
    gemm: Gemm,
    spec: DeviceSpec,
    network: Network,
    count: int,
    best: tuple[int, float],
) -> list[Any]:
    """The seconds of plans. `correction` corrects those of all launches together, of the best plans. best: how many,
    and times of the least that they take at most."""
    terms = [one.launches for one in found]
    chosen = least_of(terms, *best)
    asked = [features(kind, one, rows, spec, count) for one, rows in zip(found, chosen, strict=True) if len(rows)]
    if not asked:
        return [one.total for one in found]
    factors = np.exp(network.logarithms(np.concatenate(asked)))
    totals, end = [], 0
    for one, of, rows in zip(found, terms, chosen, strict=True):
        shared = shared_factor(kind, that_share(kind, gemm, one.read), count)
        total = one.more + of
        total[rows] += of[rows] * (shared * factors[end : end + len(rows)] - 1)
        totals.append(total)
        end += len(rows)
    slowest = max(total[rows].max(initial=0.0) for total, rows in zip(totals, chosen, strict=True))
    for total, rows in zip(totals, chosen, strict=True):
        mine = total[rows]
        np.maximum(total, slowest, out=total)
        total[rows] = mine
    return totals


def least_of(seconds: Sequence[Any], most: int, within: float = inf) -> list[Any]:
    """Places of the least of several tables together, as far as they are finite. within: times of the least."""
    together = seconds[0] if len(seconds) == 1 else np.concatenate(seconds)
    best = together.argpartition(most)[:most] if len(together) > most else np.arange(len(together))
    told = together[best]
    best = best[np.isfinite(told) & (told <= within * told.min(initial=inf))]
    best.sort()
    if len(seconds) == 1:
        return [best]
    starts = np.cumsum([0, *map(len, seconds)])
    return [rows - start for rows, start in zip(np.split(best, best.searchsorted(starts[1:-1])), starts, strict=False)]


BY_PACKING = frozenset({"simt"})
"""Families whose network learned from the plans behind each packing by themselves, not beside those behind others."""


def that_share(kind: str, gemm: Gemm, read: Gemm) -> Gemm:
    """The problem whose plans share a factor. read: behind a packing."""
    return read if kind in BY_PACKING else gemm


@lru_cache(maxsize=64)
def shared_factor(kind: str, gemm: Gemm, count: int = 1) -> float:
    """What the times of all plans of a family are multiplied by for a problem, which several choices may ask for."""
    network = fit_for(kind, gemm.dtype).shared
    return 1.0 if network is None else float(np.exp(network.logarithms(problem_features(gemm, count))[0]))


def problem_features(gemm: Gemm, count: int = 1) -> Any:
    """What the network is asked that knows a problem alone, (1, features)."""
    moved_bytes = count * ((gemm.m * gemm.k + gemm.n * gemm.k) * gemm.dtype.bytes + gemm.m * gemm.n * gemm.out.bytes)
    sizes = (log2(max(1, size)) for size in (gemm.m, gemm.n, gemm.k, count * gemm.flops, moved_bytes))
    return np.array([[*sizes, gemm.dtype.bytes, gemm.out.bytes, *_how_operands_lie(gemm), log2(count)]], dtype=float)


def features(kind: str, one: Estimate, rows: Any, spec: DeviceSpec, count: int) -> Any:
    """What the network of a family is asked about some plans of a table, (plans, features): first what no size of a
    problem changes, which a table keeps. count: of a batch."""
    c, read = one.columns[rows], one.read
    packing, reduced, seconds = (
        np.broadcast_to(of, len(one.columns))[rows] for of in (one.packing, one.reduced, one.own)
    )
    key: tuple[Hashable, ...]
    of_class: Callable[[Columns, Gemm, DeviceSpec], tuple[Any, ...]]
    if kind == "wgmma":
        of_class, key = wgmma_features.class_features, ("features", class_of(read), spec)
        sized = wgmma_features.sized_features(c, read, spec, one.timed.at(rows), seconds, packing, count)
        sized = *sized, *one.packs
    else:
        of_class, key = partial(_class_features, kind), ("features", (read.dtype, read.out), spec)
        each = one.timed.at(rows), seconds, reduced, packing
        sized = _sized_features(kind, c, read, spec, one.sizes.at(rows), each, count)
    known = c.fact(key, lambda kept: stacked(of_class(kept, read, spec), len(kept)))
    return np.concatenate([known, stacked(sized, len(c))], axis=1)


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
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    each: tuple[Busiest, Any, Any, Any],
    count: int,
) -> tuple[Any, ...]:
    """The others. each: what the busiest SM does, seconds, those behind the kernel among them, and of the launch that
    packs."""
    busiest, seconds, finishing, packing = each
    lie = _how_operands_lie(gemm)
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
        *(busiest.most, busiest.together, np.minimum(busiest.steps, _MOST_STEPS)),
        *_shares_of_time(busiest, seconds, finishing, 1e6 * spec.tensor_clock_mhz),
        blocks / (spec.sm_count * np.ceil(blocks / spec.sm_count)),
        packing / (packing + seconds),
    )


_MOST_STEPS = 40
"""K tiles of a block up to which a network knows their number; beyond, one more hardly changes a time."""


def _shares_of_time(busiest: Busiest, seconds: Any, finishing: Any, clock_hz: float) -> tuple[Any, ...]:
    """Of a kernel of mma.sync: of k tiles, of what is before and behind them, of exchanged sums, and of the launch that
    takes C from a workspace."""
    steps = busiest.steps * busiest.step * np.ceil(busiest.most / busiest.together)
    return (*(clocks / (seconds * clock_hz) for clocks in (steps, busiest.ends, busiest.exchange)), finishing / seconds)


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
