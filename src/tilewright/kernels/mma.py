"""The family of kernels for mma.sync (sm_80 and later): a cp.async ring, warps of fragments loaded by ldmatrix.

Its steps are the nest of blocks, warps and fragments, and what the formats allow: FP8 takes mma.m16n8k32, formats of 2
bytes mma.m16n8k16, tf32 mma.m16n8k8. An instruction is 32 bytes of k deep, so tiles are as deep in bytes whatever they
hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Route
from tilewright.kernels.columns import Column, Law, reasons_against
from tilewright.kernels.tile_sizes import (
    ACCUMULATORS_AGREE,
    MAX_ACCUMULATORS,
    PERSISTENT_IS_RASTERISED,
    THREADS_FIT,
    WARPS_DIVIDE,
    WarpTiled,
    accumulators_of,
    clusters_along_k,
    exchanged_bytes,
    order_of_tiles,
    ring_fits,
)
from tilewright.layout.arrangement import Xor
from tilewright.layout.fragment import QUAD_LANES, TRANSPOSED_BYTES
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    Distribute,
    Epilogue,
    Fuse,
    Persist,
    Pipeline,
    Prefetch,
    Relayout,
    Reorder,
    Schedule,
    Snake,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Vectorize,
)

Store = Literal["per_thread", "quad_shuffle", "shared"]

_FRAGMENT_ROWS, _FRAGMENT_COLUMNS = 16, 8
_PADDED_ROW = 8
"""Words between rows of a part of C in shared memory: neither side has bank conflicts."""


@dataclass(frozen=True, slots=True)
class MmaConfig(WarpTiled):
    """One kernel of the family.

    tile: m, n, k of a block, elements
    warp_tile: m, n of a warp's part, elements
    stages: of the ring in shared memory
    double_buffered_fragments: fragments are loaded one k step ahead of their MMAs
    in_place_fragments: the outer ones each as soon as the MMAs of the one before are issued
    interleaved_copies: copies are issued between the MMAs of a k step, not in front of them
    copy_issue_distance: outer fragments whose MMAs are issued before the copies of a k step begin
    serpentine: inner fragments are taken forwards and backwards in alternation
    n_outer: fragments of B are counted outside those of A
    row_threads: threads side by side along a row of a copy; 0 for as many as the row has 16-byte chunks
    raster_rows: rows of tiles that blocks visit together, column by column
    store: of C: each thread its own accumulators; 16 bytes after a quad shuffle transpose; through shared memory
    persistent: no more blocks than run at once, for many tiles; the ring runs on into the next tile of C
    split_k: blocks that share the sum over k of a tile
    accumulators: sums of an element of C, each with a tile of a B of its own in a stage
    promote_every: elements of k after which the accumulators are added to others in f32; 0 for never
    cluster_k: blocks of a cluster that share the sum over k of a tile, through distributed shared memory (sm_90)
    """

    stages: int = 4
    double_buffered_fragments: bool = True
    in_place_fragments: bool = False
    interleaved_copies: bool = True
    copy_issue_distance: int = 0
    serpentine: bool = True
    n_outer: bool = False
    row_threads: int = 0
    raster_rows: int = 8
    store: Store = "per_thread"
    persistent: bool = False
    split_k: int = 1
    accumulators: int = 1
    promote_every: int = 0
    cluster_k: int = 1

    kind: ClassVar[str] = "mma"
    columns: ClassVar[tuple[str, ...]] = (
        *("m", "n", "k", "warp_m", "warp_n", "stages", "double_buffered_fragments", "in_place_fragments"),
        *("interleaved_copies", "copy_issue_distance", "serpentine", "n_outer", "row_threads", "raster_rows"),
        *("store", "persistent", "split_k", "accumulators", "promote_every", "cluster_k"),
    )

    def reasons_against(self, gemm: Gemm) -> tuple[str, ...]:
        """Why this kernel cannot compute a problem, in words; empty if it can."""
        return reasons_against(LAWS, self, self.columns, gemm)

    def schedule(self, gemm: Gemm) -> Schedule:
        """The steps. The parts of split-K are added up by a launch of their own."""
        tile = MmaTile(self.m, self.n, self.k * gemm.dtype.bytes, self.warp_m, self.warp_n)
        outer = "n_frag" if self.n_outer else "m_frag"
        interleaved = "k_step" if self.interleaved_copies else ""
        return Schedule(
            *nest(gemm, tile, paired=True, outer=outer, promote_every=self.promote_every),
            *staged(gemm, tile, row_threads=self.row_threads),
            *matrices(gemm),
            *in_pairs(gemm),
            *swizzled(gemm, tile),
            *(Transfer(f"{name}_tile", Route.ASYNC) for name in gemm.factors),
            Pipeline("k_tile", self.stages, interleave=interleaved, issue_distance=self.copy_issue_distance),
            *(self._fragments_ahead(gemm) if self.double_buffered_fragments else ()),
            *((Snake(inner_of(outer)),) if self.serpentine else ()),
            *order_of_tiles(self.raster_rows, self.cluster_k),
            *self._store(gemm),
            *((Persist(),) if self.persistent else ()),
            *((Cluster("k_tile", self.cluster_k),) if self.cluster_k > 1 else ()),
        )

    def _fragments_ahead(self, gemm: Gemm) -> tuple[Step, ...]:
        outer = "n" if self.n_outer else "m"
        replaced = {name for name in gemm.factors if self.in_place_fragments and outer in gemm.operand(name).dims}
        return tuple(Prefetch(f"{name}_frag", in_place=name in replaced) for name in gemm.factors)

    def _store(self, gemm: Gemm) -> tuple[Step, ...]:
        if self.store == "quad_shuffle":
            return (Vectorize("C", CHUNK_BYTES // gemm.out.bytes),)
        if self.store == "shared":
            row = Stage("C", Space.SHARED, under="m_frag")
            return row, Distribute("C_tile", vector=4), Relayout("C_tile", pad=_PADDED_ROW)
        return ()


# -- arithmetic, of a configuration or of columns ----------------------------------------------------------------------


def shared_bytes(config: Any, element_bytes: int) -> Column:
    """Shared memory of a block: the ring, a row of fragments of C in f32 where that goes through it, exchanged sums."""
    ring = config.stages * (config.m + config.accumulators * config.n) * config.k * element_bytes
    row = config.m // config.warp_m * _FRAGMENT_ROWS * (config.n + _PADDED_ROW) * 4
    return ring + (config.store == "shared") * row + exchanged_bytes(config)


def _outer_fragments(config: Any, gemm: Gemm) -> Column:
    """Of a warp, in the loop around the others. Rows of an instruction lie along m, or along n where B is paired."""
    rows, columns = _FRAGMENT_ROWS, _FRAGMENT_COLUMNS
    if paired_operand(gemm) == "B":
        rows, columns = columns, rows
    return np.where(config.n_outer, config.warp_n // columns, config.warp_m // rows)


def _unaligned_quads(gemm: Gemm) -> bool:
    """Whether C cannot be stored in 16 bytes after a quad shuffle transpose."""
    return gemm.out.bytes != 2 or gemm.c is not Order.ROW or gemm.ldc * gemm.out.bytes % CHUNK_BYTES != 0


def promotes(config: Any, gemm: Gemm) -> Column:
    """Whether kernels can promote their accumulators, as often as they say."""
    fits = (config.promote_every % config.k == 0) & (2 * accumulators_of(config) <= MAX_ACCUMULATORS)
    return fits & (config.accumulators == 1) & (gemm.block_scales is None)


LAWS: tuple[Law, ...] = (
    Law(
        lambda c, g: c.m < 0 if g.dtype.bytes < 4 or g.multiplies_tf32 else c.m >= 0,
        lambda c, g: f"mma.sync multiplies f16, bf16, tf32 and FP8, not {g.multiplied}",
    ),
    Law(
        lambda c, g: c.m >= 0 if g.dtype.bytes == 1 and by_lanes(g) else c.m < 0,
        lambda c, g: f"ldmatrix transposes no {g.dtype}: {' and '.join(by_lanes(g))} must have k contiguous",
    ),
    Law(
        lambda c, g: (c.k * g.dtype.bytes % DEPTH_BYTES != 0) | (c.k == 0),
        lambda c, g: f"k = {c.k} of {g.dtype} is not a multiple of the {DEPTH_BYTES} bytes of an instruction",
    ),
    WARPS_DIVIDE,
    ACCUMULATORS_AGREE,
    Law(
        lambda c, g: (c.promote_every > 0) & np.logical_not(promotes(c, g)),
        lambda c, g: (
            f"accumulators, here {accumulators_of(c)} of a thread, are promoted every {c.k} of k or a multiple of it, "
            f"where twice as many are at most {MAX_ACCUMULATORS}, and there is one sum without scales of blocks"
        ),
    ),
    Law(
        lambda c, g: c.m >= 0 if g.block_scales else c.m < 0,
        lambda c, g: f"only kernels of wgmma multiply {g.block_scales}",
    ),
    Law(
        lambda c, g: (c.accumulators > 1) & ((c.split_k > 1) | (c.store == "shared")),
        lambda c, g: "one of several sums is neither split nor stored through shared memory",
    ),
    Law(
        lambda c, g: (c.warp_m % _FRAGMENT_ROWS != 0) | (c.warp_n % _FRAGMENT_ROWS != 0),
        lambda c, g: f"warps of {c.warp_m} x {c.warp_n} are not whole fragments of {_FRAGMENT_ROWS}",
    ),
    *THREADS_FIT,
    ring_fits(lambda c, g: shared_bytes(c, g.dtype.bytes)),
    Law(
        lambda c, g: (c.store == "quad_shuffle") & (_unaligned_quads(g) | (c.warp_n % (QUAD_LANES * 8) != 0)),
        lambda c, g: "a quad shuffle transpose needs a row-major C of 2-byte elements with rows of 16 bytes",
    ),
    Law(
        lambda c, g: (c.copy_issue_distance > 0) & (c.copy_issue_distance >= _outer_fragments(c, g)),
        lambda c, g: (
            f"copies cannot be issued after {c.copy_issue_distance} of {_outer_fragments(c, g)} outer fragments"
        ),
    ),
    Law(
        lambda c, g: (c.copy_issue_distance > 0) & (c.interleaved_copies < 1),
        lambda c, g: "copies in front of the MMAs of a k step are not issued behind any: copy_issue_distance=0",
    ),
    Law(
        lambda c, g: (c.double_buffered_fragments > 0) & (c.k * g.dtype.bytes // DEPTH_BYTES % 2 != 0),
        lambda c, g: (
            f"double-buffered fragments need an even number of k steps of {DEPTH_BYTES} bytes, and k = {c.k} of "
            f"{g.dtype} has {c.k * g.dtype.bytes // DEPTH_BYTES}"
        ),
    ),
    PERSISTENT_IS_RASTERISED,
    *clusters_along_k(accumulators_of),
    Law(
        lambda c, g: (c.cluster_k > 1) & ((c.persistent > 0) | (c.store != "per_thread")),
        lambda c, g: "a cluster along k has a block for each part of one tile, and per-thread stores",
    ),
)
"""What the lowering takes today, all in this place."""


DEPTH_BYTES = 32
"""Bytes of k that one instruction multiplies."""

CHUNK_BYTES = 16
"""What one lane copies at once, and one row of a matrix of ldmatrix."""


@dataclass(frozen=True, slots=True)
class MmaTile:
    """Elements of m and n of a block and of a warp, and bytes of k of a block."""

    m: int = 128
    n: int = 128
    k_bytes: int = 64
    warp_m: int = 64
    warp_n: int = 32


def nest(
    gemm: Gemm, tile: MmaTile, *, paired: bool = False, outer: str = "m_frag", promote_every: int = 0
) -> tuple[Step, ...]:
    """Blocks, warps and fragments, the innermost of which one instruction runs.

    outer: m_frag or n_frag, which of them is counted around the other. promote_every: of `Accumulate`.
    paired: an operand whose fragments ldmatrix cannot load gives the instruction its rows, and those in pairs, so that
    a lane loads two neighbours at once. Rows of the instruction are columns of C where that operand is B.
    """
    depth = DEPTH_BYTES // gemm.dtype.bytes
    using = f"mma.m16n8k{depth}"
    pairs = paired_operand(gemm) if paired else None
    using += ".paired" if pairs else ""
    rows, columns, inner = (8, 16, ("n_mma", "m_mma")) if pairs == "B" else (16, 8, ("m_mma", "n_mma"))
    return (
        Split("m", tile.m, into=("m_block", "m_in")),
        Split("n", tile.n, into=("n_block", "n_in")),
        Split("m_in", tile.warp_m, into=("m_warp", "m_own")),
        Split("n_in", tile.warp_n, into=("n_warp", "n_own")),
        Split("m_own", rows, into=("m_frag", "m_mma")),
        Split("n_own", columns, into=("n_frag", "n_mma")),
        Split("k", tile.k_bytes // gemm.dtype.bytes, into=("k_tile", "k_in")),
        Split("k_in", depth, into=("k_step", "k_mma")),
        Reorder(
            *("m_block", "n_block", "m_warp", "n_warp", "k_tile", "k_step", outer, inner_of(outer)),
            *inner,
            "k_mma",
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_warp", "n_warp", into="warp"),
        Bind("warp", Level.WARP),
        Tensorize(*inner, "k_mma", using=using),
        Accumulate(over="k_tile", promote_every=promote_every),
    )


def inner_of(outer: str) -> str:
    """The loop over fragments that runs inside `outer`."""
    return "m_frag" if outer == "n_frag" else "n_frag"


def staged(gemm: Gemm, tile: MmaTile, *, row_threads: int = 0) -> tuple[Step, ...]:
    """MmaTile in shared memory, copied 16 bytes at once, fragments of them in registers, and the result stored.

    row_threads: so many threads copy along a row that has more chunks; 0: as many as it has.
    """
    vector = CHUNK_BYTES // gemm.dtype.bytes

    def along(name: OperandName) -> int:
        return row_threads if chunks_of_row(gemm, name, tile) > row_threads else 0

    return (
        *(Stage(name, Space.SHARED, under="k_tile") for name in gemm.factors),
        *(Distribute(f"{name}_tile", vector=vector, row_threads=along(name)) for name in gemm.factors),
        *(Stage(name, Space.REGISTER, under="k_step") for name in gemm.factors),
        Epilogue(),
        *((Vectorize("C", 2),) if gemm.c is Order.ROW else ()),  # a lane holds pairs along n
    )


def pairs(gemm: Gemm) -> tuple[Step, ...]:
    """Fragments loaded by lanes, two neighbours along k at once where a lane holds them and they lie side by side."""
    return tuple(
        Vectorize(f"{name}_frag", 2)
        for name in gemm.factors
        if gemm.dtype.bytes == 2 and gemm.operand(name).contiguous == "k"
    )


def matrices(gemm: Gemm) -> tuple[Step, ...]:
    """Fragments loaded by ldmatrix, four matrices at once; where it cannot turn a tile, by lanes as before."""
    steps: list[Step] = []
    for name in gemm.factors:
        if takes_matrices(gemm, name):
            steps += [Transfer(f"{name}_frag", Route.MATRICES), Vectorize(f"{name}_frag", 4)]
    return tuple(steps)


def takes_matrices(gemm: Gemm, name: OperandName) -> bool:
    """Whether ldmatrix can load an operand's fragments: its rows run along k, or it turns them, 2 bytes each."""
    return gemm.dtype.bytes == TRANSPOSED_BYTES or gemm.operand(name).contiguous == "k"


