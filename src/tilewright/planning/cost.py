"""How long plans take, by arithmetic over columns: the GEMM kernel by the performance model (docs/model.md), and the
launches around it, which move bytes. The one place where planning and tuning estimate time.

All times are seconds, of a whole table of candidates at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, log2
from typing import Any

import numpy as np

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels import wgmma
from tilewright.kernels.block_work import Setting
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.kernels.wgmma_steps import reads_orders
from tilewright.model.time import DRAM_SHARE, EARLY_SECONDS, LAUNCH_SECONDS
from tilewright.planning import simt_features, wgmma_cost
from tilewright.planning.block_clocks import blocks_per_sm, sm_clocks
from tilewright.planning.correction import FITTED_FOR, Fit, Trees, fit_for, fitted, stacked
from tilewright.planning.exchange import exchange_clocks, filled_sms, parts_of, shared_out, streams_k
from tilewright.planning.packing import TMA_BYTES, Packing, behind_packing
from tilewright.planning.simt_features import Busiest
from tilewright.planning.wgmma_cost import Timed
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div, round_up

_NARROW: Mapping[int, float] = {16: 1.0, 8: 0.94, 4: 0.65, 2: 0.40}
"""What is left of the speed of an mma.sync kernel whose copies are so many bytes wide, which the model takes for faster
than they are: measured on the H200 with 16-bit operands. Rows at any 2 bytes are loaded element by element."""

SLOW_B = 1.03
"""How much longer than by the model SIMT kernels take that transpose B on its way through shared memory, but for the
time that memory takes. Measured on the H200 in f32, B column-major: 4096^3 takes 2793 us, and 2673 where B was
transposed before; with tiles of 256 x 128, 2819 and 2719. By the model it is 1.9 %
(benchmarks/results/plans_h200.json)."""

_EDGES, _ODD_EDGES = 1.035, 1.1
"""And how much longer where edges are guarded, and where rows of C are stored element by element, guarded or not.
Measured on the H200: 4000^3, 250 k tiles, 2705 us, and 4096^3 2674 for 256; an odd ldc: see `pads_to_tiles`."""

_FAR_BYTES = 256 << 10
"""Rows of B that are as far apart are no faster: 2048 x 151936 x 2048, with rows of 594 KiB, takes 25.3 ms as it lies,
and 25.4 where B was transposed, beside the pre-pass. Rows of 56 KiB (4096 x 14336 x 4096) cost nothing; between these
nothing was measured."""

MORE_LAUNCHES_SECONDS = 1e-6
"""What each further launch costs beside its time on the GPU. The host takes 5 us for it (measured on the H200's host
with cuda.core), and is mostly ahead of the GPU; in a graph it costs nothing."""

_PACKING_LAUNCH_SECONDS = 2.5e-6
"""And a launch that packs operands, or makes pieces or codes of them: the kernel behind it waits for all of it."""

_PACKED_EARLY_SECONDS = 0.6e-6
"""What less than other launches one takes that packs operands, measured in graphs on an H200: 48 problems of 1 to 30 us
took 1.4 us beside the kernel and the bytes that move, where others take 2 (benchmarks/choice_sweep.py)."""

_BETWEEN = 0.955
"""Of the clocks of a SIMT kernel whose copies lie between its k steps, where it transposes both operands on their way:
0.947 to 0.957 in six kernels of 128 x 128 and 96 x 128 without edges (H100). Stores in a row hold up a warp for four
clocks each; of an operand that is not transposed there are a quarter as many."""

_IDLE = 0.05
"""How much longer memory takes for the same bytes if hardly an SM asks for them: to tell apart what is alike."""

_IN_A_ROW = 1.5e-6
"""What `LAUNCH_SECONDS` counts too much where kernels follow each other in a graph: small mma.sync kernels took as much
less than estimated (benchmarks/choice_sweep.py, H200). The estimates of other families are corrected as a whole."""

_MOST_COPIES = 64
"""Of a thread into a stage of mma.sync's ring, from which on a kernel is out of the question: its loop outgrows the
caches of instructions. H100, bf16, 8 x 50265 x 768: 324 us with 64 copies (59 KB of code), 332 with 66 (107 KB), 58
with 36 (28 KB); of 507 plans measured, those with up to 56 take what is estimated (benchmarks/choice_sweep.py)."""

CORRECTED: Mapping[str, int] = {"wgmma": 64, "mma": 64, "simt": 128}
"""Plans of a problem whose estimates are corrected by measurements: the best by the terms. Of SIMT kernels, whose terms
tell less, the choice of 64 is estimated to take 0.4 % longer than that of all, of 128 0.2 % (80 drawn problems)."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """m, n, k of a problem as each kernel finds it: padded to multiples of its tile, or as it is."""

    m: Column
    n: Column
    k: Column

    @classmethod
    def of(cls, gemm: Gemm, c: Any, packing: Packing) -> Sizes:
        if not packing.tile_multiples:
            return cls(gemm.m, gemm.n, gemm.k)
        return cls(round_up(gemm.m, c.m), round_up(gemm.n, c.n), round_up(gemm.k, c.k))

    def at(self, rows: Any) -> tuple[Column, Column, Column]:
        """m, n and k of some kernels."""
        m, n, k = (np.asarray(one) for one in (self.m, self.n, self.k))
        return (m[rows], n[rows], k[rows]) if m.ndim else (self.m, self.n, self.k)

    def tiles(self, c: Any) -> Column:
        """Tiles of C."""
        return ceil_div(self.m, c.m) * ceil_div(self.n, c.n)

    def compulsory_bytes(self, gemm: Gemm) -> Column:
        """Each operand read once and the result written once; read as well where beta is not 0."""
        result = self.m * self.n * gemm.out.bytes * (1 if gemm.beta == 0 else 2)
        return (self.m * self.k + self.k * self.n) * gemm.dtype.bytes + result


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds a kernel: the packing before it, alignments in bytes of A, B and C, problems of a batch."""

    packing: Packing
    a_bytes: int
    b_bytes: int
    c_bytes: int
    count: int

    def row_bytes(self, name: str) -> int:
        """What the kernel may assume of the rows of A, or of B."""
        lies = self.a_bytes if name == "A" else self.b_bytes
        return TMA_BYTES if name in self.packing.packed else min(lies, TMA_BYTES)

    @property
    def loads_bytes(self) -> int:
        """What the kernel may assume of the rows of A and B."""
        return min(self.row_bytes("A"), self.row_bytes("B"))

    @property
    def stores_bytes(self) -> tuple[int, int]:
        """What the kernel may assume of the rows that it writes: of C's, and of those of partial sums in f32."""
        return TMA_BYTES if self.packing.tile_multiples else self.c_bytes, TMA_BYTES


