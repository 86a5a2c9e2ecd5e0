"""Which plans could compute a problem, the most promising first: the analytical choice.

The likely kernels of a family, of all with every count of split-K, are priced at once by `cost`, with their options;
plans are made of the rows that are asked for. A choice takes one to three milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial, reduce
from itertools import accumulate, chain
from math import inf
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import FP8_FORMATS
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Columns, distinct
from tilewright.kernels.configuration import row_of, rows_of
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.spaces import legal_parts, space
from tilewright.kernels.tile_sizes import CLUSTER_SIZES_ALONG_K
from tilewright.kernels.wgmma_steps import function_registers, reads_orders, tma_stores
from tilewright.planning.candidates import (
    CLUSTERS_ALONG_K,
    CLUSTERS_OF_PIECES,
    candidates,
    families,
    families_for,
    leaves_first,
    other_options,
    promoted,
    table_of,
    with_simt_options,
)
from tilewright.planning.clusters import in_clusters
from tilewright.planning.cost.correction import FITTED_FOR, fit_for
from tilewright.planning.cost.first_cut import KERNELS, PLANS, likely_kernels, likely_plans, with_likelihood
from tilewright.planning.cost.gemv import gemv_plan_seconds
from tilewright.planning.cost.groups import several_seconds
from tilewright.planning.cost.launches import Around, moving, packing_seconds
from tilewright.planning.cost.plans import plan_seconds
from tilewright.planning.cost.promising import promising
from tilewright.planning.cost.warp_terms import least_seconds
from tilewright.planning.cost.wgmma_terms import class_of, reads_pieces
from tilewright.planning.packing import TMA_BYTES, Alignment, Packing, Stack, behind_packing, ways_to_pack
from tilewright.planning.raster import first_out, goes_back
from tilewright.planning.sharing import most_parts, sharing_k, streaming_k, streaming_waves, with_split_k
from tilewright.planning.skinny import skinny_for
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.quantization import BLOCK
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner


class Database(Protocol):
    """Plans that were measured."""

    def winner(self, device: str, gemm: Gemm, alignment_bytes: int, order: str | None = None) -> Winner | None:
        """What won on a device, by its driver's name for it; None if nobody tuned the problem.

        order: only kernels of this reduction order, by its name.
        """
        ...


_SMALL_PRODUCTS, _SMALL_BYTES = 64_000_000, 4 << 20
"""Products, and bytes of the matrices, up to which mma.sync may be faster than wgmma. H200, bf16, operands that TMA
reads: 784 x 32 x 136 takes 2.1 us and 2.5, 112 x 40 x 920 3.2 and 3.6, but 1112 x 536 x 112 3.9 and 3.4
(benchmarks/choice_sweep.py --families mma)."""

_SKINNY, _SMALL_TRANSPOSED = 128, 4
"""Where tf32 operands are transposed on their way: the least of m, n and k up to which mma.sync may be faster than
wgmma, and times of small problems."""

_NEAR = 1.1
"""Times of the time of memory, up to which no other family is faster."""

_FEW, _MANY = 4, 64
"""Entries of a ranking that are made one by one, and how many at once after them."""

_CORRECTED = 4000
"""Of the whole space, plans whose estimates are corrected by measurements: more than anybody measures."""


class Priced(NamedTuple):
    """Candidates of one family behind one packing, with the seconds of each."""

    kind: str
    columns: Columns
    packing: Packing
    seconds: Any


class Ranking(Sequence[tuple[float, PlanConfig]]):
    """Plans with their estimated microseconds, best first. An entry is made when it is asked for."""

    def __init__(self, tables: Sequence[Priced]) -> None:
        self.tables = tuple(tables)
        self._seconds = np.concatenate([table.seconds for table in tables]) if tables else np.zeros(0)
        self._starts = np.array(list(accumulate((len(table.seconds) for table in tables), initial=0)))

    @cached_property
    def _order(self) -> Any:
        """Places in `seconds`, the least first, without those that are infinite."""
        return np.argsort(self._seconds, kind="stable")[: int(np.isfinite(self._seconds).sum())]

    @property
    def priced(self) -> int:
        """Candidates that were looked at."""
        return len(self._seconds)

    def __len__(self) -> int:
        return len(self._order)

    def of_each_table(self, most: int) -> list[tuple[float, PlanConfig]]:
        """At most so many plans, best first: as many of each family and packing, as far as they have them."""
        share = most // max(1, len(self.tables))
        table = np.searchsorted(self._starts, self._order, side="right") - 1
        places = [np.flatnonzero(table == number)[:share] for number in range(len(self.tables))]
        return self._made(np.sort(np.concatenate(places))) if places else []

    def drawn(self, count: int, seed: int, spread: float = 0.1) -> list[tuple[float, PlanConfig]]:
        """Plans near the best, drawn at random: what a fit of the estimates learns from. Of each tile, cluster and
        split one, with options at random. spread: of the logarithms of the times that the draw orders plans by."""
        rng = np.random.default_rng(seed)
        told = np.log(self._seconds[self._order]) + rng.normal(0.0, spread, len(self._order))
        found: dict[object, tuple[float, PlanConfig]] = {}
        for at in np.argsort(told, kind="stable"):
            one = self[int(at)]
            found.setdefault(core_of(one[1]), one)
            if len(found) >= count:
                break
        return list(found.values())

    @overload
    def __getitem__(self, index: int) -> tuple[float, PlanConfig]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[float, PlanConfig]]: ...
    def __getitem__(self, index: int | slice) -> tuple[float, PlanConfig] | list[tuple[float, PlanConfig]]:
        if isinstance(index, slice):
            return self._made(np.arange(*index.indices(len(self))))
        return self._made(np.array([index]))[0]

    def __iter__(self) -> Iterator[tuple[float, PlanConfig]]:
        """The first few one by one: hardly anybody asks for more. The first needs no order of the others."""
        least = int(self._seconds.argmin()) if len(self._seconds) else 0
        if not len(self._seconds) or not np.isfinite(self._seconds[least]):
            return
        yield from self._of_places(np.array([least]))
        for start in chain(range(1, min(_FEW, len(self))), range(_FEW, len(self), _MANY)):
            yield from self[start : start + (1 if start < _FEW else _MANY)]

    def _made(self, places: Any) -> list[tuple[float, PlanConfig]]:
        """The plans at some places of the order, an array."""
        return self._of_places(self._order[places])

    def _of_places(self, at: Any) -> list[tuple[float, PlanConfig]]:
        """The plans at some places of `seconds`, an array."""
        table = self._starts.searchsorted(at, side="right") - 1
        found: dict[int, tuple[float, PlanConfig]] = {}
        for number in distinct(table).tolist():
            rows = at[table == number]
            told = self.tables[number]
            inside = rows - self._starts[number]
            if len(inside) == 1:
                kernels = [row_of(told.kind, told.columns, int(inside[0]))]
            else:
                kernels = rows_of(told.kind, told.columns, inside)
            us = (self._seconds[rows] * 1e6).tolist()
            plans = (PlanConfig(kernel, *told.packing) for kernel in kernels)
            found |= dict(zip(rows.tolist(), zip(us, plans, strict=True), strict=True))
        return [found[row] for row in at.tolist()]


def core_of(config: PlanConfig) -> tuple[object, ...]:
    """What makes most of a plan's speed: all but the options of an epilogue, a raster or a launch."""
    kernel = config.kernel
    around = (kernel.kind, kernel.split_k, config.packed, config.transposed, config.tile_multiples)
    blocks = ("tile", "consumers", "ping_pong", "cluster", "cluster_k", "persistent", "stream_k")
    names = (*blocks, "swap_ab", "left_in_registers", "warp_tile", "lanes_m")
    return (*around, *(getattr(kernel, name, None) for name in names))


