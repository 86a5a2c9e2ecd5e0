"""What the rungs of ladder `hopper` share: the nest of blocks, warpgroups and instructions, and what the formats allow.

Formats of 2 bytes take wgmma.m64nNk16, tf32 takes wgmma.m64nNk8; either way an instruction is 32 bytes of k deep, and
a row of a tile in shared memory is 128 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.buffer import Space
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.ir.program import GROUP_LANES, Level, Route
from tilewright.isa.wgmma import transposes
from tilewright.ladders.rung import Point
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import default_subtile, subtile_layout
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Epilogue,
    Relayout,
    Reorder,
    Split,
    Stage,
    Step,
    Tensorize,
    Transfer,
    Unroll,
    Vectorize,
)

Steps = tuple[Step, ...]

FRAGMENT_ROWS = 64
"""Rows of an instruction."""

DEPTH_BYTES = 32
"""Bytes of k that one instruction multiplies."""

SWIZZLE_ATOM_BYTES = 128
"""A row of a atom: the widest permutation that the copy engine and wgmma know."""

RESERVED_BYTES = 1024
"""Of shared memory, for each block, beside its own. Source: as above."""

_SUMS_BESIDE_ADDRESSES = 128
"""Results of a thread that leave registers for the addresses of a C that lanes store."""

_BARRIER_BYTES = 1024
"""More than the memory barriers of any ring take."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Elements of m and n of a block, bytes of k, and the warpgroups that share out its rows.

    turned: the 64 rows of an instruction run along n, and its columns along m; warpgroups then share out columns of C.
    """

    m: int = 128
    n: int = 128
    groups: int = 1
    k_bytes: int = SWIZZLE_ATOM_BYTES
    turned: bool = False

    @property
    def sums(self) -> int:
        """Results that a thread keeps in registers."""
        return self.m * self.n // self.groups // GROUP_LANES


PLAIN = Tiles()
"""Tiles whose rows are at least as long as the widest atom."""


def nest(gemm: Gemm, tiles: Tiles) -> tuple[Step, ...]:
    """Blocks, warpgroups and instructions: one spans all columns of the block, 64 rows and 32 bytes of k."""
    depth = DEPTH_BYTES // gemm.dtype.bytes
    grouped = tiles.groups > 1
    rows, columns = ("n", "m") if tiles.turned else ("m", "n")
    down, across = (tiles.n, tiles.m) if tiles.turned else (tiles.m, tiles.n)
    return (
        Split(rows, down, into=(f"{rows}_block", f"{rows}_in" if grouped else f"{rows}_own")),
        *((Split(f"{rows}_in", down // tiles.groups, into=(f"{rows}_group", f"{rows}_own")),) if grouped else ()),
        Split(f"{rows}_own", 64, into=(f"{rows}_frag", f"{rows}_mma")),
        Split(columns, across, into=(f"{columns}_block", f"{columns}_mma")),
        Split("k", tiles.k_bytes // gemm.dtype.bytes, into=("k_tile", "k_in")),
        Split("k_in", depth, into=("k_step", "k_mma")),
        Reorder(
            *("m_block", "n_block", *((f"{rows}_group",) if grouped else ()), "k_tile", "k_step", f"{rows}_frag"),
            *(f"{rows}_mma", f"{columns}_mma", "k_mma"),
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        *((Bind(f"{rows}_group", Level.WARPGROUP),) if grouped else ()),
        Tensorize(f"{rows}_mma", f"{columns}_mma", "k_mma", using=f"wgmma.m64n{across}k{depth}"),
        Accumulate(over="k_tile"),
        Epilogue(),
    )


def staged(gemm: Gemm, tiles: Tiles = PLAIN) -> tuple[Step, ...]:
    """Tiles in shared memory as their operands lie, in the widest swizzle atoms that make up their rows."""
    element = gemm.dtype.bytes
    a_bytes = widest_atom(tiles.m * element) if gemm.a is Order.COL else SWIZZLE_ATOM_BYTES
    b_bytes = widest_atom(tiles.n * element) if gemm.b is Order.ROW else SWIZZLE_ATOM_BYTES
    return (
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Relayout("A_tile", arrangement=SwizzleAtoms(a_bytes // element, a_bytes)),
        Relayout("B_tile", arrangement=SwizzleAtoms(b_bytes // element, b_bytes)),
        Unroll("k_step"),
    )


def widest_atom(row_bytes: int) -> int:
    """Bytes of a row of the widest swizzle atoms that make up rows of so many; the narrowest where none do, which a law
    then refuses.

    >>> [widest_atom(columns * 2) for columns in (128, 96, 80, 8)]
    [128, 64, 32, 32]
    """
    return next((atom for atom in (128, 64) if row_bytes % atom == 0), 32)


def by_engine() -> tuple[Step, ...]:
    """Both tiles come by the copy engine."""
    return Transfer("A_tile", Route.TMA), Transfer("B_tile", Route.TMA)


def stored(gemm: Gemm, tiles: Tiles = PLAIN) -> tuple[Step, ...]:
    """Each lane stores its own results, pairs of neighbours along the rows of the instruction where C lies so."""
    return (Vectorize("C", 2),) if gemm.c is (Order.COL if tiles.turned else Order.ROW) else ()


def goes_in_parts(gemm: Gemm) -> bool:
    """Whether C can go out through stmatrix and shared memory: 2 bytes an element, by rows."""
    return gemm.out.bytes == 2 and gemm.c is Order.ROW


def engine_stores(gemm: Gemm) -> bool:
    """Whether the copy engine can take C from there: rows begin and end at multiples of 16 bytes. It clips at no less,
    and would write over what lies behind a row that ends inside."""
    return goes_in_parts(gemm) and not any(row * gemm.out.bytes % 16 for row in (gemm.ldc, gemm.n))


def stored_by_engine(gemm: Gemm, parts: int, places: int = 2, *, tiles: Tiles = PLAIN) -> tuple[Step, ...]:
    """C in several parts through shared memory, from where the copy engine takes it, or lanes where it cannot; as
    `stored` where C cannot go in parts, or sums leave lanes no registers for addresses (NVRTC 13.0 spills 8 bytes)."""
    if not goes_in_parts(gemm) or (tiles.sums > _SUMS_BESIDE_ADDRESSES and not engine_stores(gemm)):
        return stored(gemm)
    return (
        Stage("C", Space.SHARED, subtile=tiles.n // parts, stages=places),
        Relayout("C_tile", arrangement=SwizzleAtoms(SWIZZLE_ATOM_BYTES // gemm.out.bytes)),
        Transfer("C_tile", Route.TMA if engine_stores(gemm) else Route.MATRICES),
    )


def tma_stores(gemm: Gemm) -> bool:
    """Whether TMA can store C of any format and order: its rows begin and end at multiples of 16 bytes."""
    length = gemm.tight_leading("C")
    return not any(elements * gemm.out.bytes % 16 for elements in (gemm.ldc, length))


def stored_in_subtiles(gemm: Gemm, tiles: Tiles, *, subtile: int = 0, stages: int = 2, warps: int = 1) -> Steps:
    """C through shared memory in epilogue subtiles, from where TMA takes it, or the warps of a warpgroup where it
    cannot. subtile: their columns; 0: such that the stages take about 16 KiB. warps: ping-pong warpgroups, which have
    stages of their own."""
    element = gemm.out.bytes
    transposed = tiles.turned is (gemm.c is Order.ROW)  # C's contiguous dimension runs along the instruction's rows
    rows, columns = (tiles.m, tiles.n) if gemm.c is Order.ROW else (tiles.n, tiles.m)
    if transposed:
        subtile = subtile or FRAGMENT_ROWS
    else:
        subtile = min(subtile or default_subtile(columns, rows * warps, element, stages), columns)
    layout = subtile_layout(subtile, element, transposed=transposed)
    return (
        Stage("C", Space.SHARED, subtile=subtile, stages=stages),
        *((Relayout("C_tile", arrangement=layout),) if layout is not None else ()),
        Transfer("C_tile", Route.TMA if tma_stores(gemm) else Route.MATRICES),
    )


def fits(point: Point, blocks: int = 1) -> bool:
    """Whether the tiles of a point fit into shared memory, the sums into registers, and C into its parts; and so many
    blocks of them on an SM."""
    tiles, parts = tiles_at(point), point.get("parts", 0)
    ring_bytes = point["stages"] * (tiles.m + tiles.n) * tiles.k_bytes
    places = min(parts, point.get("places", 2)) * point.get("turns", 1)
    result_bytes = tiles.m * tiles.n // parts * 2 * places if parts else 0
    whole = not parts or tiles.n % (parts * SWIZZLE_ATOM_BYTES // 2) == 0
    block_bytes = ring_bytes + result_bytes + _BARRIER_BYTES
    room = blocks * (block_bytes + RESERVED_BYTES) <= MAX_SHARED_BYTES + RESERVED_BYTES
    return whole and tiles.sums <= 192 and room


def tiles_at(point: Point) -> Tiles:
    """The tiles of a point in a rung's parameters. turned: 1 where it has that one, and it is set."""
    return Tiles(point["m"], point["n"], point["groups"], turned=bool(point.get("turned", 0)))


def takes(gemm: Gemm) -> bool:
    """Whether wgmma reads the operands as they are stored.

    >>> from tilewright.dtypes import TF32
    >>> takes(Gemm(8, 8, 8, product=TF32)), takes(Gemm(8, 8, 8, product=TF32, b=Order.COL))
    (False, True)
    """
    return transposes(gemm.multiplied) or (gemm.a is Order.ROW and gemm.b is Order.COL)