@dataclass(frozen=True, slots=True)
class Estimate:
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
    timed: Timed | Busiest

    @property
    def total(self) -> Any:
        return self.packing + self.kernel + self.reduced + self.more


def plan_seconds(
    kind: str, tables: Sequence[tuple[Columns, Around]], gemm: Gemm, spec: DeviceSpec, *, corrected: int = 0
) -> list[Any]:
    """Of each plan of each table of a family: packing, the kernel, and what takes C from a workspace. Infinite where a
    block does not fit on an SM, or cannot read operands as they lie behind the packing. The host's time for further
    launches counts. corrected: so many of the best of all get what measurements add to the estimate, where there are
    some of the family, 0 for `CORRECTED`; the others follow behind them."""
    found = [_estimate(kind, c, gemm, spec, around) for c, around in tables]
    fit = fit_for(kind, gemm.dtype) if spec.compute_capability == FITTED_FOR and gemm.pieces is None else Fit({})
    if fit.trees is None or not found:
        return [one.total for one in found]
    return _as_measured(kind, found, spec, fit, tables[0][1].count, corrected or CORRECTED[kind])


def _estimate(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, around: Around) -> Estimate:
    packing = around.packing
    sizes = Sizes.of(gemm, c, packing)
    read = behind_packing(gemm, kind, packing)
    timed: Timed | Busiest
    if kind == "wgmma":
        timed = wgmma_cost.timed(c, read, spec, (sizes.m, sizes.n, sizes.k), around.count)
        fits = blocks_per_sm(kind, c, read, spec) > 0
        if not reads_orders(gemm):
            fits = fits & wgmma.reads(c, read)
        kernel = np.where(fits, timed.seconds, np.inf)
    else:
        kernel, timed = kernels_timed(kind, c, read, spec, around, sizes)
        if kind == "mma" and around.loads_bytes < TMA_BYTES and spec.compute_capability == FITTED_FOR:
            kernel = np.where(_copies_of_a_thread(c, gemm, around) < _MOST_COPIES, kernel, np.inf)
    before: Any = 0.0
    if packing.packed:
        before = packing_seconds(kind, c, gemm, spec, packing, around.count)
    parts = c.split_k > 1
    reduced = finishing_seconds(c, sizes, gemm, spec)
    if packing.tile_multiples:
        reduced = np.where(parts, reduced, reduction_seconds(gemm, gemm, spec, 1))
        kernel = np.where(streams_k(c), np.inf, kernel)
    more = (parts | packing.tile_multiples) * MORE_LAUNCHES_SECONDS
    return Estimate(c, read, sizes, before, kernel, reduced, more, timed)