def ranked(
    gemm: Gemm,
    spec: DeviceSpec,
    alignment: Alignment,
    *,
    keep_order: bool = False,
    stack: Stack | None = None,
    promote_every: int = 0,
    cluster_k: tuple[int, ...] | None = None,
    corrected: int | None = None,
) -> Ranking:
    """Plans of GEMM kernels, best first: of kernels of wgmma those of the most likely ones, with every option.

    keep_order: no split-K. stack: where the problem is one of a batch. promote_every: of kernels that promote their
    accumulators; 0 for others. cluster_k: sizes of clusters that share the sum over k; None: `CLUSTERS_ALONG_K` where
    estimates know them. corrected: kernels that are looked at, and plans whose estimates measurements correct; None: as
    many as a choice needs.
    """
    tables: list[Priced] = []
    count = 1 if stack is None else stack.count
    around_it = partial(proposed, keep_order=keep_order, stack=stack, promote_every=promote_every, cluster_k=cluster_k)
    for kind in families(gemm, spec):
        if tables and not _may_be_worth_warps(tables, gemm, spec, min(alignment.a, alignment.b, TMA_BYTES), count):
            break
        # Behind a launch that packs, kernels of wgmma are as fast as others.
        found = around_it(kind, gemm, spec, alignment, as_they_lie=bool(tables))
        if found is None:
            continue
        if kind == "wgmma":
            behind = likely_behind_each(found, gemm, spec, alignment, count, corrected)
        else:
            within = inf if keep_order else _best_alone(tables)
            kernels = _promising(kind, found, gemm, spec, alignment, count, within, corrected)
            behind = [(kernels, way) for way in found.ways]
        tables += _priced(kind, behind, gemm, spec, alignment, count, corrected=corrected)
    return Ranking(tables)


