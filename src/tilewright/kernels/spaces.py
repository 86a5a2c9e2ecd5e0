"""Every configuration of a family that is legal for a problem, as columns: ranges and laws, no lists of tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import F32
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.kernels import mma, simt, wgmma
from tilewright.kernels.columns import Column, Columns, legal
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.kernels.wgmma_scales import fragments_of
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES, reads_orders, stages_c, tma_stores
from tilewright.kernels.work import is_misaligned
from tilewright.layout.fragment import MATRIX_ROW_BYTES
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reduction import row_of_parts


def space(kind: str, gemm: Gemm) -> Columns:
    """The legal configurations of a family, without split-K. gemm: as the kernel finds it, behind packing."""
    return _SPACES[kind](gemm)


def legal_parts(kind: str, columns: Columns, gemm: Gemm) -> Any:
    """Which configurations can write the parts of split-K, aligned rows of f32, in the place of a problem's C."""
    part = replace(gemm, out=F32, ldc=row_of_parts(gemm.n), epilogue=PLAIN, ld_added=(), numbers=())
    return legal(_LAWS[kind], columns, part)


def product(**choices: Any) -> Columns:
    """Every combination of some values, as columns.

    >>> product(m=(64, 128), n=range(8, 25, 8)).n.tolist()
    [8, 16, 24, 8, 16, 24]
    """
    grids = np.meshgrid(*(np.array(tuple(values)) for values in choices.values()), indexing="ij")
    return Columns({name: grid.reshape(-1) for name, grid in zip(choices, grids, strict=True)})


def joined(*tables: Columns) -> Columns:
    """The rows of several tables of the same columns."""
    return Columns({name: np.concatenate([getattr(table, name) for table in tables]) for name in tables[0].names})


def _wgmma(gemm: Gemm) -> Columns:
    """Every tile with every option."""
    staged = stages_c(gemm)
    options: dict[str, Any] = {
        "staged": (0, 1) if staged else (0,),
        "subtile_stages": (2, 1) if staged else (2,),
        "dependent_launch": (1, 0),
        "raster_rows": (1, 4, 16),
    }
    c = _wgmma_tiles(gemm, options)
    c = c[(c.persistent == 0) | (c.raster_rows > 1)]
    return c[(c.subtile > 0) | (c.subtile_stages == 2)]


_CORES: dict[Any, Columns] = {}


def with_cluster_k(kind: str, c: Columns, gemm: Gemm, blocks: Any) -> Columns:
    """The legal kernels that share the sum over k in a cluster of so many blocks, a column; those of wgmma with the
    deepest ring beside the sums that are exchanged. Threads of SIMT kernels store what they own of a tile, columns one
    by one where rows are unaligned."""
    c = c.with_columns(cluster_k=blocks)
    if kind == "simt":
        alone = np.where(c.store == "shared", 1, c.columns_together)
        c = c.with_columns(columns_together=alone, store=np.full(len(c), "per_thread"))
    if kind == "wgmma":
        c = c.with_columns(stages=wgmma.deepest_ring(c, c.blocks))
    c = c[np.flatnonzero(legal(_LAWS[kind], c, gemm))]
    if kind == "wgmma":
        c = c.with_columns(per_sm=wgmma.blocks_per_sm(c), shared_bytes=wgmma.plain_bytes(c))
    return Columns({name: getattr(c, name) for name in c.names})  # not of the table that is kept


