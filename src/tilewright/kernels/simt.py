"""The family of kernels for the CUDA cores: FFMA from register fragments, any format, any order, any device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar, Literal

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import F32, MBARRIER
from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, Route
from tilewright.ir.register_budgets import REGISTERS_PER_SM
from tilewright.kernels.columns import Column, Law, reasons_against
from tilewright.kernels.tile_sizes import (
    PERSISTENT_IS_RASTERISED,
    THREADS_FIT,
    WARPS_DIVIDE,
    WarpTiled,
    accumulators_of,
    clusters_along_k,
    exchanged_bytes,
    order_of_tiles,
    ring_fits,
    warps_of,
)
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    DependentLaunch,
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
    Transfer,
    Unroll,
    Vectorize,
)
from tilewright.units import KIB, round_up

Transport = Literal["registers", "cp_async"]

Store = Literal["per_thread", "shared"]

SERPENTINE = "m3 m2 ~n2 m1 m0 ~n1 ~n0"
"""The FMA order of 16 x 8 accumulators that the register file's reuse cache likes best, of all that were searched."""

ROW_BY_ROW = "m2 m1 m0 ~n2 ~n1 ~n0"
"""The order of kernels that the choice proposes, whatever the tile of a thread: than `SERPENTINE` 8 to 10 % faster for
4 x 8, 1 to 3 % for 8 x 8, and nowhere slower by more than 1 % (docs/decisions/0042-tiles-of-ffma.md)."""

LANE_BITS = 2
"""Bits below this one count a lane's neighbours. The lanes lie between them and the bits that count its pieces."""

_PIECE = 4
"""Neighbouring rows and columns of a lane: 16 bytes of a fragment in f32."""

_WIDEST_BYTES = 16
"""Of an access of a thread."""

_ORDER = re.compile(r"~?[mn]\d( ~?[mn]\d)*")