class Proposed(NamedTuple):
    """Kernels of a family, alone and with every count of split-K, that come into question for a problem. ends: of the
    tables that they are of, one behind the other. ways: to pack before them."""

    kernels: Columns
    ends: Sequence[int]
    ways: Sequence[Packing]


def proposed(
    kind: str,
    gemm: Gemm,
    spec: DeviceSpec,
    alignment: Alignment,
    *,
    keep_order: bool = False,
    stack: Stack | None = None,
    promote_every: int = 0,
    cluster_k: tuple[int, ...] | None = None,
    as_they_lie: bool = False,
) -> Proposed | None:
    """What `ranked` chooses from, of one family; None where there is nothing. as_they_lie: without packing, where that
    is possible."""
    count = 1 if stack is None else stack.count
    found = {kind: table_of(kind, gemm, spec, count)}
    table = (promoted(found, promote_every, gemm) if promote_every else found).get(kind)
    if table is None:
        return None
    ways = packings_for(kind, gemm, alignment, stack)
    if kind == "simt" and len(ways) > 1:
        ways = [way for way in ways if _may_pay(way, gemm, spec, count)]
    elif as_they_lie:
        ways = [way for way in ways if not way.packed] or ways
    if len(ways) == 1 and kind == "wgmma" and not reads_orders(gemm):
        table = table[_that_read(table, ways[0], gemm)]
    whole = keep_order or stack is not None
    most = None if whole else most_parts(kind, table, gemm, spec)
    sources = [table if most is None else with_split_k(kind, table, most, gemm, spec)]
    fitted_here = spec.compute_capability == FITTED_FOR and fit_for(kind, gemm.dtype).network is not None
    swept = gemm.block_scales is None and (not promote_every or gemm.dtype in FP8_FORMATS)
    known = fitted_here and swept and (gemm.pieces is None or reads_pieces(gemm, spec))
    sizes = CLUSTERS_ALONG_K if gemm.pieces is None else CLUSTERS_OF_PIECES
    sizes = (sizes if known else ()) if cluster_k is None else cluster_k
    sources += [] if whole else _in_clusters_along_k(kind, table, ways, gemm, spec, sizes, most)
    sources += streaming_k(table, gemm, spec) if kind == "simt" and known and not whole else []
    if kind == "wgmma":
        sources = [_that_tma_can_serve(rows, gemm, alignment, stack) for rows in sources]
    sources = [rows for rows in sources if len(rows)]
    if not sources:
        return None
    return Proposed(reduce(Columns.beside, sources), list(accumulate(map(len, sources))), ways)