def wgmma_core(gemm: Gemm) -> Columns:
    """Every tile, cluster and schedule of tiles; a persistent kernel stages C where that is possible, or, if its
    elements have 4 bytes, may. What is legal depends on formats and orders alone; a table of each is kept."""
    cut = tma_stores(gemm) and is_misaligned(gemm, "C")
    key = (gemm.dtype, gemm.product, gemm.out, gemm.a, gemm.b, gemm.c, gemm.pieces, tma_stores(gemm), cut)
    found = _CORES.get(key)
    if found is not None:
        return found
    # Laws of scales of blocks are asked of kernels that promote, those of an epilogue when it is there (`ranking`).
    gemm = replace(gemm, block_scales=None, epilogue=PLAIN, ld_added=(), numbers=(), beta=0.0)
    orders = [(gemm.a, gemm.b)]
    if not reads_orders(gemm):  # packing transposes what is not along k, or leaves what is read through registers
        orders = [(Order.ROW, Order.COL)]
        if gemm.multiplies_tf32:
            orders += [(Order.ROW, Order.ROW)] * (gemm.b is Order.ROW)
            orders += [(Order.COL, Order.COL)] * (gemm.a is Order.COL)
    tables = [_own_core(replace(gemm, a=a, b=b, lda=0, ldb=0), cut=cut) for a, b in orders]
    found = _CORES[key] = joined(*tables) if len(tables) > 1 else tables[0]
    return found


def _own_core(gemm: Gemm, *, cut: bool) -> Columns:
    """Those for operands that lie as they are read. cut: rows of C begin inside sectors."""
    staged = (0, 1) if stages_c(gemm) else (0,)
    options = {"staged": staged, "subtile_stages": (2,), "dependent_launch": (0,), "raster_rows": (1,)}
    c = with_long_rows(_wgmma_tiles(gemm, options), gemm)
    c = _with_widest_rows(c, gemm) if cut or not tma_stores(gemm) else c
    if gemm.out.bytes < F32.bytes:  # of 4 bytes large tiles have no room beside a long k
        c = c[c.staged >= c.persistent * max(staged)]
    return c.with_columns(per_sm=wgmma.blocks_per_sm(c, gemm), shared_bytes=wgmma.plain_bytes(c, gemm))


_LONG_ROW_BYTES = 64
"""Of an epilogue subtile: two sectors."""


def with_long_rows(c: Columns, gemm: Gemm) -> Columns:
    """Two stages of epilogue subtiles whose rows are a sector become one stage of rows twice as long. H100, bf16, dense
    problems in bursts: one of 32 columns takes 1.7 % less than two of 16 in the mean of 17 pairs of kernels, in none
    more; two of 32 take what one of 64 takes (record 0054)."""
    short = (2 * c.subtile * gemm.out.bytes == _LONG_ROW_BYTES) & (c.subtile_stages == 2) & (2 * c.subtile <= c.n)
    longer = c.with_columns(
        subtile=np.where(short, 2 * c.subtile, c.subtile), subtile_stages=np.where(short, 1, c.subtile_stages)
    )
    spills = np.logical_not(wgmma.has_registers(longer, gemm))
    names = ("subtile", "subtile_stages")
    return c.with_columns(**{name: np.where(spills, getattr(c, name), getattr(longer, name)) for name in names})


_STORED_BYTES = 2 * SWIZZLE_ATOM_BYTES
"""Of a row of a subtile that warps store: 128 x 256 with two stages of 128 columns takes 0.75 to 0.97 of the time of
two of 64, 0.89 in the mean of ten problems with unaligned C of bf16 and f16 (H200, record 0109)."""


