"""The steps that kernels for wgmma share: the nest of blocks, warpgroups and instructions, staged tiles, stores of C.

Formats of 2 bytes take wgmma.m64nNk16, tf32 takes wgmma.m64nNk8: an instruction is 32 bytes of k deep, and a row of a
tile in shared memory is 128 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.ir.buffer import Space
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.ir.program import GROUP_LANES, Level, RasterOrder, Route
from tilewright.isa.wgmma import transposes
from tilewright.kernels.columns import Column
from tilewright.kernels.tile_sizes import order_of_tiles
from tilewright.kernels.work import is_misaligned
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import default_subtile, subtile_layout
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.problem.values import Applied, inside
from tilewright.schedule import (
    Accumulate,
    Bind,
    Cluster,
    Epilogue,
    Persist,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Specialize,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)

_APART = 3
"""Stages that a warpgroup with the tensor cores to itself takes about as long for as the one before it for its part of
C: of 128 x 256 they are 1536 clocks, and the first three of four stores have begun after 1440."""

_BUSY = 64
"""Of m * n / (m + n): an SM multiplies a stage in m * n / 32 clocks, and gets 64 bytes a clock of its 128 (m + n)."""

DEPTH_BYTES = 32
"""Bytes of k that one instruction multiplies."""

INSTRUCTION_ROWS = 64
"""Rows of C that one instruction computes."""

SWIZZLE_ATOM_BYTES = 128
"""A row of the widest swizzle atom that TMA and wgmma know."""

ACCUMULATORS_BESIDE_ADDRESSES = 128
"""Accumulators of a thread that leave registers for the addresses of per-thread stores of C."""

_OF_FUNCTIONS = 16


@lru_cache(maxsize=64)
def function_registers(gemm: Gemm) -> int:
    """Registers of a thread for what an epilogue computes beside a sum: where it applies functions beside a matrix that
    it reads, makes an element of its neighbour's values, or folds. Without them NVRTC 13.5 spills 16 to 204 bytes with
    192 accumulators; kernels that transpose C on its way out have more to spare."""
    epilogue = gemm.epilogue
    values = () if epilogue.function is None else (epilogue.value, *(one.value for one in epilogue.results))
    applies = any(isinstance(part, Applied) for value in values for part in inside(value))
    reads = any(not one.is_vector for one in epilogue.named)
    folds = any(one.fold is not None for one in epilogue.written)
    return _OF_FUNCTIONS if (applies and reads) or folds or epilogue.has_pairs else 0


@dataclass(frozen=True, slots=True)
class WgmmaTile:
    """The tile of a block. m, n: elements. consumers: warpgroups that share its rows. k_bytes: bytes of k.

    swap_ab: the 64 rows of an instruction run along n, and its columns along m; the consumers share columns of C.
    left_in_registers: the operand of those rows, in which m or n is contiguous, is read through registers.
    """

    m: int = 128
    n: int = 128
    consumers: int = 1
    k_bytes: int = SWIZZLE_ATOM_BYTES
    swap_ab: bool = False
    left_in_registers: bool = False

    @property
    def left(self) -> OperandName:
        """The operand of an instruction's rows."""
        return "B" if self.swap_ab else "A"

    @property
    def accumulators(self) -> int:
        """Accumulators of a thread."""
        return self.m * self.n // self.consumers // GROUP_LANES

    @property
    def fragments(self) -> int:
        """Fragments of 64 rows of a warpgroup."""
        return (self.n if self.swap_ab else self.m) // (INSTRUCTION_ROWS * self.consumers)


PLAIN = WgmmaTile()
"""A tile whose rows are at least as long as the widest swizzle atom."""


