"""How an epilogue subtile lies in shared memory: in rows that stmatrix and stores of pairs fill without conflicts.

Rows are plain, one after another, or in the swizzle atoms that TMA knows. A row of an odd number of 16-byte units needs
no swizzle: eight rows begin in eight different groups of four banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.dtypes import Array
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.banks import matrix_wavefronts, wavefronts
from tilewright.layout.fragment import MATRIX_ROWS, Fragment, warpgroup_accumulator

UNIT_COLUMNS = 8
"""Columns of C that fragments come in, and every epilogue subtile is a multiple of."""

_ATOM_BYTES = (128, 64, 32)


STAGING_BYTES = 16 << 10
"""Of shared memory for the epilogue of a block, so that the ring has the most stages: what cuBLAS leaves its nvjet
kernels, whatever their tile. Source: tile and stage counts in the names of 83 of them."""

WIDEST_SUBTILE, MAX_ROW_BYTES = 64, 128
"""Columns, and bytes of a row: those of a swizzle atom, four sectors."""


def default_subtile(columns: int, rows: int, element_bytes: int, stages: int = 2) -> int:
    """Columns of the epilogue subtiles of `rows` rows, so that so many stages of them take about 16 KiB, or twice that
    of elements of 4 bytes: boxes of 32 and 64 bytes a row are slow.

    The widest that divides `columns` without bank conflicts, if it is more than half of what there is room for; else
    a power of two, whose rows begin where sectors do, the last subtile being narrower.

    >>> [default_subtile(columns, 128, 2) for columns in (256, 192, 80, 136, 208)]
    [32, 32, 40, 32, 32]
    >>> [default_subtile(columns, 128, 2, stages=1) for columns in (256, 80, 136, 160)]
    [64, 40, 64, 40]
    """
    room = max(STAGING_BYTES * 5 // 4 // (rows * min(element_bytes, 2) * stages), UNIT_COLUMNS)
    widest = min(WIDEST_SUBTILE, MAX_ROW_BYTES // element_bytes)
    most = min(room, widest, columns) // UNIT_COLUMNS * UNIT_COLUMNS
    widths = range(most, 0, -UNIT_COLUMNS)
    free = [width for width in widths if not _excess(width, element_bytes, subtile_layout(width, element_bytes))]
    whole = [width for width in free if columns % width == 0 and 2 * width > most]
    return (whole or [width for width in widths if width & (width - 1) == 0])[0]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Another order of stores: where a bit of its number is set, a lane stores register
    `r ^ registers` with the instruction that stores register r of others."""

    lane_bit: int
    registers: int

    def bit(self, lane: Any) -> Any:
        """Whether a lane does, 0 or 1; of numbers, arrays and expressions.

        >>> [Exchange(2, 8).bit(lane) for lane in (3, 4, 8)]
        [0, 1, 0]
        """
        return lane // (1 << self.lane_bit) % 2


CHUNK_COLUMNS = 16
"""Columns of a fragment that are stored together: an stmatrix of four matrices moves them, beside 16 rows of a warp."""

_EXCHANGED_COLUMNS = 32
"""The same where lanes exchange the order of registers that are half as many columns apart."""


def columns_together(columns: int, element_bytes: int, *, transposed: bool = False) -> int:
    """Of a subtile of so many columns, those of fragments that a lane finishes before it stores them."""
    wide = element_bytes == 4 and not transposed and columns % _EXCHANGED_COLUMNS == 0
    return _EXCHANGED_COLUMNS if wide else CHUNK_COLUMNS


