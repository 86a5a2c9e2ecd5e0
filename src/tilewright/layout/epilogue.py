"""How an epilogue subtile lies in shared memory: in rows that stmatrix and stores of pairs fill without conflicts.

Rows are plain, one after another, or in the swizzle atoms that TMA knows. A row of an odd number of 16-byte units needs
no swizzle: eight rows begin in eight different groups of four banks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.dtypes import Array
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.banks import matrix_wavefronts, wavefronts
from tilewright.layout.fragment import MATRIX_ROWS

UNIT_COLUMNS = 8
"""Columns of C that fragments come in, and every epilogue subtile is a multiple of."""

_ATOM_BYTES = (128, 64, 32)


STAGING_BYTES = 16 << 10
"""Of shared memory for the epilogue of a block, so that the ring has the most stages: what cuBLAS leaves its nvjet
kernels, whatever their tile. Source: tile and stage counts in the names of 83 of them."""

WIDEST_SUBTILE = 64
"""Columns: rows of 128 bytes of 2-byte elements, four sectors."""


def default_subtile(columns: int, rows: int, element_bytes: int, stages: int = 2) -> int:
    """Columns of the epilogue subtiles of `rows` rows, so that so many stages of them take about 16 KiB.

    The widest that divides `columns` without bank conflicts, if it is more than half of what there is room for; else
    a power of two, whose rows begin where sectors do, the last subtile being narrower.

    >>> [default_subtile(columns, 128, 2) for columns in (256, 192, 80, 136, 208)]
    [32, 32, 40, 32, 32]
    >>> [default_subtile(columns, 128, 2, stages=1) for columns in (256, 80, 136, 160)]
    [64, 40, 64, 40]
    """
    room = max(STAGING_BYTES * 5 // 4 // (rows * element_bytes * stages), UNIT_COLUMNS)
    most = min(room, WIDEST_SUBTILE, columns) // UNIT_COLUMNS * UNIT_COLUMNS
    widths = range(most, 0, -UNIT_COLUMNS)
    free = [width for width in widths if not _excess(width, element_bytes, subtile_layout(width, element_bytes))]
    whole = [width for width in free if columns % width == 0 and 2 * width > most]
    return (whole or [width for width in widths if width & (width - 1) == 0])[0]


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
    rows = 2 * MATRIX_ROWS
    lane = np.arange(32)
    excess = 0
    for first in range(0, columns, UNIT_COLUMNS):
        if element_bytes == 2:
            row, column = lane % rows, np.full(32, first)
            address = _places(row, column, rows, columns, atoms) * element_bytes
            excess += int(matrix_wavefronts(address[None], 2)[0]) - 2
        else:
            for half in (0, MATRIX_ROWS):
                row, column = half + lane // 4, first + lane % 4 * 2
                if transposed:
                    row, column = half + lane % 4 * 2, first + lane // 4
                width_bytes = element_bytes * (1 if transposed else 2)
                address = _places(row, column, rows, columns, atoms) * element_bytes
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