def _copies_of_a_thread(c: Columns, gemm: Gemm, around: Around) -> Any:
    """Into a stage of mma.sync's ring: pieces as wide as the rows of A and of B allow."""
    a_bytes, b_bytes = (around.row_bytes(name) for name in ("A", "B"))
    return (c.m / a_bytes + c.n / b_bytes) * c.k * gemm.dtype.bytes / (WARP_THREADS * warps_of(c))


def _as_measured(kind: str, found: Sequence[Estimate], spec: DeviceSpec, fit: Fit, count: int, most: int) -> list[Any]:
    """The seconds of plans. `correction` corrects those of the kernels with their reduction, of the best plans."""
    assert fit.trees is not None
    terms = [one.kernel + one.reduced for one in found]
    starts = np.cumsum([0, *(len(of) for of in terms)])
    together = np.concatenate([one.packing + of for one, of in zip(found, terms, strict=True)])
    best = np.argpartition(together, most)[:most] if len(together) > most else np.arange(len(together))
    best = np.sort(best[np.isfinite(together[best])])
    ends = np.searchsorted(best, starts)
    chosen = [best[ends[at] : ends[at + 1]] - starts[at] for at in range(len(found))]
    if not len(best):
        return [one.total for one in found]
    kernels = [of[rows] for of, rows in zip(terms, chosen, strict=True)]
    finishing = [
        np.broadcast_to(one.reduced, len(of))[rows] for one, of, rows in zip(found, terms, chosen, strict=True)
    ]
    factor = np.exp(fit.trees.logarithms(_ranks_of(kind, fit.trees, found, chosen, kernels, finishing, spec, count)))
    totals = []
    slower = _MMA_BEHIND_PACKING if kind == "mma" else 1.0
    shared = [shared_factor(kind, one.read, count) * (slower if np.any(one.packing) else 1.0) for one in found]
    for at, (one, rows, kernel) in enumerate(zip(found, chosen, kernels, strict=True)):
        total = one.packing + one.more + terms[at] * shared[at]
        total[rows] += kernel * shared[at] * (factor[ends[at] : ends[at + 1]] - 1)
        totals.append(total)
    slowest = max(np.max(total[rows], initial=0.0) for total, rows in zip(totals, chosen, strict=True))
    for total, rows in zip(totals, chosen, strict=True):
        behind = np.maximum(total, slowest)
        behind[rows] = total[rows]
        total[:] = behind
    return totals


_MMA_BEHIND_PACKING = 1.18
"""Times that kernels of mma.sync, which do not start under the launch that packs, take of what they take alone: 1.02 to
1.42 in 29 problems of three sweeps, 1.18 in the mean; those of wgmma 1.00."""


@lru_cache(maxsize=64)
def shared_factor(kind: str, read: Gemm, count: int = 1) -> float:
    """What the times of all kernels of a family are multiplied by for a problem, which is asked for several times in a
    choice."""
    trees = (fitted(kind) if kind == "gemv" else fit_for(kind, read.dtype)).shared
    if trees is None:
        return 1.0
    return float(np.exp(trees.logarithms(trees.ranks(problem_features(read, count), 1)))[0])


def few_rows(gemm: Gemm) -> Gemm:
    """The problem, or its transpose, whose result has no more rows than columns: to GEMV kernels they are the same."""
    if gemm.m <= gemm.n:
        return gemm
    a, b = gemm.b.other, gemm.a.other
    return Gemm(gemm.n, gemm.m, gemm.k, gemm.dtype, a=a, b=b, out=gemm.out, product=gemm.product)