@lru_cache
def subtile_layout(columns: int, element_bytes: int, *, transposed: bool = False) -> SwizzleAtoms | None:
    """Where the rows of a subtile lie with the fewest bank conflicts; None for plain rows.

    Of layouts with equally few conflicts the one of the widest TMA boxes. transposed: the rows of fragments run along
    the rows of the subtile, as under swap-AB; such subtiles always lie in atoms.

    >>> [subtile_layout(columns, 2) for columns in (64, 40, 32, 48)]  # 8, 5, 4 and 6 units of 16 bytes
    [SwizzleAtoms(columns=64, row_bytes=128), None, SwizzleAtoms(columns=32, row_bytes=64), \
SwizzleAtoms(columns=16, row_bytes=32)]
    """
    layouts = [SwizzleAtoms(row_bytes // element_bytes, row_bytes) for row_bytes in _ATOM_BYTES]
    fitting: list[SwizzleAtoms | None] = [atoms for atoms in layouts if columns % atoms.columns == 0]

    def cost(atoms: SwizzleAtoms | None) -> tuple[int, int]:
        box_bytes = columns * element_bytes if atoms is None else atoms.row_bytes
        return _excess(columns, element_bytes, atoms, transposed=transposed), -box_bytes

    return min(fitting if transposed else [*fitting, None], key=cost)


@lru_cache
def _excess(columns: int, element_bytes: int, atoms: SwizzleAtoms | None, *, transposed: bool = False) -> int:
    """Wavefronts above the fewest possible with which a warp fills 16 rows of a subtile."""
    if element_bytes != 2:
        fragment = warpgroup_accumulator(max(columns, CHUNK_COLUMNS))
        return exchange_of(fragment, columns, element_bytes, atoms, transposed=transposed)[1]
    lane, rows = np.arange(32), 2 * MATRIX_ROWS
    excess = 0
    for first in range(0, columns, UNIT_COLUMNS):
        address = _places(lane % rows, np.full(32, first), rows, columns, atoms) * element_bytes
        excess += int(matrix_wavefronts(address[None], 2)[0]) - 2
    return excess


@lru_cache
def exchange_of(
    fragment: Fragment,
    columns: int,
    element_bytes: int,
    atoms: SwizzleAtoms | None,
    *,
    transposed: bool = False,
    chunk: int = 0,
) -> tuple[Exchange | None, int]:
    """How lanes exchange the order in which they store the registers of a chunk, so that a warp has the fewest bank
    conflicts; and the wavefronts above the fewest possible that are left, of all chunks of a subtile. Pairs of
    elements of 4 bytes: for single ones, under swap-AB, the choice between registers takes longer than two-way
    conflicts, 1.019 of the time in 27 pairs of kernels (H200; pairs of elements 0.994, 37). chunk: columns that are
    stored together, if fewer than may be.

    >>> exchange_of(warpgroup_accumulator(32), 32, 4, SwizzleAtoms(32, 128))
    (Exchange(lane_bit=1, registers=8), 0)
    """
    chunk = chunk or (CHUNK_COLUMNS if transposed else min(columns, columns_together(columns, element_bytes)))
    together = 1 if transposed else fragment.neighbours(1)
    steps = [step for step in (1, 2, 4, 8) if together <= step < chunk // 2 and element_bytes == 4 and together > 1]
    ways: list[Exchange | None] = [None, *(Exchange(bit, step) for step in steps for bit in range(5))]
    found = [_wavefronts_above(fragment, columns, element_bytes, atoms, way, chunk, transposed) for way in ways]
    least = min(found)
    return ways[found.index(least)], least


def _wavefronts_above(
    fragment: Fragment,
    columns: int,
    element_bytes: int,
    atoms: SwizzleAtoms | None,
    exchange: Exchange | None,
    chunk: int,
    transposed: bool,
) -> int:
    """Those of a warp that stores its registers of a fragment, as they lie side by side."""
    lane, together = np.arange(32), 1 if transposed else fragment.neighbours(1)
    width_bytes, excess = element_bytes * together, 0
    for first in range(0, (chunk if transposed else columns) // 2, together):
        register = first if exchange is None else first ^ exchange.bit(lane) * exchange.registers
        row, column = fragment.element(lane, register)
        if transposed:
            row, column = column, row
        address = _places(row, column, fragment.rows, columns, atoms) * element_bytes
        excess += int(wavefronts(address[None], width_bytes, store=True)[0]) - max(width_bytes // 4, 1)
    return excess


def _places(row: Array, column: Array, rows: int, columns: int, atoms: SwizzleAtoms | None) -> Array:
    """The elements of a dense subtile at which these lie."""
    if atoms is None:
        plain: Array = row * columns + column
        return plain
    wide = atoms.columns
    swizzled: Array = (column // wide * rows + row) * wide + atoms.column(row, column % wide, wide)
    return swizzled
