"""Kernels of the family mma.sync that were found good, by format and alignment.

Their tiles are given at the depth of 2-byte formats; `at_depth` has as many bytes of k in another format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.dtypes import F32, TF32
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.kernels.mma import CHUNK_BYTES, MmaConfig, by_lanes, paired_operand, shared_bytes
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

BEST = MmaConfig((128, 256, 32))

DEEP = replace(BEST, tile=(128, 256, 64), stages=3, n_outer=True, raster_rows=16, store="quad_shuffle")
"""Of 2-byte formats. The first MMAs need all fragments of A and one of B, as they are loaded. Measured: H200, bf16 at
4096^3, NN: 264.5 us; through shared memory, with 64 bytes of k and fragments of A outside, 271.5."""

_LINE_THREADS = 8
"""Threads that copy a line of 128 bytes."""

PERSISTENT = replace(DEEP, in_place_fragments=True, copy_issue_distance=6, row_threads=_LINE_THREADS, persistent=True)
"""Fewer instructions between the MMAs, spread evenly, and no pause between tiles. Measured: H200, 4096^3, NN: bf16
258.4 us beside 263.9 of `DEEP`, f16 265.5 beside 270.2 (docs/decisions/0024)."""

DEEP_TF32 = replace(BEST, tile=(128, 256, 64), stages=3, raster_rows=16)
"""Of aligned operands of 4 bytes, with what `_tf32` adds. Measured: H200, 4096^3, beside 64 bytes of k and, rounded,
single loads: rounded 620 us of 658 in NN, 653 of 704 in TN, 613 of 656 in TT; truncated 578 of 653 in TN, 542 of 570 in
TT, as long in NN (docs/decisions/0024). Rows that are copied in pieces of 4 bytes: 824 us with 64
bytes of k, 899 with 128 (NN)."""

THROUGH_SHARED = replace(BEST, store="shared")
"""Results of 2 bytes whose rows a thread cannot store 16 bytes of: 5 % faster than per-thread stores."""

UNALIGNED = replace(BEST, interleaved_copies=False, raster_rows=16)
"""Rows at any 2 bytes come through registers, beside which deeper tiles do not fit."""

_PAD, _FRAGMENT_ROWS = 8, 16
"""Elements between the rows of a padded tile; rows of a fragment."""

SMS = 132
"""Of an H200; on a GPU with fewer the preset is a little off, and the result as right."""


def at_depth(config: MmaConfig, gemm: Gemm) -> MmaConfig:
    """The same with as many bytes of k in the problem's format as in one of 2 bytes."""
    return replace(config, tile=(config.m, config.n, config.k * 2 // gemm.dtype.bytes))


def best_for(gemm: Gemm, most_bytes: int = MAX_SHARED_BYTES) -> MmaConfig:
    """The best preset for a format and the alignment of its rows. most_bytes: of shared memory that a block may take;
    where a preset takes more, it gets shorter k tiles, or fewer stages. If that is not enough it stays as it is."""
    best = _best(gemm)
    legal = (one for one in _smaller(best) if not one.reasons_against(gemm))
    return next((one for one in legal if _taken_bytes(one, gemm) <= most_bytes), best)


def _smaller(config: MmaConfig) -> Iterator[MmaConfig]:
    """A preset, and what becomes of it in less shared memory. Nothing of that was measured."""
    yield config
    m, n, k = config.tile
    for stages in (4, 3):
        yield replace(config, tile=(m, n, k // 2), stages=stages, row_threads=0)
    for stages in range(config.stages - 1, 1, -1):
        yield replace(config, stages=stages)


def _taken_bytes(config: MmaConfig, gemm: Gemm) -> int:
    """With what the law leaves out: pads of tiles that lanes load one by one, and of the part of a column-major C."""
    pads = len(by_lanes(gemm)) * config.stages * config.k * _PAD * gemm.dtype.bytes
    rows = config.m // config.warp_m * _FRAGMENT_ROWS
    column_major = config.store == "shared" and gemm.c is Order.COL
    turned = (config.n - rows) * _PAD * F32.bytes if column_major else 0
    return int(shared_bytes(config, gemm.dtype.bytes)) + pads + turned


def _best(gemm: Gemm) -> MmaConfig:
    if gemm.dtype.bytes == 2 and (gemm.lda % 2 or gemm.ldb % 2):
        return at_depth(replace(UNALIGNED, store="quad_shuffle" if stores_quads(gemm) else "shared"), gemm)
    if gemm.out.bytes == 2:
        return at_depth(_two_bytes(gemm), gemm)
    return at_depth(_tf32(gemm) if gemm.multiplies_tf32 else BEST, gemm)


def _two_bytes(gemm: Gemm) -> MmaConfig:
    if not stores_quads(gemm):
        return THROUGH_SHARED
    return PERSISTENT if _persists(gemm) else DEEP


def stores_quads(gemm: Gemm) -> bool:
    """Whether a thread can store 16 bytes of a row of C after a quad shuffle transpose."""
    return gemm.out.bytes == 2 and gemm.c is Order.ROW and gemm.ldc * gemm.out.bytes % CHUNK_BYTES == 0


def _persists(gemm: Gemm) -> bool:
    """Whether blocks have several tiles each, of several k tiles, and rows of A and B along m and n are whole in each.

    Else there is no pause between tiles to save, or more k tiles are copied ahead than a tile has, or each chunk of a
    row has a length of its own to be found.
    """
    sizes = {"m": gemm.m, "n": gemm.n}
    tile = {"m": PERSISTENT.m, "n": PERSISTENT.n}
    along = {gemm.operand(name).contiguous for name in ("A", "B")} & {"m", "n"}
    whole = all(sizes[dim] % tile[dim] == 0 for dim in along)
    tiles = ceil_div(gemm.m, PERSISTENT.m) * ceil_div(gemm.n, PERSISTENT.n)
    return tiles > SMS and gemm.k > at_depth(PERSISTENT, gemm).k and whole


def _tf32(gemm: Gemm) -> MmaConfig:
    """The best parameters where f32 is multiplied as tf32, of some 500 kernels that were timed over all four orders.

    A warp has eight fragments one way and four the other: truncated, the eight are best counted outside, rounded the
    four. Per-thread loads of one operand leave no room for fragments in place.
    """
    rounded = gemm.multiplied is TF32
    chunk = CHUNK_BYTES // gemm.dtype.bytes
    if gemm.lda % chunk or gemm.ldb % chunk:
        return replace(BEST, interleaved_copies=not rounded)
    lanes_load = by_lanes(gemm)
    four_along_n = paired_operand(gemm) == "B"
    return replace(
        DEEP_TF32,
        n_outer=four_along_n if rounded else not four_along_n,
        in_place_fragments=len(lanes_load) == 1,
        interleaved_copies=not rounded or bool(lanes_load),
    )