def _promising(
    kind: str,
    found: Proposed,
    gemm: Gemm,
    spec: DeviceSpec,
    alignment: Alignment,
    count: int,
    within: float,
    most: int | None,
) -> Columns:
    """The kernels of warps that are priced. within: seconds of the best plan of another family. most: how many; None:
    as many as a choice needs."""
    if spec.compute_capability != FITTED_FOR:
        return found.kernels
    ends = found.ends[-1:] if kind == "simt" else found.ends
    loads_bytes = min(alignment.a, alignment.b, TMA_BYTES)
    limits = {} if most is None else {"most": most}
    kernels = found.kernels[promising(kind, found.kernels, ends, gemm, spec, loads_bytes, count, within, **limits)]
    return with_simt_options(kernels, gemm, spec, count) if kind == "simt" else kernels


def _in_clusters_along_k(
    kind: str, table: Columns, ways: Sequence[Packing], gemm: Gemm, spec: DeviceSpec, sizes: tuple[int, ...], most: Any
) -> list[Columns]:
    """Kernels of a table whose clusters share the sum over k. sizes: of clusters. Where wgmma reads operands behind
    packings alone, those that are legal behind each."""
    reads = [gemm] if kind != "wgmma" or reads_orders(gemm) else [behind_packing(gemm, kind, way) for way in ways]
    return [one for read in reads for one in sharing_k(kind, table, read, spec, sizes, most)]


def _may_pay(way: Packing, gemm: Gemm, spec: DeviceSpec, count: int) -> bool:
    """Whether a launch that packs operands of FMA kernels may take less than it wins."""
    packing = packing_seconds("simt", None, gemm, spec, way._replace(tile_multiples=False), count)
    return not way.packed or packing <= _MOST_PACKED * count * least_seconds(gemm, spec)


_MOST_PACKED = 0.25
"""Of the least time that arithmetic and memory leave a product, what packing may take. Where the launch took 0.2 of it
or less, FMA kernels behind it were the fastest in 62 of 126 problems, by up to 48 %; beyond in one of 147, by 4 %
(H100, benchmarks/choice_sweep.py)."""


def _best_alone(tables: Sequence[Priced]) -> float:
    """Seconds of the best plan of one launch, which every call can take."""
    alone = (np.where(one.columns.split_k == 1, one.seconds, inf) for one in tables if not one.packing.packed)
    return min((float(seconds.min(initial=inf)) for seconds in alone), default=inf)


def _may_be_worth_warps(tables: Sequence[Priced], gemm: Gemm, spec: DeviceSpec, loads_bytes: int, count: int) -> bool:
    """Whether mma.sync, or FMAs for what it does not multiply, may be faster than wgmma, whose plans are priced, and of
    which the best takes longer than memory: where wgmma reads operands as they lie, small problems only; where some is
    transposed, also what reads more than it computes."""
    products, moved_bytes, small = gemm.m * gemm.n * gemm.k, gemm.compulsory_bytes, 1
    best_seconds = min(one.seconds.min(initial=inf) for one in tables)
    if count * moved_bytes > _SMALL_BYTES and best_seconds <= _NEAR * moving(count * moved_bytes, spec):
        return False
    if reads_orders(gemm):
        served = any(not one.packing.packed for one in tables)
    else:
        few = min(gemm.m, gemm.n, gemm.k) <= _SKINNY
        served, small = gemm.multiplies_tf32 and loads_bytes == TMA_BYTES and not few, _SMALL_TRANSPOSED
    if not served:
        return True
    is_small = count * products <= small * _SMALL_PRODUCTS and count * moved_bytes <= small * _SMALL_BYTES
    return spec.compute_capability == FITTED_FOR and is_small