def rows_of_warps(columns: Column, gemm: Gemm) -> Column:
    """The longest rows of an epilogue subtile, of at most so many columns, that warps read from shared memory without
    bank conflicts, as stmatrix fills them: whole swizzle atoms, or an odd number of 16 bytes; 0 for none.

    >>> from tilewright.dtypes import BF16
    >>> rows_of_warps(np.array([32, 104, 208, 256]), Gemm(8, 8, 8, BF16, out=BF16)).tolist()
    [0, 104, 192, 256]
    """
    atom, unit = SWIZZLE_ATOM_BYTES // gemm.out.bytes, MATRIX_ROW_BYTES // gemm.out.bytes
    return np.where(columns // unit % 2 == 1, columns, columns // atom * atom)


def _with_widest_rows(c: Columns, gemm: Gemm) -> Columns:
    """Two stages of epilogue subtiles as wide as a swizzle atom, or twice as wide where warps store them, whose rows
    meet others in the fewest sectors, where a ring is left, and registers: of several tiles some spill with more than
    128 rows of a warpgroup (NVRTC 13.5)."""
    if tma_stores(gemm):
        subtile = np.minimum(SWIZZLE_ATOM_BYTES // gemm.out.bytes, c.n)
    else:
        subtile = rows_of_warps(np.minimum(_STORED_BYTES // gemm.out.bytes, c.n), gemm)
    wide = c.with_columns(subtile=subtile, subtile_stages=np.where(tma_stores(gemm) | (subtile < c.n), 2, 1))
    wide = wide.with_columns(stages=wgmma.deepest_ring(wide, wide.blocks, gemm))
    fits = (c.subtile > 0) & (c.swap_ab == 0) & (c.persistent > 0) & stages_more(wide) & wgmma.has_registers(wide, gemm)
    fits &= subtile > 0
    names = ("subtile", "subtile_stages", "stages")
    return c.with_columns(**{name: np.where(fits, getattr(wide, name), getattr(c, name)) for name in names})


def stages_more(c: Columns) -> Any:
    """Whether kernels that stage more of C than others keep a ring, and registers."""
    narrow = (c.ping_pong > 0) | (wgmma.accumulators_of(c) < _FULL_ACCUMULATORS)
    return (c.stages >= wgmma.LEAST_RING) & (fragments_of(c) <= 2) & narrow


_FULL_ACCUMULATORS = 192
"""Of a thread: two warpgroups that share a tile spill with as many and a wide subtile."""


def mma_core(gemm: Gemm) -> Columns:
    """Tiles of mma.sync whose sizes are powers of two, with 2 to 8 warps and a ring of 6, 4 or 3 stages. What is legal
    depends on formats, orders and the rows of C alone; a table of each is kept. Small tiles go through shared memory
    where rows of C are unaligned: in 673 x 625 x 42, bf16, that takes 3.3 us, element by element 4.9 (H200,
    benchmarks/choice_sweep.py)."""
    aligned = not simt.stores_unaligned_rows(gemm)
    formats = (gemm.dtype, gemm.product, gemm.out, gemm.accumulators, gemm.block_scales)
    key = ("mma", *formats, gemm.a, gemm.b, gemm.c, aligned)
    found = _CORES.get(key)
    if found is None:
        c = product(
            **dict.fromkeys(("double_buffered_fragments", "interleaved_copies", "serpentine"), (1,)),
            **dict.fromkeys(("split_k", "accumulators", "cluster_k", "raster_rows"), (1,)),
            **dict.fromkeys(("in_place_fragments", "n_outer", "persistent", "promote_every"), (0,)),
            **dict.fromkeys(("copy_issue_distance", "row_threads"), (0,)),
            m=(16, 32, 64, 128),
            n=(16, 32, 64, 128, 256),
            k=tuple(size // gemm.dtype.bytes for size in (64, 128)),
            warp_m=(16, 32, 64),
            warp_n=(16, 32, 64),
            stages=(4,),
            store=("per_thread", "shared"),
        )
        warps, small = warps_of(c), c.m * c.n <= _SMALL_TILE
        c = c[(warps >= np.where(small, 2, 4)) & (warps <= _MOST_SMALL_WARPS)]
        c = c[(c.m * c.n > _SMALL_TILE * aligned) | (c.store == "per_thread")]
        stage_bytes = (c.m + c.n) * c.k * gemm.dtype.bytes
        c = c.with_columns(stages=np.where(6 * stage_bytes <= _SHORT_RING_BYTES, 6, 4))
        c = c.with_columns(stages=np.where(mma.shared_bytes(c, gemm.dtype.bytes) <= MAX_SHARED_BYTES, c.stages, 3))
        found = _CORES[key] = c[legal(mma.LAWS, c, gemm)].kept()
    return found


_CLUSTERS = (1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4)
"""Of wgmma, blocks along m and along n. Both ways only where each block has one tile: small tiles ask for more than the
L2 gives, and such a cluster asks once for A and for B (record 0104)."""


def _wgmma_tiles(gemm: Gemm, options: Mapping[str, Any]) -> Columns:
    """Cooperative, ping-pong and swap-AB tiles with the deepest ring that fits, persistent or a block a tile."""
    k = SWIZZLE_ATOM_BYTES // gemm.dtype.bytes
    common: dict[str, Any] = {
        "k": (k,),
        "cluster": range(len(_CLUSTERS)),
        "split_k": (1,),
        "persistent": (0, 1),
        "blocks": (1, 2),
    }
    pieces, every = (1, 0) if gemm.pieces is None else (gemm.pieces.count, gemm.pieces.promote_every)
    common |= {"promote_every": (every,), "pieces": (pieces,), "evict_first": ("",), "serpentine": (0,), **options}
    across = (gemm.a is Order.COL) + (gemm.b is Order.ROW)
    held = across == 1 and gemm.dtype.bytes == 4 and gemm.multiplies_tf32
    common |= {"accumulators": (1,), "cluster_k": (1,), "left_in_registers": (int(held),), "stream_k": (0,)}
    rows = {"m": (64, 128, 192, 256), "n": range(8, wgmma.MAX_COLUMNS + 1, 8)}
    columns = {"m": range(8, wgmma.MAX_COLUMNS + 1, 8), "n": (64, 128, 192, 256)}
    c = joined(
        product(**rows, **common, consumers=(1, 2, 3), ping_pong=(0,), swap_ab=(0,)),
        product(**rows, **common, consumers=(2,), ping_pong=(1,), swap_ab=(0,)),
        product(**columns, **common, consumers=(1, 2, 3), ping_pong=(0,), swap_ab=(1,)),
    )
    along_m, along_n = np.array(_CLUSTERS).T
    c = c.with_columns(cluster_m=along_m[c.cluster], cluster_n=along_n[c.cluster])
    c = c[(np.minimum(c.cluster_m, c.cluster_n) == 1) | (c.persistent == 0)]
    c = c.with_columns(subtile=wgmma.subtile_of(c, gemm) * c.staged)
    small = (c.m * c.n <= wgmma.SMALL_TILE) & (c.persistent == 0)
    c = c[(c.blocks == 1) | small]
    c = c.with_columns(stages=wgmma.deepest_ring(c, c.blocks, gemm))
    return c[legal(wgmma.LAWS, c, gemm)]


_MOST_SMALL_WARPS = 8
"""Of a block with a small tile: more would share few MMAs."""


_SMALL_TILE = 64 * 64
"""Elements of C up to which a block may have two warps."""

_SHORT_RING_BYTES = 64 << 10
"""Up to which a ring has 6 stages."""


def _mma(gemm: Gemm) -> Columns:
    """Small tiles, of problems that few blocks compute, in one order; the others with every option."""
    common: dict[str, Any] = {
        "k": tuple(size // gemm.dtype.bytes for size in (64, 128)),
        "double_buffered_fragments": (1, 0),
        **dict.fromkeys(("split_k", "accumulators", "cluster_k"), (1,)),
        "promote_every": (0,),
    }
    large = product(
        **common,
        m=(64, 128, 256),
        n=(64, 128, 192, 256),
        warp_m=(32, 64),
        warp_n=(32, 48, 64),
        stages=(2, 3, 4),
        in_place_fragments=(0, 1),
        interleaved_copies=(1, 0),
        n_outer=(0, 1),
        raster_rows=(1, 8, 16),
        store=("per_thread", "quad_shuffle", "shared"),
        persistent=(0, 1),
    )
    small = product(
        **common,
        m=(16, 32, 64, 128),
        n=(16, 32, 64, 128),
        warp_m=(16, 32, 64),
        warp_n=(16, 32, 64),
        stages=(2, 4, 6),
        in_place_fragments=(0,),
        interleaved_copies=(1,),
        n_outer=(0,),
        raster_rows=(1,),
        store=("per_thread", "shared"),
        persistent=(0,),
    )
    new = (np.minimum(small.m, small.n) < 64) | (np.minimum(small.warp_m, small.warp_n) < 32) | (small.stages == 6)
    warps = warps_of(small)
    c = joined(large, small[new & (warps >= 2) & (warps <= _MOST_SMALL_WARPS)])
    flowing = c.persistent
    c = c.with_columns(
        copy_issue_distance=6 * flowing,
        row_threads=8 * flowing,
        serpentine=np.ones(len(c), dtype=np.int64),
    )
    fits_well = (c.in_place_fragments == flowing) & (c.double_buffered_fragments >= flowing)
    c = c[fits_well & ((flowing == 0) | ((c.n_outer > 0) & (c.interleaved_copies > 0)))]
    return c[legal(mma.LAWS, c, gemm)]


def _simt(gemm: Gemm) -> Columns:
    """Every tile with every way to copy; of large ones, every order of tiles."""
    tiles = simt_tiles()
    large = tiles.m * tiles.n >= _LARGE_TILE
    one, grouped, resident = (
        {"raster_rows": (rows,), "persistent": (stays,)} for rows, stays in ((1, 0), (8, 0), (8, 1))
    )
    tables = [_with_copies(tiles, _WAYS, gemm, **one)]
    tables += [_with_copies(tiles[large], _WAYS, gemm, **options) for options in (grouped, resident)]
    return joined(*tables)


_LARGE_TILE = 64 * 128
"""Elements of C from which on the order of tiles decides what is read from the L2."""

_WAYS = tuple(
    (k, unroll, a, b, stages)
    for k, unroll in ((8, 8), (16, 8), (16, 16), (32, 16))
    for a, b, stages in (
        ("registers", "registers", 2),
        ("registers", "cp_async", 4),
        ("cp_async", "cp_async", 3),
        ("cp_async", "cp_async", 4),
    )
)
"""k of a tile of FMAs, how many of it are unrolled, and how tiles of A and B travel to a ring of so many stages."""

_CORE_WAYS = (
    (16, 16, "registers", "registers", 2),
    (8, 8, "cp_async", "cp_async", 4),
    (16, 16, "cp_async", "cp_async", 4),
)
"""Those that copy as the fastest did in 132 of 147 drawn problems (docs/decisions/0042-tiles-of-ffma.md). Of 227 plans
where A alone came through registers none was the fastest of its problem. Of 451 problems a k of 32, or 8 of 16 steps
unrolled, was the fastest in 13; without them the best plan takes 1.001 of the time (H200, docs/decisions/0088)."""


def _with_copies(tiles: Columns, ways: Sequence[tuple[object, ...]], gemm: Gemm, **options: Any) -> Columns:
    """Tiles of SIMT kernels with some ways to copy, as far as they are legal for a problem."""
    more = product(
        way=range(len(ways)),
        copied=(4, 1) if simt.loads_unaligned_rows(gemm) else (4,),
        columns_together=(4,),
        store=("shared" if simt.stores_unaligned_rows(gemm) else "per_thread",),
        **dict.fromkeys(("split_k", "cluster_k"), (1,)),
        **dict.fromkeys(("stream_k", "dependent_launch", "interleaved_copies"), (0,)),
        **options,
    )
    c = tiles[np.repeat(np.arange(len(tiles)), len(more))]
    more = more[np.tile(np.arange(len(more)), len(tiles))]
    names = ("k", "unroll", "a_transport", "b_transport", "stages")
    columns = {name: np.array(of)[more.way] for name, of in zip(names, zip(*ways, strict=True), strict=True)}
    columns |= {name: getattr(more, name) for name in more.names if name != "way"}
    constant = {"pad": 4, "double_buffered_fragments": 0, "fma_order": simt.ROW_BY_ROW}
    c = c.with_columns(**columns, **{name: np.full(len(c), value) for name, value in constant.items()})
    # What cp.async transposes, it copies element by element.
    copies = c.copied == 4
    for name in ("A", "B"):
        along_k = gemm.operand(name).contiguous == "k"
        copies |= (getattr(c, f"{name.lower()}_transport") == "registers") | (not along_k)
    return c[legal(simt.LAWS, c, gemm) & copies]


def simt_core(gemm: Gemm) -> Columns:
    """Tiles of FMAs that the choice looks at. What is legal depends on formats, orders and rows alone; a table of each
    is kept."""
    odd = (simt.loads_unaligned_rows(gemm), simt.stores_unaligned_rows(gemm))
    columns = next((some for some in _NARROW_TILES if _FEW_COLUMNS < gemm.n <= some), 0)
    key = ("simt", gemm.dtype, gemm.product, gemm.out, gemm.accumulators, gemm.a, gemm.b, gemm.c, *odd, columns)
    found = _CORES.get(key)
    if found is None:
        tiles = simt_tiles()
        kept = _in_core(tiles) | _is_narrow(tiles, columns)
        found = _with_copies(tiles[kept], _CORE_WAYS, gemm, raster_rows=(1,), persistent=(0,))
        short = (found.k == 16) & (found.a_transport == "cp_async") & (accumulators_of(found) == _SHORT_RING_SUMS)
        found = _CORES[key] = found.with_columns(stages=np.where(short, 3, found.stages)).kept()
    return found


_SHORT_RING_SUMS = 32
"""Accumulators of a thread of kernels that have three stages of 16 of k: 0.965 of the time with four (31 pairs, 0.83 to
1.06). Those of 48 and 64 take 0.99 and 0.997 so, of 96 1.01 (164; H200, docs/decisions/0088)."""

_NARROW_TILES = (16, 32, 48)
"""Columns of the tiles that are made for as few columns of C, each for more than the one before."""

_FEW_COLUMNS = 8
"""Of C, up to which kernels of GEMV are faster (three of three problems; H200, docs/decisions/0088)."""


def _is_narrow(c: Columns, columns: int) -> Any:
    """Tiles of so many columns whose warps have eight rows of lanes, by 4 columns of a thread, or 8 where tiles have
    32."""
    high, wide, warps = c.warp_m // c.lanes_m, c.warp_n * c.lanes_m // WARP_THREADS, warps_of(c)
    tiles = (c.n == columns) & (c.lanes_m == 8) & np.isin(c.m, (32, 64, 96, 128, 192, 256)) & (warps <= 8)
    return tiles & (wide == (8 if columns == 32 else 4)) & (high * wide >= np.where(columns == 16, 16, 32))


def simt_streams(c: Columns, gemm: Gemm) -> Columns:
    """Tiles of FMAs of a table, not the smallest, whose k resident blocks share out in equal parts. By cp.async: of 128
    accumulators a thread with a k of 8 too; not of ten warps, or threads of 12 columns, which spill, as those of 20 and
    28 do through registers."""
    by_async = (c.a_transport == "cp_async") & (c.b_transport == "cp_async")
    by_registers = (c.a_transport == "registers") & (c.b_transport == "registers")
    wide, sums = c.warp_n * c.lanes_m // WARP_THREADS, c.warp_m * c.warp_n // WARP_THREADS
    short = by_async & (c.k < 16) & (sums == _MOST_SUMS)
    kept = ((c.k == 16) | short) & ((by_registers & (wide <= 12)) | (by_async & (wide <= 8) & (warps_of(c) <= 8)))
    large = np.flatnonzero(kept & (c.persistent == 0) & (c.m * c.n >= _STREAMED_TILE))
    c = c[large].with_columns(**{name: np.full(len(large), value) for name, value in _STREAMED.items()})
    return c[np.flatnonzero(legal(simt.LAWS, c, gemm))]


_STREAMED_TILE = 48 * 96
"""Elements of C: of smaller tiles there are whole waves."""

_STREAMED = {"persistent": 1, "raster_rows": 8, "stream_k": 1}


def _in_core(c: Columns) -> Any:
    """Warps whose lanes are four rows of eight, as they were in the fastest of 138 of 147 problems, in tiles of sizes
    that won. Blocks of 7, 9 or 12 warps were the fastest in 10 of 857; without them the best of some 18 plans takes
    0.02 % longer. And those that are as high, or as wide, as a warp of `_LONG_THREADS`."""
    high, wide, warps = c.warp_m // c.lanes_m, c.warp_n * c.lanes_m // WARP_THREADS, warps_of(c)
    tiles = np.isin(c.m, (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)) & (c.n % 32 == 0) & (c.n != 224)
    tiles &= (warps <= 10) & (warps != 7) & (warps != 9)
    tiles &= (c.lanes_m == 4) & (wide <= 12) & ((wide < 12) | (high >= 8))
    return tiles & ~np.isin(high, _LONG_THREADS) | _is_long(c)


def _is_long(c: Any) -> Any:
    """Tiles of 80 or 112 rows, or columns: one warp along them, 4 to 8 along the others."""
    high, wide, warps = c.warp_m // c.lanes_m, c.warp_n * c.lanes_m // WARP_THREADS, warps_of(c)
    rows = np.isin(high, _LONG_THREADS) & (wide == _PIECE) & (c.lanes_m == 4) & (c.m == c.warp_m)
    columns = np.isin(wide, _LONG_THREADS) & (high == _PIECE) & (c.lanes_m == 8) & (c.n == c.warp_n)
    return (rows | columns) & np.isin(warps, (4, 6, 8))


@cache
def simt_tiles() -> Columns:
    """Tiles of FMAs whose threads have 4 to 16 rows and columns, in pieces of 4, and whose blocks have 2 to 12 warps;
    fewer than 4 where tiles are small. And `_is_long` ones."""
    sides = (4, 8, 12, 16, *_LONG_THREADS)
    c = product(lanes_m=(4, 8), high=sides, wide=sides, down=range(1, 13), across=range(1, 9))
    warp_m, warp_n, warps = c.high * c.lanes_m, c.wide * (WARP_THREADS // c.lanes_m), c.down * c.across
    m, n, sums = warp_m * c.down, warp_n * c.across, c.high * c.wide
    small = m * n <= _SMALL_TILE
    kept = (warps >= np.where(small, 2, 4)) & (warps <= 12) & (sums * warps <= _MOST_SUMS_OF_A_BLOCK)
    kept &= (m <= 256) & (n >= 16) & (n <= 256) & (sums <= _MOST_SUMS) & ((sums >= 32) | small)
    sizes = {"m": m, "n": n, "warp_m": warp_m, "warp_n": warp_n, "lanes_m": c.lanes_m}
    found = Columns({name: column[kept] for name, column in sizes.items()})
    usual = np.maximum(c.high, c.wide)[kept] < min(_LONG_THREADS)
    return found[np.flatnonzero(usual | _is_long(found))]


_PIECE = 4
"""Neighbouring rows or columns of a thread."""

_LONG_THREADS = (20, 28)
"""Rows of a thread with 4 columns, or columns with 4 rows: tiles as high, or as wide, as the side of a problem that
has a little less than 80 or 112. In nine of 104 problems with a short side the fastest of two to four such kernels took
0.88 to 0.99 of the time of the best of seven others (H200, docs/decisions/0083)."""

_MOST_SUMS = 128
"""Of a thread of FMAs: more leave too few registers for what is copied."""

_MOST_SUMS_OF_A_BLOCK = 8 * 128
"""Of a thread, by the warps of its block: 32 * 1024 accumulators are half of the registers of an SM."""


_LAWS = {"simt": simt.LAWS, "mma": mma.LAWS, "wgmma": wgmma.LAWS}
_SPACES: Mapping[str, Callable[[Gemm], Columns]] = {"simt": _simt, "mma": _mma, "wgmma": _wgmma}