def nest(gemm: Gemm, tile: WgmmaTile, promote_every: int = 0) -> tuple[Step, ...]:
    """Blocks, warpgroups and instructions; an instruction spans all columns of the block, 64 rows and 32 bytes of k.
    promote_every: of `Accumulate`."""
    depth = DEPTH_BYTES // gemm.dtype.bytes
    shared = tile.consumers > 1
    rows, columns = ("n", "m") if tile.swap_ab else ("m", "n")
    down, across = (tile.n, tile.m) if tile.swap_ab else (tile.m, tile.n)
    halves = tile.left_in_registers
    inside = (f"{rows}_frag", "k_step") if promotes_in_turn(gemm, tile, promote_every) else ("k_step", f"{rows}_frag")
    instruction = f"wgmma.m64n{across}k{depth}{'.paired' if halves else ''}"
    return (
        Split(rows, down, into=(f"{rows}_block", f"{rows}_in" if shared else f"{rows}_own")),
        *((Split(f"{rows}_in", down // tile.consumers, into=(f"{rows}_group", f"{rows}_own")),) if shared else ()),
        Split(f"{rows}_own", INSTRUCTION_ROWS, into=(f"{rows}_frag", f"{rows}_mma")),
        Split(columns, across, into=(f"{columns}_block", f"{columns}_mma")),
        Split("k", tile.k_bytes // gemm.dtype.bytes, into=("k_tile", "k_in")),
        *((Split("k_in", tile.k_bytes // gemm.dtype.bytes // 2, into=("k_half", "k_pair")),) if halves else ()),
        Split("k_pair" if halves else "k_in", depth, into=("k_step", "k_mma")),
        Reorder(
            *("m_block", "n_block", *((f"{rows}_group",) if shared else ()), "k_tile"),
            *(*(("k_half",) if halves else ()), *inside),
            *(f"{rows}_mma", f"{columns}_mma", "k_mma"),
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        *((Bind(f"{rows}_group", Level.WARPGROUP),) if shared else ()),
        Tensorize(f"{rows}_mma", f"{columns}_mma", "k_mma", using=instruction),
        Accumulate(over="k_tile", promote_every=promote_every),
        Epilogue(),
    )


def promotes_in_turn(gemm: Gemm, tile: WgmmaTile, promote_every: int) -> bool:
    """Whether a warpgroup promotes the accumulators of one fragment of 64 rows before it sums the next fragment in the
    same registers: of several, where promotion comes with each k tile, another warpgroup of the tile multiplies
    meanwhile, and no product changes what was summed before."""
    whole = promote_every * gemm.dtype.bytes == tile.k_bytes
    return whole and gemm.pieces is None and tile.consumers > 1 and tile.fragments > 1


def staged(gemm: Gemm, tile: WgmmaTile = PLAIN) -> tuple[Step, ...]:
    """Tiles in shared memory as their operands lie, in the widest swizzle atoms that make up their rows."""
    element, sizes = gemm.dtype.bytes, {"m": tile.m, "n": tile.n}
    rows = {name: sizes.get(gemm.operand(name).contiguous) for name in gemm.factors}  # None: rows run along k
    wide = {name: SWIZZLE_ATOM_BYTES if row is None else atom_bytes(row * element) for name, row in rows.items()}
    return (
        *(Stage(name, Space.SHARED, under="k_tile") for name in gemm.factors),
        *(Relayout(f"{name}_tile", arrangement=SwizzleAtoms(w // element, w)) for name, w in wide.items()),
        Unroll("k_step"),
    )


def through_registers(tile: WgmmaTile) -> tuple[Step, ...]:
    """Fragments of the operand of an instruction's rows, half a k tile of them while the MMAs of the other half read
    theirs; a lane loads two neighbours along the rows at once."""
    if not tile.left_in_registers:
        return ()
    name = f"{tile.left}_frag"
    return (
        Stage(tile.left, Space.REGISTER, under="k_half"),
        Prefetch(name),
        Vectorize(name, 2),
        Unroll("k_half"),
    )


def atom_bytes(row_bytes: int) -> int:
    """Bytes of a row of the widest swizzle atoms that make up rows of so many; the narrowest where none do, which a law
    then refuses.

    >>> [atom_bytes(columns * 2) for columns in (128, 96, 80, 8)]
    [128, 64, 32, 32]
    """
    return next((atom for atom in (128, 64) if row_bytes % atom == 0), 32)


def loaded_by_tma(gemm: Gemm, evict_first: str = "") -> tuple[Step, ...]:
    """All tiles are loaded by TMA. evict_first: operands, with all their factors, whose lines leave the L2 first."""
    return tuple(Transfer(f"{name}_tile", Route.TMA, evict_first=name[:1] in evict_first) for name in gemm.factors)


def stored_per_thread(gemm: Gemm, tile: WgmmaTile = PLAIN) -> tuple[Step, ...]:
    """Per-thread stores of C, of pairs where C's rows run along the columns of the instruction, or its rows are in
    pairs."""
    along_columns = gemm.c is (Order.COL if tile.swap_ab else Order.ROW)
    return (Vectorize("C", 2),) if along_columns or tile.left_in_registers else ()


def stages_c(gemm: Gemm) -> bool:
    """Whether C can pass through shared memory: row-major, and elements of 2 or 4 bytes, which warps can store wherever
    rows begin, or rows that TMA can store."""
    return gemm.c is Order.ROW and (gemm.out.bytes in (2, 4) or rows_fit_tma(gemm))


def tma_stores(gemm: Gemm) -> bool:
    """Whether TMA can store C: rows begin and end at multiples of 16 bytes. TMA clips at no less, and would overwrite
    what lies behind a row that ends inside 16 bytes."""
    size_bytes = gemm.out.bytes
    return stages_c(gemm) and gemm.ldc * size_bytes % 16 == 0 and gemm.n * size_bytes % 16 == 0


def stored_through_shared(gemm: Gemm, subtiles: int, *, tile: WgmmaTile = PLAIN) -> tuple[Step, ...]:
    """C in several epilogue subtiles through shared memory, then by TMA, or by vector stores where TMA cannot store it.
    subtiles: of a tile of C of 2 bytes an element; those of wider ones are as many times narrower.

    Per-thread stores where C cannot be staged, or where accumulators leave a thread no registers for the addresses of
    vector stores (NVRTC 13.0 spills 8 bytes).
    """
    if not stages_c(gemm) or (tile.accumulators > ACCUMULATORS_BESIDE_ADDRESSES and not tma_stores(gemm)):
        return stored_per_thread(gemm)
    columns = tile.n // (subtiles * max(1, gemm.out.bytes // 2))
    return (
        Stage("C", Space.SHARED, subtile=columns, stages=2),
        Relayout("C_tile", arrangement=SwizzleAtoms(SWIZZLE_ATOM_BYTES // gemm.out.bytes)),
        Transfer("C_tile", Route.TMA if tma_stores(gemm) else Route.MATRICES),
    )


def rows_fit_tma(gemm: Gemm) -> bool:
    """Whether TMA can store C of any format and order: its rows begin and end at multiples of 16 bytes."""
    length = gemm.tight_leading("C")
    return not any(elements * gemm.out.bytes % 16 for elements in (gemm.ldc, length))


def stored_in_subtiles(
    gemm: Gemm, tile: WgmmaTile, *, subtile: int = 0, stages: int = 2, owners: int = 1, evict_first: bool = False
) -> tuple[Step, ...]:
    """C through shared memory in epilogue subtiles, from where TMA takes it, or the warps of a warpgroup where it
    cannot. subtile: their columns; 0: such that the stages take about 16 KiB. owners: ping-pong consumers, which have
    stages of their own. evict_first: what TMA stores leaves the L2 first."""
    element = gemm.out.bytes
    transposed = tile.swap_ab is (gemm.c is Order.ROW)  # C's contiguous dimension runs along the instruction's rows
    rows, columns = (tile.m, tile.n) if gemm.c is Order.ROW else (tile.n, tile.m)
    if transposed:
        subtile = subtile or INSTRUCTION_ROWS
    else:
        subtile = min(subtile or default_subtile(columns, rows * owners, element, stages), columns)
    layout = subtile_layout(subtile, element, transposed=transposed)
    return (
        Stage("C", Space.SHARED, subtile=subtile, stages=stages),
        *((Relayout("C_tile", arrangement=layout),) if layout is not None else ()),
        *_leaves(gemm, subtile, evict_first),
    )


def stores_rows(subtile: Column, gemm: Gemm) -> Column:
    """Whether warps store the rows of epilogue subtiles: where rows of C begin inside sectors, of subtiles wider than a
    swizzle atom. The boxes of TMA are no wider, and meet inside a sector each time."""
    inside = rows_fit_tma(gemm) and is_misaligned(gemm, "C")
    return (subtile * gemm.out.bytes > SWIZZLE_ATOM_BYTES) & inside


def _leaves(gemm: Gemm, subtile: int, evict_first: bool) -> tuple[Step, ...]:
    """How epilogue subtiles are stored: by TMA, or by warps where it cannot, or whole rows are better."""
    if not rows_fit_tma(gemm):
        return (Transfer("C_tile", Route.MATRICES),)
    if stores_rows(subtile, gemm):
        return Transfer("C_tile", Route.MATRICES), Vectorize("C_tile", WIDEST_BYTES // gemm.out.bytes)
    return (Transfer("C_tile", Route.TMA, evict_first),)


def reads_orders(gemm: Gemm) -> bool:
    """Whether wgmma reads the operands from shared memory as they are stored.

    >>> from tilewright.dtypes import TF32
    >>> reads_orders(Gemm(8, 8, 8, product=TF32)), reads_orders(Gemm(8, 8, 8, product=TF32, b=Order.COL))
    (False, True)
    """
    return transposes(gemm.multiplied) or (gemm.a is Order.ROW and gemm.b is Order.COL)


def in_roles(config: Any, registers: tuple[int, int]) -> Specialize:
    """A producer, and consumers with so many registers a thread each.

    Of its last stages a consumer leaves as many to the one before it first as the ring can hold beside one, where tiles
    keep the tensor cores busy. Those that wait for memory would only end later.
    """
    together = config.consumers > 1 and not config.ping_pong and not config.promote_every
    busy = config.m * config.n >= _BUSY * (config.m + config.n)
    apart = min(config.stages - 1, _APART) if together and busy else 0
    return Specialize(registers=registers, ping_pong=config.consumers if config.ping_pong else 1, apart=apart)


def visits(c: Any) -> tuple[Step, ...]:
    """In which order blocks visit tiles of C, of a configuration."""
    sizes = (("m_block", c.cluster_m), ("n_block", c.cluster_n), ("k_tile", c.cluster_k))
    clusters = tuple(Cluster(loop, size) for loop, size in sizes if size > 1)
    if not c.persistent:
        return *order_of_tiles(c.raster_rows, len(clusters) + 1), *clusters
    order = RasterOrder.SERPENTINE if c.serpentine else RasterOrder.GROUPED
    return Raster(order, c.raster_rows, alternating_k=c.serpentine), Persist(), *clusters