def problem_features(read: Gemm, count: int = 1) -> tuple[Any, ...]:
    """What the trees ask about that know a problem alone."""
    moved_bytes = count * ((read.m * read.k + read.n * read.k) * read.dtype.bytes + read.m * read.n * read.out.bytes)
    sizes = np.log2(np.maximum(1.0, (read.m, read.n, read.k, count * read.flops, moved_bytes))).tolist()
    return *sizes, read.dtype.bytes, read.out.bytes, *_how_operands_lie(read), log2(count)


def _ranks_of(
    kind: str,
    trees: Trees,
    found: Sequence[Estimate],
    chosen: Sequence[Any],
    seconds: Sequence[Any],
    finishing: Sequence[Any],
    spec: DeviceSpec,
    count: int,
) -> Any:
    """What the trees know of the chosen rows of each table, one behind the other. Where tables have the same rows
    behind several packings, all are asked at once. finishing: of the seconds, those behind the kernels."""
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
        busiest = Busiest.joined([_busiest(one).at(rows) for one, rows in zip(found, chosen, strict=True)])
        each = busiest, np.concatenate(seconds), np.concatenate(finishing)
        return _tiled_ranks(kind, trees, c, read, lies, spec, (m, n, k), each, count)
    told = []
    for one, rows, us, behind in zip(found, chosen, seconds, finishing, strict=True):
        if not len(rows):
            continue
        c, read, sizes = one.columns[rows], one.read, one.sizes.at(rows)
        if isinstance(one.timed, Timed):
            told.append(wgmma_cost.ranks(trees, c, read, spec, sizes, one.timed.at(rows), us, count))
        else:
            each = one.timed.at(rows), us, behind
            told.append(_tiled_ranks(kind, trees, c, read, _how_operands_lie(read), spec, sizes, each, count))
    return np.concatenate(told, axis=1)


def _busiest(one: Estimate) -> Busiest:
    assert isinstance(one.timed, Busiest)
    return one.timed


def _tiled_ranks(
    kind: str,
    trees: Trees,
    c: Columns,
    read: Gemm,
    lie: tuple[Column, ...],
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    each: tuple[Busiest, Any, Any],
    count: int,
) -> Any:
    """Of kernels of warps. lie: `_how_operands_lie`. each: what the busiest SM does, seconds, and those behind the
    kernel."""
    first = c.fact(
        ("ranks", read.dtype, read.out, spec),
        lambda c: np.ascontiguousarray(trees.ranks(_class_features(kind, c, read, spec), len(c)).T),
    )
    sized = _sized_features(kind, c, read, lie, spec, sizes, each, count)
    return np.concatenate([first.T, trees.ranks(sized, len(c), first.shape[1])])


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
        timed = wgmma_cost.timed(c, read, spec, sizes, count)
        sized = wgmma_cost.sized_features(c, read, spec, sizes, timed, seconds, count)
        return stacked((*wgmma_cost.class_features(c, read, spec), *sized), len(c))
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


def kernels_timed(
    kind: str, c: Columns, read: Gemm, spec: DeviceSpec, around: Around, sizes: Sizes
) -> tuple[Any, Busiest]:
    """Seconds of the GEMM kernels of a table, but wgmma's, with parts of split-K, without their reduction; and what the
    busiest SM does. read: behind the packing."""
    per_sm = blocks_per_sm(kind, c, read, spec)
    together = np.maximum(1, per_sm)
    blocks, steps = shared_out(c, sizes.tiles(c), ceil_div(sizes.k, c.k), spec.sm_count * together, around.count)
    parts = c.split_k > 1
    whole_bytes, part_bytes = around.stores_bytes
    stores = np.where(parts, part_bytes, whole_bytes)
    setting = Setting(
        blocks=blocks,
        k_tiles=steps,
        aligned_bytes=around.loads_bytes,
        result_bytes=stores,
        out_bytes=np.where(parts, F32.bytes, read.out.bytes),
    )
    stored = (whole_bytes, read.out.bytes), (part_bytes, F32.bytes)
    sms = filled_sms(c, spec) if kind == "simt" else spec.sm_count  # the other fits know none but these
    most = np.ceil(blocks / sms)
    clocks, step, ends = sm_clocks(kind, c, read, spec, setting, most, together, stored)
    exchange = exchange_clocks(c, together)
    clocks = clocks + np.ceil(blocks / (sms * together)) * exchange
    idle = np.maximum(0.0, 1 - blocks / spec.sm_count)
    moved_bytes = around.count * sizes.compulsory_bytes(read) * (1 + _IDLE * idle)
    if kind == "simt" and read.a is Order.ROW and read.b is Order.COL:
        clocks = clocks * np.where(c.interleaved_copies, _BETWEEN, 1.0)
    clock_hz = 1e6 * (spec.tensor_clock_mhz if kind == "mma" else spec.boost_clock_mhz)
    seconds = np.maximum(clocks / clock_hz, moved_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)) + LAUNCH_SECONDS
    if kind == "mma":
        seconds = (
            LAUNCH_SECONDS - _IN_A_ROW + (seconds - LAUNCH_SECONDS) / _NARROW[max(around.loads_bytes, read.dtype.bytes)]
        )
    else:
        seconds = seconds + _simt_share(c, read, sizes, stores) * np.maximum(0.0, seconds - moving(moved_bytes, spec))
    at_once = np.maximum(1, np.minimum(together, most))
    return np.where(per_sm > 0, seconds, np.inf), Busiest(blocks, most, at_once, steps, step, ends, exchange)


