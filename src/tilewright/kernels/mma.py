"""The family of kernels for mma.sync (sm_80 and later): a cp.async ring, warps of fragments loaded by ldmatrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.program import Route
from tilewright.kernels.columns import Column, Law, reasons_against
from tilewright.kernels.mma_steps import (
    CHUNK_BYTES,
    DEPTH_BYTES,
    MmaTile,
    by_lanes,
    in_pairs,
    inner_of,
    matrices,
    nest,
    paired_operand,
    staged,
    swizzled,
)
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
from tilewright.layout.fragment import QUAD_LANES
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Cluster,
    Distribute,
    Persist,
    Pipeline,
    Prefetch,
    Relayout,
    Schedule,
    Snake,
    Stage,
    Step,
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
