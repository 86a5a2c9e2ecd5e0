"""Which lane and register holds which element of a matrix that a group of lanes keeps together.

A fragment is a set of digits: each digit of the lane's number, or of the register's number, adds its stride to the row
or to the column. So the layouts of tensor-core operands are written down once and can be read both ways; the formulas
use only `+ * // %` and work on integers, NumPy arrays and index expressions alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright.dtypes import Array
from tilewright.enums import Spelled

MATRIX_ROWS = 8
"""ldmatrix and stmatrix move matrices of eight rows. Source: PTX ISA 9.0, ldmatrix."""

TRANSPOSED_BYTES = 2
"""Bytes of the elements that ldmatrix and stmatrix can transpose. Source: PTX ISA 9.0, ldmatrix, .trans and .b16."""

MATRIX_ROW_BYTES = 16
"""Bytes of one row of such a matrix."""

QUAD_LANES = 4
"""Neighbouring lanes, which hold a row of a fragment together."""

WORD_BYTES = 4
"""What one register of a lane holds."""


class Holder(Spelled):
    """What a digit counts: lanes of the group, or registers of one lane."""

    LANE = "lane"
    REGISTER = "register"


@dataclass(frozen=True, slots=True)
class FragmentDigit:
    """`(number // step) % extent` of a lane or register number adds `stride` each to an index (0: row, 1: column)."""

    holder: Holder
    step: int
    extent: int
    index: Literal[0, 1]
    stride: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A matrix of `rows` x `columns`, spread over `lanes` lanes with `registers` elements each.

    opaque: the hardware does not say who holds what; the digits are then the simulator's own choice, and `registers`
    may exceed what they number.
    """

    rows: int
    columns: int
    lanes: int
    registers: int
    digits: tuple[FragmentDigit, ...]
    opaque: bool = False

    def element(self, lane: Any, register: Any) -> tuple[Any, Any]:
        """The (row, column) that a register of a lane holds.

        >>> ACCUMULATOR_16X8.element(5, 3)
        (9, 3)
        """
        at: list[Any] = [0, 0]
        for digit in self.digits:
            number = lane if digit.holder is Holder.LANE else register
            value = number // digit.step % digit.extent * digit.stride
            at[digit.index] = at[digit.index] + value
        return at[0], at[1]

    @property
    def numbered(self) -> int:
        """Registers of a lane that the digits number: all of them, unless the fragment is opaque."""
        return prod(digit.extent for digit in self.digits if digit.holder is Holder.REGISTER)

    def places(self) -> tuple[Array, Array]:
        """The row and the column of every (lane, register), two arrays of shape (lanes, numbered)."""
        lane, register = np.indices((self.lanes, self.numbered))
        row, column = self.element(lane, register)
        return np.broadcast_to(row, lane.shape), np.broadcast_to(column, lane.shape)

    @property
    def turned(self) -> Fragment:
        """The same of the transposed matrix: rows for columns."""
        digits = tuple(replace(digit, index=1 if digit.index == 0 else 0) for digit in self.digits)
        return replace(self, rows=self.columns, columns=self.rows, digits=digits)

    def neighbours(self, index: int, apart: int = 1) -> int:
        """How many registers, each `apart` from the next, hold neighbours along a row (1) or column (0), from a
        multiple of their number on.

        >>> ACCUMULATOR_16X8.neighbours(1), ACCUMULATOR_16X8.neighbours(0)
        (2, 1)
        """
        count = 1
        while True:
            found = [d for d in self.digits if d.holder is Holder.REGISTER and d.step == count * apart]
            if not found or found[0].index != index or found[0].stride != count:
                return count
            count *= found[0].extent

    def apart(self, index: int) -> int:
        """How many registers lie between neighbours along a row (1) or column (0); 1 where a lane holds none.

        >>> ACCUMULATOR_PAIRED.apart(1), ACCUMULATOR_PAIRED.apart(0), ACCUMULATOR_16X8.apart(0)
        (1, 2, 1)
        """
        steps = (d.step for d in self.digits if d.holder is Holder.REGISTER and d.index == index and d.stride == 1)
        return next(steps, 1)

    def pairs(self, index: Literal[0, 1]) -> tuple[tuple[int, int], ...]:
        """The registers of a lane two by two, those of a pair in one column (0), or one row (1), of the matrix.

        >>> LEFT_16X8.pairs(1), RIGHT_8X8.pairs(0)
        (((0, 2), (1, 3)), ((0, 1),))
        """
        step = next(d.step for d in self.digits if d.holder is Holder.REGISTER and d.index == index and d.extent == 2)
        return tuple((r, r + step) for r in range(self.numbered) if r // step % 2 == 0)


def _lane(step: int, extent: int, index: Literal[0, 1], stride: int) -> FragmentDigit:
    return FragmentDigit(Holder.LANE, step, extent, index, stride)


def _register(step: int, extent: int, index: Literal[0, 1], stride: int) -> FragmentDigit:
    return FragmentDigit(Holder.REGISTER, step, extent, index, stride)


# Source of the layouts: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16" (16-bit) and "... for mma.m16n8k8" (tf32).
# A quad of lanes shares a row: lane // 4 is the row, lane % 4 counts pairs (16-bit) or single elements (32-bit).

LEFT_16X16 = Fragment(
    16,
    16,
    32,
    8,
    (_lane(4, 8, 0, 1), _lane(1, 4, 1, 2), _register(1, 2, 1, 1), _register(2, 2, 0, 8), _register(4, 2, 1, 8)),
)
"""A of m16n8k16: 16-bit, m x k."""

RIGHT_16X8 = Fragment(
    16, 8, 32, 4, (_lane(4, 8, 1, 1), _lane(1, 4, 0, 2), _register(1, 2, 0, 1), _register(2, 2, 0, 8))
)
"""B of m16n8k16: 16-bit, k x n."""

LEFT_16X8 = Fragment(16, 8, 32, 4, (_lane(4, 8, 0, 1), _lane(1, 4, 1, 1), _register(1, 2, 0, 8), _register(2, 2, 1, 4)))
"""A of m16n8k8: 32-bit, m x k."""

RIGHT_8X8 = Fragment(8, 8, 32, 2, (_lane(4, 8, 1, 1), _lane(1, 4, 0, 1), _register(1, 2, 0, 4)))
"""B of m16n8k8: 32-bit, k x n."""

LEFT_16X32 = Fragment(
    16,
    32,
    32,
    16,
    (_lane(4, 8, 0, 1), _lane(1, 4, 1, 4), _register(1, 4, 1, 1), _register(4, 2, 0, 8), _register(8, 2, 1, 16)),
)
"""A of m16n8k32: 8-bit, m x k."""

RIGHT_32X8 = Fragment(
    32, 8, 32, 8, (_lane(4, 8, 1, 1), _lane(1, 4, 0, 4), _register(1, 4, 0, 1), _register(4, 2, 0, 16))
)
"""B of m16n8k32: 8-bit, k x n."""

ACCUMULATOR_16X8 = Fragment(
    16, 8, 32, 4, (_lane(4, 8, 0, 1), _lane(1, 4, 1, 2), _register(1, 2, 1, 1), _register(2, 2, 0, 8))
)
"""C and D of m16n8k8, k16 and k32: m x n."""

# The rows of a product can be numbered in any order, if those of A and of D are numbered alike. Here the two rows of a
# lane, 8 apart by the numbers of PTX, are neighbours.

LEFT_PAIRED = Fragment(
    16, 8, 32, 4, (_lane(4, 8, 0, 2), _lane(1, 4, 1, 1), _register(1, 2, 0, 1), _register(2, 2, 1, 4))
)
"""A of m16n8k8 with rows in pairs."""

ACCUMULATOR_PAIRED = Fragment(
    16, 8, 32, 4, (_lane(4, 8, 0, 2), _lane(1, 4, 1, 2), _register(1, 2, 1, 1), _register(2, 2, 0, 1))
)
"""C and D of m16n8k8 with rows in pairs."""


def warpgroup_accumulator(columns: int) -> Fragment:
    """D of wgmma.m64nNk*: the four warps take 16 rows each. Source: PTX ISA 9.0, "Register Fragments" of wgmma.

    >>> warpgroup_accumulator(128).element(lane=33, register=6)
    (24, 10)
    """
    return Fragment(
        64,
        columns,
        128,
        columns // 2,
        (
            _lane(32, 4, 0, 16),
            _lane(4, 8, 0, 1),
            _lane(1, 4, 1, 2),
            _register(1, 2, 1, 1),
            _register(2, 2, 0, 8),
            _register(4, columns // 8, 1, 8),
        ),
    )


def warpgroup_left(of_warp: Fragment) -> Fragment:
    """A of wgmma in registers: the four warps hold 16 rows each, as the left operand of mma.sync. Source: PTX ISA 9.0,
    "Register Fragments" of wgmma.

    >>> warpgroup_left(LEFT_16X16).element(lane=33, register=6)
    (24, 10)
    """
    digits = (_lane(32, 4, 0, of_warp.rows), *of_warp.digits)
    return replace(of_warp, rows=4 * of_warp.rows, lanes=128, digits=digits)


# Two neighbours along an instruction's rows are loaded at once from rows of 128 bytes in swizzle atoms, a row for each
# lane of a quad. Half a warp reads all banks once where its four rows of quads begin at 0, 2, 16 and 18: the XOR by the
# row permutes four pieces of 16 bytes, and 16 elements on lie the other four.
_PAIRED_ROWS = (_lane(32, 2, 0, 8), _lane(64, 2, 0, 32), _lane(4, 2, 0, 2), _lane(8, 2, 0, 16), _lane(16, 2, 0, 4))

WARPGROUP_LEFT_PAIRED = Fragment(
    64, 8, 128, 4, (*_PAIRED_ROWS, _lane(1, 4, 1, 1), _register(1, 2, 0, 1), _register(2, 2, 1, 4))
)
"""A of wgmma.m64nNk8 in registers: 32-bit, m x k, with rows in pairs."""


def warpgroup_accumulator_paired(columns: int) -> Fragment:
    """D of wgmma.m64nNk8 with rows in pairs.

    >>> warpgroup_accumulator_paired(128).element(lane=45, register=6)
    (27, 10)
    """
    across = _lane(1, 4, 1, 2), _register(1, 2, 1, 1), _register(2, 2, 0, 1), _register(4, columns // 8, 1, 8)
    return Fragment(64, columns, 128, columns // 2, (*_PAIRED_ROWS, *across))


def opaque(rows: int, columns: int, registers: int) -> Fragment:
    """A fragment of which only the size is known: `registers` elements of storage in each of 32 lanes."""
    each = rows * columns // 32
    per_row = columns // each
    return Fragment(
        rows,
        columns,
        32,
        registers,
        (_lane(per_row, rows, 0, 1), _lane(1, per_row, 1, each), _register(1, each, 1, 1)),
        opaque=True,
    )