def by_lanes(gemm: Gemm) -> tuple[OperandName, ...]:
    """The operands whose fragments lanes load by ordinary loads, as ldmatrix cannot."""
    return tuple(name for name in gemm.factors if not takes_matrices(gemm, name))


def paired_operand(gemm: Gemm) -> OperandName | None:
    """The operand of which a lane is to hold two neighbours, as lanes load its fragments; B before A."""
    return next(reversed(by_lanes(gemm)), None)


def in_pairs(gemm: Gemm) -> tuple[Step, ...]:
    """Two neighbours of an operand loaded at once, where rows of the instruction are in pairs: then a lane
    holds pairs of a column-major C, too."""
    name = paired_operand(gemm)
    if name is None:
        return ()
    return Vectorize(f"{name}_frag", 2), *((Vectorize("C", 2),) if gemm.c is Order.COL else ())


def swizzled(gemm: Gemm, tile: MmaTile) -> tuple[Step, ...]:
    """Shared tiles without bank conflicts: an XOR of 16-byte chunks where ldmatrix reads them, else a pad of 8 words.

    Lanes that load elements of 4 bytes one by one read four rows, eight neighbours of each: a pad of 8 words keeps the
    rows apart, and leaves addresses that differ by constants.
    """
    return tuple(
        Relayout(f"{name}_tile", arrangement=swizzle(gemm, name, tile))
        if takes_matrices(gemm, name)
        else Relayout(f"{name}_tile", pad=8)
        for name in gemm.factors
    )


def chunks_of_row(gemm: Gemm, name: OperandName, tile: MmaTile) -> int:
    """Chunks of 16 bytes in a row of an operand's tile."""
    row = {"m": tile.m, "n": tile.n, "k": tile.k_bytes // gemm.dtype.bytes}[gemm.operand(name).contiguous]
    return row * gemm.dtype.bytes // CHUNK_BYTES


def swizzle(gemm: Gemm, name: OperandName, tile: MmaTile) -> Xor:
    """The XOR of chunks with which the eight rows of each matrix lie in different banks.

    A row of 8 chunks passes all banks, so each row needs a permutation of its own; of shorter rows several share one.

    >>> swizzle(Gemm(8, 8, 8), "A", MmaTile(k_bytes=64))
    Xor(bits=2, base=2, shift=1)
    """
    chunks = chunks_of_row(gemm, name, tile)
    bits = next(bits for bits in (3, 2, 1, 0) if chunks % (1 << bits) == 0)
    per_chunk = CHUNK_BYTES // gemm.dtype.bytes
    return Xor(bits=bits, base=per_chunk.bit_length() - 1, shift=3 - bits)
