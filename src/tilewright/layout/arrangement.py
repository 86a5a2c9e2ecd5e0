"""How the columns of a shared tile are permuted within their rows.

A staged tile is a C array of rows; an arrangement says at which column of its row an element lies. The formulas use
only `+ * // % ^ & >> <<` and, where a table fits no formula, its entries; so they work on integers, NumPy arrays and
index expressions alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Union

import numpy as np

from tilewright.errors import LoweringError

MAX_SHIFT = 16
"""Above any bit of a row or column of a shared tile, below the 32 that an index is shifted by at most."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Columns dealt out to `of` runs: column `of*q + r` of a row of n lies at `r * (n / of) + q`.

    Threads that each read `of` neighbouring columns, one at a time, then touch neighbouring words.

    >>> [Interleaved(2).column(0, c, 6) for c in range(6)]
    [0, 3, 1, 4, 2, 5]
    """

    of: int

    def column(self, row: Any, col: Any, columns: int) -> Any:
        """Where column `col` of row `row` lies in a row of `columns` elements."""
        return (col % self.of) * (columns // self.of) + col // self.of

    def run(self, columns: int) -> int:
        """Neighbouring columns that stay neighbours, from a multiple of their number on."""
        return 1

    def problem(self, rows: int, columns: int) -> str | None:
        """Why a tile of this shape cannot be arranged so, or None."""
        fits = _is_count(self.of) and self.of >= 1 and columns % self.of == 0
        return None if fits else f"{columns} columns cannot be dealt out to {self.of!r} runs"

    @property
    def text(self) -> str:
        return f"columns in {self.of} interleaved runs"


@dataclass(frozen=True, slots=True)
class Xor:
    """Column bits flipped by row bits: `col ^ (((row >> shift) & (2**bits - 1)) << base)`.

    Runs of `2**base` columns stay together, so vector accesses of that width stay legal.

    >>> [[Xor(bits=1, base=1, shift=0).column(r, c, 4) for c in range(4)] for r in range(2)]
    [[0, 1, 2, 3], [2, 3, 0, 1]]
    """

    bits: int
    base: int
    shift: int = 0

    def column(self, row: Any, col: Any, columns: int) -> Any:
        """Where column `col` of row `row` lies in a row of `columns` elements."""
        return col ^ (((row >> self.shift) & ((1 << self.bits) - 1)) << self.base)

    def run(self, columns: int) -> int:
        """Neighbouring columns that stay neighbours, from a multiple of their number on."""
        return 1 << self.base

    def problem(self, rows: int, columns: int) -> str | None:
        """Why a tile of this shape cannot be arranged so, or None."""
        if not all(_is_count(part) and 0 <= part < MAX_SHIFT for part in (self.bits, self.base, self.shift)):
            return f"bits, base and shift of {self!r} are whole numbers from 0 to {MAX_SHIFT - 1}"
        span = 1 << (self.bits + self.base)
        return None if columns % span == 0 else f"{columns} columns are not a multiple of the {span} the XOR permutes"

    @property
    def text(self) -> str:
        row = f"row >> {self.shift}" if self.shift else "row"
        return f"columns ^ ({row} & {(1 << self.bits) - 1}) << {self.base}"


@dataclass(frozen=True, slots=True)
class Permuted:
    """Columns permuted by a table: column `c` of each row lies at `table[c]`.

    A table of several rows' length is used in turn: in rows of n columns, column `c` of row `r` lies at entry `r*n + c`
    of the table, which begins again after its last row.

    Where each bit of the place is an XOR of bits of row and column, the place is computed from those bits: that holds
    for XOR swizzles, permutations and rotations of bits, and columns dealt out to a power of two of runs, and costs a
    few integer instructions. Any other table stands in the kernel and is read, one entry for each run of columns that
    stays together, before the access itself. That read goes through L1, where lanes may read different entries at once
    (constant memory would serve them one after another); the simulator does not count it.

    >>> [Permuted((2, 0, 1)).column(0, c, 3) for c in range(3)]
    [2, 0, 1]
    >>> [[Permuted((0, 1, 1, 0)).column(r, c, 2) for c in range(2)] for r in range(3)]
    [[0, 1], [1, 0], [0, 1]]
    """

    table: tuple[int, ...]

    def column(self, row: Any, col: Any, columns: int) -> Any:
        """Where column `col` of row `row` lies in a row of `columns` elements."""
        images = _bit_images(self.table, columns)
        if images is not None:
            bits = columns.bit_length() - 1
            return _from_bits(((col, images[:bits]), (row, images[bits:]))) ^ self.table[0]
        run = self.run(columns)
        runs = columns // run
        index = row % (len(self.table) // columns) * runs + col // run
        return _entry(tuple(place // run for place in self.table[::run]), index) * run + col % run

    def run(self, columns: int) -> int:
        """Neighbouring columns that stay neighbours, from a multiple of their number on."""
        return _longest_run(self.table, columns)

    def problem(self, rows: int, columns: int) -> str | None:
        """Why a tile of this shape cannot be arranged so, or None."""
        table = self.table
        if not isinstance(table, tuple) or not table or not all(map(_is_count, table)):  # type: ignore[redundant-expr]
            return "the table of Permuted is a tuple of whole numbers"
        if len(table) % columns:
            return f"a table of {len(table)} places does not hold whole rows of {columns}"
        for first in range(0, len(table), columns):
            missing = set(range(columns)).difference(table[first : first + columns])
            if missing:
                which = f"row {first // columns} of the table" if len(table) > columns else "the table"
                return f"{which} is not a permutation of 0 to {columns - 1}, because no column lies at {min(missing)}"
        return None

    @property
    def text(self) -> str:
        return f"columns permuted by a table of {len(self.table)}"


@dataclass(frozen=True, slots=True)
class Auto:
    """A layout that is still to be found: free of bank conflicts, by counting those of pads and XOR swizzles.

    It stands for another arrangement until `build` has found that one, and fits whatever that one may have to.
    """

    def column(self, row: Any, col: Any, columns: int) -> Any:
        raise LoweringError("The layout of a tile is still to be found.", hint="build(gemm, schedule) finds it.")

    def run(self, columns: int) -> int:
        """Neighbouring columns that stay neighbours, from a multiple of their number on."""
        return columns

    def problem(self, rows: int, columns: int) -> str | None:
        """Why a tile of this shape cannot be arranged so, or None."""
        return None

    @property
    def text(self) -> str:
        return "laid out as will be found"


@lru_cache
def _longest_run(table: tuple[int, ...], columns: int) -> int:
    runs = (run for run in range(columns, 0, -1) if columns % run == 0)
    return next(run for run in runs if _keeps(table, run))


def _keeps(table: Sequence[int], run: int) -> bool:
    """Whether each aligned run of places is an aligned run again."""
    starts = range(0, len(table), run)
    return all(
        table[at] % run == 0 and all(table[at + step] == table[at] + step for step in range(run)) for at in starts
    )


@lru_cache
def _bit_images(table: tuple[int, ...], columns: int) -> tuple[int, ...] | None:
    """What each bit of the number of an entry flips in the entry, lowest first; None where bits do more than flip."""
    count = len(table)
    if count & (count - 1) or columns & (columns - 1):
        return None
    images = tuple(table[1 << bit] ^ table[0] for bit in range(count.bit_length() - 1))
    flips = [table[0]]
    for image in images:
        flips += [place ^ image for place in flips]
    return images if tuple(flips) == table else None


def _from_bits(sources: Sequence[tuple[Any, Sequence[int]]]) -> Any:
    """The XOR of the images of all bits that are set in the sources.

    Neighbouring bits that move equally far are moved together. What meets no other bit is added, not XORed: sums can
    be simplified further.
    """
    place: Any = sources[0][0] * 0
    used = 0
    for source, images in sources:
        for shift in range(-MAX_SHIFT, MAX_SHIFT):
            moved = [bit for bit, image in enumerate(images) if bit + shift >= 0 and image >> (bit + shift) & 1]
            for low, width in _neighbours(moved):
                part = source // (1 << low) % (1 << width) * (1 << (low + shift))
                target = ((1 << width) - 1) << (low + shift)
                place = place ^ part if used & target else place + part
                used |= target
    return place


def _neighbours(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs: the first and how many.

    >>> _neighbours([0, 1, 2, 5])
    [(0, 3), (5, 1)]
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def _entry(table: tuple[int, ...], index: Any) -> Any:
    """`table[index]` for an integer, an array or an index expression."""
    if isinstance(index, int):
        return table[index]
    return np.take(table, index) if isinstance(index, np.ndarray) else index.entry_of(table)


@dataclass(frozen=True, slots=True)
class SwizzleAtoms:
    """Rows cut into swizzle atoms of `columns` elements, `row_bytes` bytes, that lie one after another.

    Inside a atom the 16-byte pieces of a row are permuted by the number of the row, as TMA writes them and
    wgmma reads them.

    row_bytes is 32, 64 or 128; with 128, elements of 2 bytes have 64 columns a atom.

    >>> [SwizzleAtoms(64).column(row, 0, 64) for row in range(4)]
    [0, 8, 16, 24]
    """

    columns: int
    row_bytes: int = 128

    def column(self, row: Any, col: Any, columns: int) -> Any:
        """Where column `col` of row `row` lies, swizzle atoms side by side."""
        pieces = self.row_bytes // 16
        shift = (128 // self.row_bytes).bit_length() - 1
        base = (self.columns // pieces).bit_length() - 1
        return col ^ (((row >> shift) & (pieces - 1)) << base)

    def run(self, columns: int) -> int:
        """Neighbouring columns that stay neighbours, from a multiple of their number on: those of 16 bytes."""
        return self.columns * 16 // self.row_bytes

    def problem(self, rows: int, columns: int) -> str | None:
        """Why a tile of this shape cannot be arranged so, or None."""
        if self.row_bytes not in (32, 64, 128):
            return f"rows of a atom have 32, 64 or 128 bytes, not {self.row_bytes!r}"
        if not _is_count(self.columns) or self.columns < 1 or self.row_bytes % self.columns:
            return f"{self.columns!r} columns do not fill {self.row_bytes} bytes"
        if rows % 8 or columns % self.columns:
            return f"swizzle atoms have rows by the 8 and {self.columns} columns"
        return None

    @property
    def text(self) -> str:
        return f"in swizzle atoms of {self.columns} columns, 16-byte pieces permuted by the row"


Arrangement = Union[Interleaved, Xor, Permuted, SwizzleAtoms, Auto]  # noqa: UP007