def _priced(
    kind: str,
    found: Sequence[tuple[Columns, Packing]],
    gemm: Gemm,
    spec: DeviceSpec,
    alignment: Alignment,
    count: int = 1,
    *,
    corrected: int | None = None,
) -> list[Priced]:
    """Tables of one family, each behind a packing, with the seconds of each plan."""
    told = [(rows, Around(way, alignment.a, alignment.b, alignment.c, count)) for rows, way in found if len(rows)]
    seconds = plan_seconds(kind, told, gemm, spec, corrected=corrected)
    return [Priced(kind, rows, around.packing, of) for (rows, around), of in zip(told, seconds, strict=True)]


def behind_each(found: Proposed, gemm: Gemm) -> list[tuple[Columns, Packing]]:
    """Kernels of wgmma behind each packing: those that read the operands as they lie then."""
    if len(found.ways) == 1 or reads_orders(gemm):
        return [(found.kernels, way) for way in found.ways]
    return [(found.kernels[_that_read(found.kernels, way, gemm)], way) for way in found.ways]


def likely_behind_each(
    found: Proposed, gemm: Gemm, spec: DeviceSpec, alignment: Alignment, count: int, most: int | None = None
) -> list[tuple[Columns, Packing]]:
    """The plans of wgmma that are priced, behind each packing: of the likely kernels the likely clusters and options.
    most: kernels, and plans; None: as many as a choice needs."""
    kernels, plans = (most, _OPTIONS * most) if most else (KERNELS, PLANS)
    kept = []
    for c, way in behind_each(found, gemm):
        read = behind_packing(gemm, "wgmma", way)
        c = in_clusters(c[likely_kernels(c, read, spec, count, kernels)], gemm, spec, count)
        around = Around(way, alignment.a, alignment.b, alignment.c, count)
        by_terms = partial(_seconds_by_terms, gemm=gemm, spec=spec, around=around)
        c = other_options(with_likelihood(c, read, spec, count, by_terms), gemm, count)
        kept.append((c[likely_plans(c, gemm, plans)], way))
    return kept


def _seconds_by_terms(c: Columns, gemm: Gemm, spec: DeviceSpec, around: Around) -> Any:
    return plan_seconds("wgmma", [(c, around)], gemm, spec, corrected=0)[0]


_OPTIONS = 8
"""Plans of a kernel in its clusters, as far as they are priced where more are asked for than a choice needs."""


def _that_read(c: Columns, way: Packing, gemm: Gemm) -> Any:
    """Places of the wgmma kernels that read the operands as they lie behind a packing."""
    read = behind_packing(gemm, "wgmma", way)
    return np.flatnonzero(c.fact(("reads", read.a, read.b), lambda kept: wgmma.reads(kept, read)))


def whole_space(
    gemm: Gemm,
    spec: DeviceSpec,
    alignment: Alignment,
    *,
    family: str | None = None,
    stack: Stack | None = None,
    packing: Packing | None = None,
    promote_every: int = 0,
) -> Ranking:
    """Plans of every legal kernel of a family, or of all families that `ranked` draws from, best first. stack,
    promote_every: as for `ranked`. packing: the only one before them; None: each of `packings_for`."""
    tables: list[Priced] = []
    count = 1 if stack is None else stack.count
    kinds = families(gemm, spec) if family is None else families_for(gemm, spec, family)
    for kind in kinds:
        found = []
        for way in packings_for(kind, gemm, alignment, stack) if packing is None else (packing,):
            read = behind_packing(gemm, kind, way)
            legal = space(kind, read)
            if promote_every:
                legal = promoted({kind: legal}, promote_every, read).get(kind, legal[:0])
            rows, clusters = legal, list[Columns]()
            if stack is None:
                rows = with_split_k(kind, legal, most_parts(kind, legal, gemm, spec), gemm, spec)
                rows = rows[(rows.split_k == 1) | legal_parts(kind, rows, read)]
                clusters = sharing_k(kind, legal, read, spec, CLUSTER_SIZES_ALONG_K[1:])
                clusters += streaming_k(legal[legal.raster_rows == 1], read, spec) if kind == "simt" else []
                clusters += [streaming_waves(legal, read, spec)] if kind == "wgmma" else []
            if kind == "wgmma":
                rows = _that_tma_can_serve(rows, gemm, alignment, stack)
                both = (rows, *clusters)
                rows, *clusters = (
                    of.with_columns(
                        evict_first=first_out(of, leaves_first(of, read, count), read, spec),
                        serpentine=1 * goes_back(of, read, spec),
                    )
                    for of in both
                )
            found += [(of, way) for of in (rows, *clusters)]
        tables += _priced(kind, found, gemm, spec, alignment, count, corrected=_CORRECTED)
    return Ranking(tables)