@dataclass(frozen=True, slots=True)
class SimtConfig(WarpTiled):
    """One kernel of the family.

    tile: m, n, k of a block, elements
    warp_tile: m, n of a warp's part, elements
    lanes_m: lanes of a warp along m; the others lie along n, both in Z order
    stages: of the ring in shared memory
    b_transport: how tiles of B travel, and a_transport those of A
    unroll: k steps in a row, fully unrolled
    raster_rows: rows of tiles that blocks visit together, column by column
    pad: elements after a row of a tile that is transposed on its way
    fma_order: bits of a thread's row and column, slowest first; m0 and n0 tell neighbours apart, ~ marks serpentine
    double_buffered_fragments: fragments are loaded one k step ahead of their FMAs
    split_k: blocks that share the sum over k of a tile
    copied: neighbours of a row that a thread copies together; 1 where rows are unaligned, so that those of a warp are
        neighbours
    columns_together: neighbours of a row of C that a thread has; 1 where rows of C are unaligned
    cluster_k: blocks of a cluster that share the sum over k of a tile, through distributed shared memory (sm_90)
    persistent: no more blocks than run at once, for many tiles
    stream_k: blocks, as many as run at once, share out the k of all tiles in equal parts, and add up in the kernel
    interleaved_copies: a part of the next copies in each of the k steps of a tile, all of which are unrolled
    dependent_launch: it starts under the kernel before (sm_90)
    store: of unaligned rows of C: each thread its own accumulators; or through shared memory, some rows after the
        others, so that the stores of a warp are coalesced
    """

    tile: tuple[int, int, int] = (128, 256, 16)
    lanes_m: int = 4
    stages: int = 2
    b_transport: Transport = "registers"
    unroll: int = 16
    raster_rows: int = 1
    pad: int = 4
    fma_order: str = SERPENTINE
    double_buffered_fragments: bool = False
    split_k: int = 1
    copied: int = 4
    columns_together: int = 4
    cluster_k: int = 1
    persistent: bool = False
    a_transport: Transport = "registers"
    store: Store = "per_thread"
    stream_k: bool = False
    dependent_launch: bool = False
    interleaved_copies: bool = False

    kind: ClassVar[str] = "simt"
    columns: ClassVar[tuple[str, ...]] = (
        *("m", "n", "k", "warp_m", "warp_n", "lanes_m", "stages", "a_transport", "b_transport", "unroll"),
        *("raster_rows", "pad", "fma_order", "double_buffered_fragments", "split_k"),
        *("copied", "columns_together", "cluster_k", "persistent", "store", "stream_k"),
        *("dependent_launch", "interleaved_copies"),
    )

    def __post_init__(self) -> None:
        if not _ORDER.fullmatch(self.fma_order):
            raise ValueError(f"fma_order {self.fma_order!r} is not a sequence of bits such as {SERPENTINE!r}")

    def reasons_against(self, gemm: Gemm) -> tuple[str, ...]:
        """Why this kernel cannot compute a problem, in words; empty if it can."""
        return reasons_against(LAWS, self, self.columns, gemm)

    def schedule(self, gemm: Gemm) -> Schedule:
        """The steps. The parts of split-K are added up by a launch of their own."""
        lanes, z_order = _lanes(self.lanes_m)
        order = self._digits
        rolled = self.unroll < self.k
        inner = "k_unrolled" if rolled else "k_in"
        return Schedule(
            Split("m", self.m, into=("m_block", "m_in")),
            Split("n", self.n, into=("n_block", "n_in")),
            Split("m_in", self.warp_m, into=("m_warp", "m_sub")),
            Split("n_in", self.warp_n, into=("n_warp", "n_sub")),
            *_pieces("m", self.lanes_m, order, _PIECE),
            *_pieces("n", WARP_THREADS // self.lanes_m, order, self.columns_together),
            *z_order,
            Split("k", self.k, into=("k_tile", "k_in")),
            *((Split("k_in", self.unroll, into=("k_step", "k_unrolled")),) if rolled else ()),
            Reorder(
                *("m_block", "n_block", "n_warp", "m_warp"),
                *lanes,
                *(("k_tile", "k_step", "k_unrolled") if rolled else ("k_tile", "k_in")),
                *(digit.name for digit in order),
            ),
            Bind("m_block", Level.GRID_Y),
            Bind("n_block", Level.GRID_X),
            *order_of_tiles(self.raster_rows, self.cluster_k),
            *((Persist(),) if self.persistent else ()),
            # Neighbouring warps share columns of B, which is the wider tile: 0.4 % at 4096^3 on an H200.
            Fuse("n_warp", "m_warp", into="warp"),
            Bind("warp", Level.WARP),
            Fuse(*lanes, into="lane"),
            Bind("lane", Level.LANE),
            Accumulate(over="k_tile"),
            *self._staged(gemm, inner),
            *((Cluster("k_tile", self.cluster_k),) if self.cluster_k > 1 else ()),
            *((DependentLaunch(),) if self.dependent_launch else ()),
        )

    @property
    def _digits(self) -> tuple[Digit, ...]:
        return digits(self.fma_order, {"m": LANE_BITS, "n": self.columns_together.bit_length() - 1})

    def _shared_out(self, gemm: Gemm, name: Literal["A", "B"]) -> Distribute:
        """Who copies what of a tile. A thread copies neighbours in memory; of rows that are transposed by cp.async, one
        element after another, one, so that those of a warp are neighbours."""
        transport = self.a_transport if name == "A" else self.b_transport
        vector = self.copied if transport == "registers" else copied_together(self, gemm, name)
        if gemm.operand(name).contiguous != "k":  # as many as its own rows are multiples of, whatever the other's are
            vector = max(vector, gcd(gemm.leading(name), _MOST_COPIED))
        along = bool(in_short_rows(self, gemm, name)) and transport == "registers"
        rows = _SHORT_ROW if along else 0
        return Distribute(f"{name}_tile", vector=vector, row_threads=rows, thread_guards=bool(guards_own_rows(self)))

    def _staged(self, gemm: Gemm, inner: str) -> tuple[Step, ...]:
        """Tiles in shared memory, fragments in registers, and how C is stored."""
        turning = tuple(digit.name for digit in self._digits if digit.turning)
        return (
            Stage("A", Space.SHARED, under="k_tile"),
            Stage("B", Space.SHARED, under="k_tile"),
            self._shared_out(gemm, "A"),
            self._shared_out(gemm, "B"),
            Relayout("A_tile", rows="k", pad=self.pad),
            # B needs a pad only where it is transposed on its way, as A is where its rows run along k.
            Relayout("B_tile", rows="k", pad=self.pad if gemm.b is Order.COL else 0),
            self._copy("A_tile", self.a_transport),
            self._copy("B_tile", self.b_transport),
            Pipeline("k_tile", self.stages, interleave=inner if self.interleaved_copies else ""),
            Stage("A", Space.REGISTER, under=inner),
            Stage("B", Space.REGISTER, under=inner),
            Vectorize("A_frag", 4),
            Vectorize("B_frag", self.columns_together),
            Vectorize("C", self.columns_together),
            *((Prefetch("A_frag"), Prefetch("B_frag")) if self.double_buffered_fragments else ()),
            Unroll(inner, blocks_told(self, gemm)),
            *((Snake(*turning),) if turning else ()),
            *self._stored(gemm),
            Epilogue(),
        )

    def _copy(self, tile: str, transport: Transport) -> Step:
        """How a tile travels to shared memory. ptxas keeps loads of eight warps of 64 x 64 in front by itself, in 34 of
        34 kernels, where a fence costs 1 to 4 %: the first fragments then queue behind those loads
        (docs/decisions/0074-loads-that-stay-ahead-and-blocks-that-fit.md)."""
        if transport != "registers":
            return Transfer(tile, Route.ASYNC)
        m, n, _ = self.tile
        return Prefetch(tile, fence=self.warp_tile != (64, 64) or m * n != 8 * 64 * 64)

    def _stored(self, gemm: Gemm) -> tuple[Step, ...]:
        """A piece of each lane's rows at a time through shared memory, and from there a row after the other. Where rows
        of C are aligned, as those of partial sums are, per-thread stores are coalesced already."""
        if self.store == "per_thread" or not stores_unaligned_rows(gemm):
            return ()
        pieces = next(digit.name for digit in self._digits if digit.dim == "m" and digit.counts_pieces)
        return Stage("C", Space.SHARED, under=pieces), Distribute("C_tile"), Relayout("C_tile", pad=self.pad)


@dataclass(frozen=True, slots=True)
class Digit:
    """Bits of the number of a thread's row or column that one loop counts, from `low` on; `turning`: serpentine.

    counts_pieces: the lanes lie between these columns, which are no neighbours.
    """

    dim: str
    low: int
    bits: int
    turning: bool
    counts_pieces: bool

    @property
    def name(self) -> str:
        return self.dim + "".join(str(self.low + bit) for bit in reversed(range(self.bits)))


def digits(order: str, lane_bits: Mapping[str, int]) -> tuple[Digit, ...]:
    """The loops of an FMA order. Bits that follow each other in number and in order are one, except across the lanes.

    lane_bits: of m and n, bits that count a lane's neighbours; the others count pieces.

    >>> [digit.name for digit in digits("m3 m2 ~n2 m1 m0 ~n1 ~n0", {"m": 2, "n": 2})]
    ['m32', 'n2', 'm10', 'n10']
    """
    found: list[Digit] = []
    for word in order.split():
        dim, low, turning = word[-2], int(word[-1]), word.startswith("~")
        bits = lane_bits[dim]
        last = found[-1] if found else None
        follows = last is not None and (last.dim, last.low, last.turning) == (dim, low + 1, turning)
        if last is not None and follows and last.low != bits:
            found[-1] = Digit(dim, low, last.bits + 1, turning, low >= bits)
        else:
            found.append(Digit(dim, low, 1, turning, low >= bits))
    return tuple(found)


def _lanes(lanes_m: int) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    """Names of a warp's lane loops in Z order, and the splits that make them.

    The bits of the two lane coordinates alternate, so that lanes t and t^1 or t^2 share a row or a column.
    """
    wide, narrow = ("n", "m") if lanes_m == 4 else ("m", "n")
    splits = (
        Split(f"{narrow}_lane", 2, into=(f"{narrow}_z1", f"{narrow}_z0")),
        Split(f"{wide}_lane", 2, into=(f"{wide}_z21", f"{wide}_z0")),
        Split(f"{wide}_z21", 2, into=(f"{wide}_z2", f"{wide}_z1")),
    )
    return (f"{wide}_z2", f"{narrow}_z1", f"{wide}_z1", f"{narrow}_z0", f"{wide}_z0"), splits


def _pieces(dim: str, lanes: int, order: tuple[Digit, ...], together: int) -> tuple[Step, ...]:
    """What a lane has of a warp tile: pieces of so many neighbours, a loop for each digit."""
    high, low = ([d for d in order if d.dim == dim and d.counts_pieces is above] for above in (True, False))
    rest = f"{dim}_sub"
    steps: list[Step] = []
    for digit in sorted(high, key=lambda d: -d.low):
        inside = f"{dim}_below_{digit.low}" if digit.low or together > 1 else f"{dim}_lane"
        steps.append(Split(rest, lanes << digit.low, into=(digit.name, inside)))
        rest = inside
    if not low:
        return tuple(steps)
    if len(low) == 1:
        return (*steps, Split(rest, together, into=(f"{dim}_lane", low[0].name)))
    inner = Split(f"{dim}10", 2, into=(f"{dim}1", f"{dim}0"))
    return (*steps, Split(rest, together, into=(f"{dim}_lane", f"{dim}10")), inner)


# -- arithmetic, of a configuration or of columns ----------------------------------------------------------------------


def shared_bytes(config: Any, gemm: Gemm) -> Column:
    """Shared memory of a block: of the tiles, with pads of those that are transposed on their way; of the rows of C
    that go through it; and of exchanged sums, with the mbarrier that they arrive at."""
    ring = config.stages * config.k * (config.m + config.n + config.pad * (1 + (gemm.b is Order.COL)))
    rows = config.m // config.warp_m * _PIECE * config.lanes_m * (config.store == "shared")
    exchanged = exchanged_bytes(config) + MBARRIER.bytes * (config.cluster_k > 1)
    return ring * gemm.dtype.bytes + rows * (config.n + config.pad) * F32.bytes + exchanged


_REGISTERS, _OF_A_SUM, _OF_A_COPY, _IN_A_CLUSTER = 32, 1.1, 0.9, 12
"""Registers of a thread: beside what it holds, of each accumulator, of each element on its way through registers, and
more where a cluster shares k. Of 250 kernels of `spaces.simt_core` that NVRTC 13 made for sm_90 the standard deviation
is 14 registers; by twice the accumulators and 32 it is 24."""


def registers_of(config: Any) -> Column:
    """About how many registers ptxas gives a thread: for its accumulators, a row and a column of fragments, and what it
    copies of the next tiles."""
    high, wide = config.warp_m // config.lanes_m, config.warp_n * config.lanes_m // WARP_THREADS
    held = _OF_A_SUM * high * wide + high + wide + _OF_A_COPY * copied_by_registers(config)
    return np.ceil(_REGISTERS + held + _IN_A_CLUSTER * (config.cluster_k > 1)).astype(np.int64)


_SHARED_BYTES = 228 * KIB
"""Of an SM of sm_90, the most of any device; a block takes 1 KiB beside its own."""

_CROWDED_THREADS = 256
"""Of an SM, as many as have room with the most registers that a thread can have, or nearly."""


def blocks_told(config: SimtConfig, gemm: Gemm) -> int:
    """Blocks of an SM that the compiler is told of, where shared memory allows no more, or registers two of 128
    threads; else 0.

    Alone, ptxas saves registers for a block more and may miss, with loads of fragments close before their FMAs: 173 in
    96 x 128 as stream-K, which took 1.17 to 1.25 of their estimates in 10 of 11 kernels. Told of two blocks it makes
    252: 0.81 to 0.83 of the time. In 815 kernels that registers crowd 0.987 of the time, up to 1.17, twice more, where
    ptxas alone had room for a third block (46, 1.00); in 65 that shared memory does 0.98, 0.86 to 1.02. Not told: where
    copies lie between k steps, which then all move ahead (1.01 to 1.32); one block of 256 threads (1.01); where
    registers allow three and more, some of which spill then (up to 1.45). H200, docs/decisions/0077.
    """
    threads = WARP_THREADS * warps_of(config)
    by_registers = REGISTERS_PER_SM // (threads * round_up(int(registers_of(config)), 8))
    by_shared = _SHARED_BYTES // (int(shared_bytes(config, gemm)) + KIB)
    is_crowded = 1 < by_registers <= _CROWDED_THREADS // threads
    told = not config.interleaved_copies and (by_shared <= by_registers or is_crowded)
    return min(by_shared, by_registers) if told else 0


def copied_by_registers(config: Any) -> Column:
    """Elements of the next tiles that a thread has in registers on their way."""
    rows = config.m * (config.a_transport == "registers") + config.n * (config.b_transport == "registers")
    return rows * config.k / (WARP_THREADS * warps_of(config))


_REPEATED_THREADS = 64
"""Accumulators of a thread from which on lines of A and B behind the last one are read once more where k has no edge.
Guards take 1.02 of the time then in the mean of 26 kernels, up to 1.05, and 1.28 in one whose copies lie between k
steps; of smaller threads 0.97, of copies by cp.async along an edge 0.92 and down to 0.64: what is guarded asks for
nothing (H200, benchmarks/results/choice_of_simt.json)."""


def repeats_lines(config: Any) -> Any:
    """Whether a kernel whose k has no edge reads the last lines of A and B in the place of those behind them."""
    by_registers = (config.a_transport == "registers") & (config.b_transport == "registers")
    return by_registers & (accumulators_of(config) >= _REPEATED_THREADS)


_GUARDED_SUMS = 96
"""Accumulators of a thread from which on copies by cp.async compare its own row with what is left at an edge. With a
row for each copy 128 x 128 x 8 whose fragments run ahead has 255 registers and takes 1.25 of the time without edges,
with one 220 and 1.03; 128 x 128 x 16 1.28 and 1.04. Threads of 48 and 64 accumulators take 1.02 and 1.08 of the time
so, up to 1.39 (60 pairs; H200, docs/decisions/0088)."""


def guards_own_rows(config: Any) -> Any:
    """Whether a kernel's copies are guarded so."""
    by_async = (config.a_transport == "cp_async") & (config.b_transport == "cp_async")
    return by_async & (accumulators_of(config) >= _GUARDED_SUMS)


def loads_unaligned_rows(gemm: Gemm) -> bool:
    """Whether rows of A or B do not begin at multiples of the widest access: neighbours cannot be copied together."""
    return any(gemm.leading(name) * gemm.dtype.bytes % _WIDEST_BYTES for name in ("A", "B"))


def stores_unaligned_rows(gemm: Gemm) -> bool:
    """The same of C."""
    return gemm.ldc * gemm.out.bytes % _WIDEST_BYTES != 0


_LEAST_ASYNC_BYTES = 4
"""What cp.async moves at least."""


_SHORT_ROW = 8
"""Neighbours of a row that a warp copies one by one through registers, where a tile has more of them and transposes
them: they lie in banks of their own, and what a thread copies of one row has one address. Kernels take 0.93 of the
time, 0.60 to 1.14 (137 pairs, H200, benchmarks/results/choice_of_simt.json). By cp.async it takes as long, 0.84 to
1.41; where a thread copies four together, 1.05: a warp meets twice as many lines (docs/decisions/0077)."""


def in_short_rows(c: Any, gemm: Gemm, name: OperandName) -> Any:
    """Whether what goes through registers is copied so, of A or B."""
    side = c.m if name == "A" else c.n
    fits = WARP_THREADS * warps_of(c) <= _SHORT_ROW * side
    return (gemm.operand(name).contiguous == "k") & (c.copied == 1) & (c.k > _SHORT_ROW) & fits


def copied_together(c: Any, gemm: Gemm, name: OperandName) -> Any:
    """Elements of A or B that lie side by side both in memory and in its tile, whose rows run along m or n, in a
    copy."""
    return 1 if gemm.operand(name).contiguous == "k" else c.copied


_MOST_COPIED = 4
"""Neighbours of a row that a thread copies together."""


def _moves_few_bytes(name: Literal["A", "B"]) -> Law:
    """cp.async moves neighbours of A or B together."""

    def bytes_of(c: Any, g: Gemm) -> Any:
        return copied_together(c, g, name) * g.dtype.bytes

    return Law(
        lambda c, g: (getattr(c, f"{name.lower()}_transport") == "cp_async") & (bytes_of(c, g) < _LEAST_ASYNC_BYTES),
        lambda c, g: f"neighbours of {name} are copied {bytes_of(c, g)} bytes at once, and cp.async moves 4 at least",
    )


LAWS: tuple[Law, ...] = (
    WARPS_DIVIDE,
    Law(
        lambda c, g: (c.lanes_m != 4) & (c.lanes_m != 8),
        lambda c, g: f"{c.lanes_m} lanes along m: Z order has 4 or 8",
    ),
    Law(
        lambda c, g: (c.warp_m % (_PIECE * c.lanes_m) != 0) | (c.warp_n * c.lanes_m % (_PIECE * WARP_THREADS) != 0),
        lambda c, g: f"lanes of 4 x 4 do not divide warps of {c.warp_m} x {c.warp_n}, {c.lanes_m} of them along m",
    ),
    Law(
        lambda c, g: ((c.copied != 1) & (c.copied != 4)) | ((c.columns_together != 1) & (c.columns_together != 4)),
        lambda c, g: (
            f"a thread copies 1 or 4 neighbours, and has 1 or 4 columns, not {c.copied} and {c.columns_together}"
        ),
    ),
    _moves_few_bytes("A"),
    _moves_few_bytes("B"),
    *THREADS_FIT,
    PERSISTENT_IS_RASTERISED,
    Law(
        lambda c, g: (c.unroll == 0) | (c.k % (c.unroll + (c.unroll == 0)) != 0),
        lambda c, g: f"{c.unroll} unrolled k steps do not divide the {c.k} of a tile",
    ),
    ring_fits(shared_bytes),
    *clusters_along_k(accumulators_of),
    Law(
        lambda c, g: (c.cluster_k > 1) & (c.persistent > 0),
        lambda c, g: "blocks of a cluster that share the sum over k have one tile each: persistent=False",
    ),
    Law(
        lambda c, g: (c.interleaved_copies > 0) & (c.unroll != c.k),
        lambda c, g: f"copies lie between the k steps of a tile, of which {c.unroll} of {c.k} are unrolled",
    ),
    Law(
        lambda c, g: (c.double_buffered_fragments > 0) & (c.unroll != c.k),
        lambda c, g: f"fragments are loaded a k step ahead, of which {c.unroll} of {c.k} are unrolled",
    ),
    Law(
        lambda c, g: (c.stream_k > 0) & ((c.persistent < 1) | (c.split_k > 1)),
        lambda c, g: "blocks that share out the k of all tiles are persistent, and no tile is split besides",
    ),
    Law(
        lambda c, g: (c.store == "shared") & ((c.cluster_k > 1) | (g.accumulators > 1)),
        lambda c, g: "one sum of a tile that a block has alone goes through shared memory: store='per_thread'",
    ),
)
"""What the lowering takes today, all in this place."""
