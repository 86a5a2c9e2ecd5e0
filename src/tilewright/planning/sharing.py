"""Which kernels share the sum over k of a tile: split-K, clusters along k, stream-K."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.kernels import simt, wgmma
from tilewright.kernels.columns import Columns, legal
from tilewright.kernels.spaces import simt_streams, with_cluster_k
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES, tma_stores
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

_SPLIT_K = np.array((*range(1, 11), 12, 14, 16, 20, 24, 32))

_COUNTS = np.maximum(1, _SPLIT_K.searchsorted(np.arange(_SPLIT_K[-1] + 1), side="right"))
"""How many of them a kernel has, by the parts that it may have at most."""

MOST_WAVES = {"simt": 8, "mma": 2, "wgmma": 2}
"""Waves of blocks up to which split-K may pay, by family. Of 1.1 waves, half as long ones make 2.2, which are 1.5 of
the whole ones. The parts of long FFMA sums cost least: in f32 768 x 4096 x 14336 takes 2112 us in 1.5 waves, and
1862 in 2.9 of 4 parts (H200, benchmarks/choice_sweep.py)."""

_LEAST_K_TILES = {"simt": 4, "mma": 8, "wgmma": 8}
"""K tiles of one product that are worth a part of split-K, by family: those of FFMA take longest."""


_PARTS = (*_SPLIT_K.tolist(), 48, 64)
"""Of FMA kernels, before they are rounded up to what fills SMs. More save no more than 2 %, and cost up to 28 % where
their sum takes long (115 x 40 x 14539, 132 parts; H200, docs/decisions/0093)."""

_NO_PARTS = 1 << 30


def with_split_k(kind: str, c: Columns, most: Any, gemm: Gemm, spec: DeviceSpec) -> Columns:
    """Each candidate alone, and with every count of split-K up to its most; of FMA kernels with those counts whose
    blocks fill the SMs."""
    if most.max(initial=1) <= 1:
        return c
    if kind == "simt":
        table = _filling_parts(spec.sm_count)
        tiles = ceil_div(gemm.m, c.m) * ceil_div(gemm.n, c.n)
        parts = table.take(np.minimum(tiles, len(table) - 1), axis=0)
        row, place = (parts <= np.maximum(1, most)[:, None]).nonzero()
        return c[row].with_columns(split_k=parts[row, place])
    counts = _COUNTS.take(most, mode="clip")
    ends = counts.cumsum()
    row = np.arange(len(c)).repeat(counts)
    return c[row].with_columns(split_k=_SPLIT_K.take(np.arange(ends[-1]) - (ends - counts).repeat(counts)))


@cache
def _filling_parts(sm_count: int) -> Any:
    """A row of counts of split-K for each number of tiles, the last one for all larger numbers.

    Fewer parts than leave the busiest SM the same number of blocks take longer. So a count is rounded up to the most
    such parts: 12 tiles of 132 SMs are split in 11, 22, 33, as cuBLAS does, not in 10, 20, 32. Where that is more than
    twice the count, powers of two are left, for sums that cost more than they save.
    """
    found = []
    for tiles in range(sm_count + 2):
        counts = {1}
        for parts in _PARTS[1:]:
            filling = sm_count * ceil_div(max(1, tiles) * parts, sm_count) // max(1, tiles)
            if filling <= 2 * parts:
                counts.add(filling)
            elif parts & (parts - 1) == 0:
                counts.add(parts)
        found.append(sorted(counts))
    longest = max(map(len, found))
    return np.array([[*row, *[_NO_PARTS] * (longest - len(row))] for row in found])


def most_parts(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec) -> Any:
    """Blocks that may share a tile's sum over k, of each kernel: that leave no SM idle and are worth a part's start; 0
    of kernels without split-K."""
    k = SWIZZLE_ATOM_BYTES // gemm.dtype.bytes if kind == "wgmma" else c.k
    worth = np.minimum(len(gemm.products) * gemm.k // (_LEAST_K_TILES[kind] * k), gemm.k // k)
    if np.max(worth, initial=0) < 2:
        return np.zeros(len(c), dtype=np.int64)
    tiles = c.tiles if "tiles" in c else ceil_div(gemm.m, c.m) * ceil_div(gemm.n, c.n)
    room = c.fact(("room", kind, gemm.dtype, gemm.out, gemm.b, spec), lambda kept: _room(kind, kept, gemm, spec))
    return np.minimum(room / np.maximum(tiles, 1), worth).astype(np.int64)


def _room(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec) -> Any:
    """Blocks of a kernel among which split-K may share out the tiles; 0 of kernels without split-K."""
    room = MOST_WAVES[kind] * spec.sm_count * np.maximum(1, blocks_per_sm(kind, c, gemm, spec))
    return np.where(_is_whole(kind, c), 0.0, room)


def sharing_k(
    kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, sizes: tuple[int, ...], most: Any = None
) -> list[Columns]:
    """A table of kernels with a block for each tile and part, in clusters of some sizes whose blocks share the sum over
    k, where split-K would be worth as many; none on a device without clusters. most: `_most_parts`."""
    if not sizes or spec.compute_capability < SINCE[Feature.CLUSTER]:
        return []
    most = most_parts(kind, c, gemm, spec) if most is None else most
    if not (most >= min(sizes)).any():
        return []
    table = c if c.table is None else c.table
    key = ("cluster_k", sizes, *_decide_laws(kind, gemm))
    found = (
        _all_sharing_k(kind, table, gemm, sizes)
        if c.table is None
        else c.table.known(key, lambda kept: _all_sharing_k(kind, kept, gemm, sizes))
    )
    rows = np.arange(len(table)) if c.rows is None else c.rows
    room = np.zeros(len(table), dtype=np.int64)
    room[rows] = most
    found = found[found.cluster_k <= room.take(found.base)]
    for name in {"tiles", "raster_rows"} & c.given:  # what the problem decides
        spread = np.zeros(len(table), dtype=np.int64)
        spread[rows] = getattr(c, name)
        found = found.with_columns(**{name: spread.take(found.base)})
    return [found] if len(found) else []


_LEAST_TO_STREAM = 16
"""k tiles of a tile from which on it may pay that blocks of stream-K meet inside it."""


def streaming_k(c: Columns, gemm: Gemm, spec: DeviceSpec) -> list[Columns]:
    """A table of kernels whose blocks share out the k of all tiles in equal parts, where these fill no whole waves."""
    c = simt_streams(c, gemm) if c.table is None else c.table.known("streams", lambda c: simt_streams(c, gemm).kept())
    tiles = ceil_div(gemm.m, c.m) * ceil_div(gemm.n, c.n)
    waves = tiles / (spec.sm_count * np.maximum(1, blocks_per_sm("simt", c, gemm, spec)))
    c = c[(gemm.k >= _LEAST_TO_STREAM * c.k) & (waves < MOST_WAVES["simt"])]
    return [c] if len(c) else []


def streaming_waves(c: Columns, gemm: Gemm, spec: DeviceSpec) -> Columns:
    """Kernels of wgmma of a table whose last wave of tiles is cut along k, where some blocks would have none of it."""
    tiles = ceil_div(gemm.m, c.m * c.cluster_m) * ceil_div(gemm.n, c.n * c.cluster_n)
    blocks = spec.sm_count // (c.cluster_m * c.cluster_n)
    idle = (tiles > blocks) & (tiles % blocks > 0) & (tiles % blocks <= _MOST_OF_LAST_WAVE * blocks)
    c = c[idle & (c.persistent > 0) & (c.subtile > 0) & (gemm.k >= _LEAST_TO_STREAM * c.k)]
    c = c.with_columns(stream_k=np.ones(len(c), dtype=np.int64))
    return c[legal(wgmma.LAWS, c, gemm)]


_MOST_OF_LAST_WAVE = 0.8
"""Of the blocks, how many may have a tile of the last wave: what the others wait for pays for adding up."""


def _all_sharing_k(kind: str, c: Columns, gemm: Gemm, sizes: tuple[int, ...]) -> Columns:
    """Those of all rows of a table; base: the row."""
    single = np.logical_not(_is_whole(kind, c))
    base = np.flatnonzero(single & (c.cluster_m * c.cluster_n == 1) if kind == "wgmma" else single)
    size, row = (grid.reshape(-1) for grid in np.meshgrid(np.array(sizes, np.int64), base, indexing="ij"))
    found = c[row].with_columns(base=row)
    return with_cluster_k(kind, found, gemm, size).kept()


def _decide_laws(kind: str, gemm: Gemm) -> tuple[object, ...]:
    """What laws ask of a problem."""
    formats = (gemm.dtype, gemm.b_dtype, gemm.product, gemm.out, gemm.accumulators, gemm.pieces, gemm.block_scales)
    lie = (gemm.a, gemm.b, gemm.c, tma_stores(gemm), gemm.epilogue.scales is None)
    odd = (simt.loads_unaligned_rows(gemm), simt.stores_unaligned_rows(gemm)) if kind == "simt" else ()
    return (*formats, *lie, *odd)


def _is_whole(kind: str, c: Columns) -> Any:
    """Kernels without split-K: persistent ones, and of wgmma those that stage C, as parts are stored per thread."""
    persistent = getattr(c, "persistent", np.zeros(len(c), dtype=np.int64)) > 0
    return persistent | (c.subtile > 0) if kind == "wgmma" else persistent
