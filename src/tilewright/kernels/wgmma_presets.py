"""Kernels of the family wgmma that were found good, as functions of a tile: with the deepest ring that fits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tilewright.kernels.wgmma import MAX_STAGES, SMALL_TILE, WgmmaConfig, deepest
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES, stages_c, tma_stores
from tilewright.layout.epilogue import UNIT_COLUMNS
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

COOPERATIVE = WgmmaConfig((128, 256, 64), raster_rows=16, subtile=64)
PING_PONG = WgmmaConfig((128, 192, 64), ping_pong=True, raster_rows=8, subtile=64)

NARROW = ((64, 64, 1), (64, 128, 1), (64, 256, 1), (128, 128, 2), (128, 192, 2), (256, 128, 2))
"""Other tiles (m, n, consumers), for sizes at which those two leave SMs idle."""

SKINNY_ROWS = (8, 16, 32, 48)
"""Rows of tiles for a C of so few: with swap-AB, none is computed in vain."""

SKINNY_COLUMNS = (64, 128)
"""Columns of those tiles."""

DEEPEST = 8
"""Deeper rings were no faster (H200, 64 x 4096 x 14336 with split_k = 2: 32.1 us with 8 stages, 32.9 with 14)."""

_CLUSTERED_STAGES, _CLUSTERED_ROWS = 6, 2
"""Of persistent clusters: see `clustered`."""

_MOST_ROWS = 16
"""Rows of tiles that blocks visit together, at most."""

_STRIP_BYTES = 40 << 20
"""Of A, that rows of tiles which are visited together read again and again: no more than the L2 holds beside B.
Measured on the H200 in bf16: 16384^3 in groups of 8 rows of tiles 12.85 ms, of 16 12.94; 4096 x 14336 x 4096 732 us and
719. With ping-pong, groups of 8 are better as soon as there are two: 8192^3 1567 us, of 16 1595; but 2048 x 151936 x
2048, which has 16 rows of tiles in all, 1571 us in two groups and 1557 in one."""

_LONG_FLOPS = 1.05e11
"""Of a kernel that does not start under the one before. Blocks that start where others have just ended lie on the SMs
in any order, and neighbours no longer ask for the same lines at the same time: more requests reach the L2. Measured on
the H200 in bf16 at 4096 x 14336 x 4096, sustained: 0.990 of cuBLAS with dependent launch, else 1.000; at 2048^3, 24 us
in a burst, 1.000 with it, else 0.973 (benchmarks/results/early_start_h200.jsonl)."""

SMS = 132
"""Of an H200; on a GPU with fewer the preset is a little off, and the result as right."""


def persistent(
    m: int, n: int, consumers: int, *, subtile: int, blocks: int = 1, ping_pong: bool = False, subtile_stages: int = 2
) -> WgmmaConfig:
    """A persistent kernel with the deepest ring of which an SM holds so many blocks."""
    config = WgmmaConfig(
        (m, n, 64),
        consumers,
        ping_pong,
        raster_rows=_MOST_ROWS,
        subtile=subtile,
        subtile_stages=subtile_stages,
    )
    return _deepest(config, blocks, DEEPEST)


def one_tile(m: int, n: int, consumers: int, *, subtile: int = 0, blocks: int = 1) -> WgmmaConfig:
    """A kernel with a block for each tile. With subtile=0 blocks can share the sum over k, or have batched problems."""
    config = WgmmaConfig((m, n, 64), consumers, persistent=False, subtile=subtile)
    return _deepest(config, blocks, DEEPEST)


def skinny(m: int, n: int, *, blocks: int = 1) -> WgmmaConfig:
    """A kernel for a C of at most m rows, or not many more: swap-AB, a block for each tile."""
    config = WgmmaConfig((m, n, 64), 1, swap_ab=True, persistent=False)
    return _deepest(config, blocks, MAX_STAGES)


@cache
def _deepest(config: WgmmaConfig, blocks: int, most: int) -> WgmmaConfig:
    found = deepest(config, blocks, most)
    assert found is not None, config
    return found


def clustered(config: WgmmaConfig, cluster: tuple[int, int] | None = None) -> WgmmaConfig:
    """The same in clusters of two blocks that share a tile, by default the larger of A's and B's: an SM asks for less
    of what it needs. That pays where rows begin inside sectors of the L2: a box of them asks for two lines a row.

    Persistent blocks have a ring of 6 stages, and neighbours lie along n: as fast as deeper rings, and a little sooner
    there. Measured on the H200 at 1000^3 in f16: 7.26 us; with 5 stages 7.35, with 8 7.73; in groups of 16 rows 7.39;
    9.6 without clusters.
    """
    cluster = cluster or ((2, 1) if config.n >= config.m else (1, 2))
    if not config.persistent:
        return replace(config, cluster=cluster)
    stages = min(config.stages, _CLUSTERED_STAGES)
    return replace(config, cluster=cluster, stages=stages, raster_rows=_CLUSTERED_ROWS)


def subtile_of(m: int, n: int) -> int:
    """Columns of an epilogue subtile of a narrow tile: few where the ring needs the room."""
    return 64 if m * n > SMALL_TILE else n


def at_depth(config: WgmmaConfig, gemm: Gemm) -> WgmmaConfig:
    """The same with tiles of 128 bytes of k, and epilogue subtiles of as many bytes, in the problem's formats; under
    swap-AB, where a subtile is a fragment wide, of as many columns."""
    times = 1 if config.swap_ab else max(2, gemm.out.bytes) // 2
    subtile = config.subtile // times // UNIT_COLUMNS * UNIT_COLUMNS
    subtile = max(subtile, UNIT_COLUMNS) if config.subtile else 0
    return replace(config, tile=(config.m, config.n, SWIZZLE_ATOM_BYTES // gemm.dtype.bytes), subtile=subtile)


def best_for(gemm: Gemm) -> WgmmaConfig:
    """The large tile that keeps more SMs busy: cooperative or ping-pong."""
    per_thread = stages_c(gemm) and not tma_stores(gemm)
    config = COOPERATIVE if per_thread else max((PING_PONG, COOPERATIVE), key=lambda one: _busy(gemm, one))
    if ceil_div(gemm.m, config.m) <= _MOST_ROWS:  # all of them: each column of tiles reads its part of B once
        config = replace(config, raster_rows=_MOST_ROWS)
    elif config.raster_rows * config.m * gemm.k * gemm.dtype.bytes > _STRIP_BYTES:
        config = replace(config, raster_rows=_MOST_ROWS // 2)
    return at_depth(replace(config, dependent_launch=gemm.flops < _LONG_FLOPS), gemm)


def _busy(gemm: Gemm, config: WgmmaConfig) -> float:
    """The share of the time in which SMs have a tile, if all tiles take as long."""
    tiles = ceil_div(gemm.m, config.m) * ceil_div(gemm.n, config.n)
    return gemm.m * gemm.n / max(1, SMS * ceil_div(tiles, SMS) * config.m * config.n)