def _simt_share(c: Any, read: Gemm, sizes: Sizes, stores: Column) -> Any:
    """By how much longer SIMT kernels take than by the model, but for the time that memory takes."""
    far = (read.b is Order.COL) | (np.maximum(read.ldb, sizes.n) * read.dtype.bytes >= _FAR_BYTES)
    whole = (sizes.m % c.m == 0) & (sizes.n % c.n == 0) & (sizes.k % c.k == 0)
    edges = np.where(stores < TMA_BYTES, _ODD_EDGES, np.where(whole, 1.0, _EDGES))
    return np.where(far, SLOW_B, 1.0) * edges - 1


def packing_seconds(kind: str, c: Any, gemm: Gemm, spec: DeviceSpec, packing: Packing, count: int = 1) -> Any:
    """Of the launch that packs operands, of each of `count` problems."""
    sizes = Sizes.of(gemm, c, packing)
    elements: Any = 0
    length = {"m": sizes.m, "n": sizes.n, "k": sizes.k}
    for name in packing.packed:
        operand = gemm.operand(name)
        elements = elements + length[operand.strided] * length[operand.contiguous]
    size_bytes = 2 * count * elements * gemm.dtype.bytes
    more = -_PACKED_EARLY_SECONDS if spec.compute_capability == FITTED_FOR else _PACKING_LAUNCH_SECONDS
    return moving(size_bytes, spec, bool(packing.packed)) + bool(packing.packed) * more


def finishing_seconds(c: Any, sizes: Any, gemm: Gemm, spec: DeviceSpec) -> Column:
    """Of the launch that adds up the parts of split-K, or of the one that clears the flags of stream-K."""
    found = np.where(c.split_k > 1, reduction_seconds(sizes, gemm, spec, c.split_k), 0.0)
    return found + streams_k(c) * launch_seconds(spec)


def reduction_seconds(sizes: Any, gemm: Gemm, spec: DeviceSpec, parts: Column) -> Any:
    """Of the launch that adds up the parts of split-K, or takes C from a padded result."""
    return moving((parts * F32.bytes + gemm.out.bytes) * sizes.m * sizes.n, spec, 1)


def launch_seconds(spec: DeviceSpec) -> float:
    """Of a kernel with dependent launch, where the device has it."""
    return LAUNCH_SECONDS - (EARLY_SECONDS if spec.compute_capability >= SINCE[Feature.DEPENDENT_LAUNCH] else 0.0)


def around_us(size_bytes: int, spec: DeviceSpec, *, packs: bool = False) -> float:
    """Microseconds of one launch around a product, with what a further launch costs. packs: it copies operands."""
    more = _PACKING_LAUNCH_SECONDS if packs else MORE_LAUNCHES_SECONDS
    return 1e6 * (float(moving(size_bytes, spec)) + more)


def moving(size_bytes: Any, spec: DeviceSpec, launches: int = 1) -> Any:
    """Of launches that only move bytes; what lies in L2 is no faster than memory for so simple a kernel."""
    return launches * launch_seconds(spec) + size_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)