def packings_for(kind: str, gemm: Gemm, alignment: Alignment, stack: Stack | None = None) -> list[Packing]:
    """What may be packed before kernels of a family; of a batch, without padding to tile multiples."""
    return [way for way in ways_to_pack(kind, gemm, alignment) if not (way.tile_multiples and stack is not None)]


def estimate_us(
    config: PlanConfig, gemm: Gemm, spec: DeviceSpec, alignment: Alignment, stack: Stack | None = None
) -> float:
    """Microseconds of one plan; infinite where its kernel does not fit on the device."""
    count = 1 if stack is None else stack.count
    kernel = config.kernel
    if isinstance(kernel, GemvConfig):
        skinny = skinny_for(gemm, alignment, None, stack, parts=kernel.split_k)
        if skinny is None:
            return inf
        return 1e6 * gemv_plan_seconds(skinny.config, gemm, spec, count)
    table = Columns.of([kernel], kernel.columns)
    packing = Packing(config.packed, config.transposed, config.tile_multiples)
    around = Around(packing, alignment.a, alignment.b, alignment.c, count)
    (seconds,) = plan_seconds(kernel.kind, [(table, around)], gemm, spec)
    return float(seconds[0]) * 1e6


def _that_tma_can_serve(c: Columns, gemm: Gemm, alignment: Alignment, stack: Stack | None) -> Columns:
    """The wgmma kernels that can run where operands lie so, with registers for the epilogue; those that hold pairs, or
    columns that are folded, and that find the scales of blocks of C."""
    if function_registers(gemm) or {"m", "n"} <= {*gemm.epilogue.scale}:
        key = "registers", function_registers(gemm), gemm.epilogue.scale, class_of(gemm)
        told = c.with_facts(key, lambda kept: {"has_registers": wgmma.has_registers(kept, gemm)})
        c = c[told.has_registers > 0]
    if gemm.epilogue.scales is not None:
        c = c[c.n % BLOCK == 0]
    if gemm.epilogue.scales is not None or gemm.epilogue.has_pairs or _folds_columns(gemm):
        c = c[(c.swap_ab > 0) == (gemm.c is Order.COL)]
    # Matrices of a batch follow each other, or all of its problems read one.
    loads = gemm.k > 0 and (stack is None or min(stack.a, stack.b) >= 0)
    stores = not tma_stores(gemm) or (alignment.c >= TMA_BYTES and (stack is None or stack.c > 0))
    if loads and stores:
        return c
    return c[loads & (stores | np.logical_not(wgmma.stages_result(c, gemm)))]


def _folds_columns(gemm: Gemm) -> bool:
    """Whether an epilogue folds along the dimension in which C is not contiguous."""
    along = gemm.operand("C").contiguous
    return any(one.fold is not None and not one.fold.whole and one.along == along for one in gemm.epilogue.written)


def ranked_for_group(gemms: Sequence[Gemm], spec: DeviceSpec) -> list[tuple[float, PlanConfig]]:
    """Plans for problems that one launch computes with their estimated microseconds, best first."""
    found: list[tuple[float, PlanConfig]] = []
    for kind, c in candidates(gemms[0], spec).items():
        if kind == "wgmma":
            continue  # wherever each of them begins
        us = 1e6 * several_seconds(kind, c, gemms, spec)
        fits: Any = np.flatnonzero(np.isfinite(us))
        found += zip(us[fits].tolist(), map(PlanConfig, rows_of(kind, c, fits)), strict=True)
    return sorted(found, key=lambda entry: entry[0])
