"""How the columns of a shared tile are permuted within their rows.

A staged tile is a C array of rows; an arrangement says at which column of its row an element lies. The formulas use
only `+ * // % ^ & >> <<`, so they work on integers, NumPy arrays and index expressions alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

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
        return f"columns ^ (row >> {self.shift} & {(1 << self.bits) - 1}) << {self.base}"


Arrangement = Union[Interleaved, Xor]  # noqa: UP007
