"""Scales of blocks: each block of 128 of k, of some rows of A or columns of B, has a scale of its own.

    C[m, n] = epilogue(sum over blocks of k: scale_a[m // a, block] * scale_b[block, n // b] * sum_k A[m, k] * B[k, n])

A kernel multiplies the sum of a block of k when it is added to the sum in f32 (promotion).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tilewright.artifacts import Extent
from tilewright.dtypes import F32, Array
from tilewright.errors import ProblemError
from tilewright.problem.problem import Scalar, ScalarKind, TmaMatrix
from tilewright.units import ceil_div

BlockScaleName = Literal["block_scale_a", "block_scale_b"]

NAMES: tuple[BlockScaleName, BlockScaleName] = ("block_scale_a", "block_scale_b")

SIDES = (1, 128)
"""Rows of A, or columns of B, that share a scale."""


TMA_BYTES = 16
"""What the address of scales that TMA loads is a multiple of, the bytes from line to line, and where a box begins."""

PIECE = TMA_BYTES // F32.bytes
"""Scales of as many bytes."""

BOX_BLOCKS = 8
"""Blocks of k whose scales TMA loads at once where they lie side by side."""

Lie = Literal["", "side", "k"]
"""How TMA finds the scales of an operand: neighbours along m or n side by side, or those along k; "": it cannot."""


def slots_of(stages: Any, depth: int) -> Any:
    """Slots of shared memory for the scales of so many blocks of k each, beside a ring of so many stages: a power of
    two, and so many that a slot is read to its end before it is filled again (`lowering.block_scales`). Also of arrays.

    >>> [int(slots_of(stages, 8)) for stages in (4, 9, 10)]
    [16, 16, 32]
    """
    return 1 << np.ceil(np.log2(stages + depth - 1)).astype(int)


def step_names(name: str) -> tuple[str, str]:
    """The arguments of a kernel that hold the elements from scale to scale along m or n, and along k.

    >>> step_names("block_scale_a")
    ('block_scale_a_step_m', 'block_scale_a_step_k')
    """
    return f"{name}_step_{'m' if name == NAMES[0] else 'n'}", f"{name}_step_k"


@dataclass(frozen=True, slots=True)
class BlockScales:
    """a: rows of A of a block; b: columns of B; depth: elements of k.

    steps_a, steps_b: elements of memory from scale to scale along m or n, and along k; by default neighbours along m or
    n lie side by side, as PyTorch has them. own: the operands of which each of many problems has scales of its own.
    lie: how TMA finds them; both, or neither.
    """

    a: int = 1
    b: int = 128
    depth: int = 128
    steps_a: tuple[int, int] | None = None
    steps_b: tuple[int, int] | None = None
    own: tuple[BlockScaleName, ...] = ()
    lie: tuple[Lie, Lie] = ("", "")

    def __post_init__(self) -> None:
        if self.a not in SIDES or self.b not in SIDES or self.depth < 1:
            raise ProblemError(
                f"Blocks of {self.a} rows or {self.b} columns and {self.depth} of k have no scales.",
                hint="a block has 1 or 128 rows of A, and 1 or 128 columns of B.",
            )

    @property
    def classes(self) -> tuple[int, int, int, tuple[BlockScaleName, ...], tuple[Lie, Lie]]:
        """What a kernel is made for; the steps are its arguments."""
        return self.a, self.b, self.depth, self.own, self.lie

    @property
    def by_tma(self) -> bool:
        return "" not in self.lie

    def lie_of(self, name: str) -> Lie:
        return self.lie[name == NAMES[1]]

    def lying(self, m: int, n: int, k: int, pointers: tuple[int, int]) -> BlockScales:
        """The same, as TMA finds those of one problem at these addresses. The first rows of groups have any number, and
        boxes begin at multiples of four."""
        found = [self._lie(name, m, n, k, at) for name, at in zip(NAMES, pointers, strict=True)]
        return self if "" in found else replace(self, lie=(found[0], found[1]))

    def _lie(self, name: str, m: int, n: int, k: int, pointer: int) -> Lie:
        (along, deep), (count, blocks) = self.steps(name, m, n, k), self.counts(name, m, n, k)
        if pointer % TMA_BYTES:
            return ""
        if along == 1 and deep >= count and deep * F32.bytes % TMA_BYTES == 0:
            return "side"
        # A line of k is read in pieces of several blocks, of which a tile has many where each row has a scale.
        few = self.side(name) > 1 and deep == 1 and along >= blocks and along * F32.bytes % TMA_BYTES == 0
        return "k" if few else ""

    def depth_of(self, name: str) -> int:
        """Blocks of k whose scales TMA loads at once."""
        return BOX_BLOCKS if self.lie_of(name) == "k" else 1

    def box(self, name: str, tile: Any) -> tuple[Any, Any]:
        """Scales that TMA loads at a time for so many rows or columns, a number or an array of them: along a line of
        memory, and lines."""
        side = self.side(name)
        touched = ceil_div(tile - np.gcd(tile, side), side) + 1 if side > 1 else tile
        if self.lie_of(name) == "k":
            return BOX_BLOCKS, touched
        unaligned = PIECE - 1 if side > 1 else 0  # scales in front of the first one, from a multiple of 16 bytes on
        return ceil_div(touched + unaligned, PIECE) * PIECE, 1

    def tma_matrix(self, name: str) -> TmaMatrix:
        """How the scales of an operand lie for TMA."""
        sides = Extent("M" if name == NAMES[0] else "N", per=self.side(name))
        blocks, (along, deep) = Extent("K", per=self.depth), step_names(name)
        if self.lie_of(name) == "k":
            return TmaMatrix(blocks, sides, Extent(along), F32, F32)
        return TmaMatrix(sides, blocks, Extent(deep), F32, F32)

    def side(self, name: str) -> int:
        """Rows of A, or columns of B, of a block."""
        return self.a if name == NAMES[0] else self.b

    def counts(self, name: str, m: int, n: int, k: int) -> tuple[int, int]:
        """Scales of an operand, along m or n and along k."""
        return ceil_div(m if name == NAMES[0] else n, self.side(name)), ceil_div(k, self.depth)

    def steps(self, name: str, m: int, n: int, k: int) -> tuple[int, int]:
        """Elements from scale to scale along m or n, and along k."""
        given = self.steps_a if name == NAMES[0] else self.steps_b
        return given or (1, self.counts(name, m, n, k)[0])

    def elements(self, name: str, m: int, n: int, k: int) -> int:
        """Elements from the first to the last scale of an operand."""
        counts, steps = self.counts(name, m, n, k), self.steps(name, m, n, k)
        return 1 + sum((count - 1) * step for count, step in zip(counts, steps, strict=True)) if all(counts) else 0

    def scalars(self, m: int, n: int, k: int) -> tuple[Scalar, ...]:
        """The arguments of a kernel."""
        return tuple(
            Scalar(name, step, ScalarKind.SIZE)
            for of in NAMES
            for name, step in zip(step_names(of), self.steps(of, m, n, k), strict=True)
        )

    def spread(self, name: str, stored: Array, m: int, n: int, k: int) -> Array:
        """The scale of each element of A or B, of its shape."""
        counts, steps = self.counts(name, m, n, k), self.steps(name, m, n, k)
        strides = tuple(step * stored.itemsize for step in steps)
        found = np.lib.stride_tricks.as_strided(stored, counts, strides) if all(counts) else np.zeros(counts)
        rows = m if name == NAMES[0] else n
        whole = np.repeat(np.repeat(found, self.side(name), axis=0)[:rows], self.depth, axis=1)[:, :k]
        return whole if name == NAMES[0] else whole.T

    def line(self, name: str) -> str:
        """How the scales of an operand lie in memory, in one line."""
        side, of = self.side(name), "row of A" if name == NAMES[0] else "column of B"
        each = of if side == 1 else f"{side} {of.replace(' ', 's ', 1)}"
        along, deep = step_names(name)
        return f"{name}  f32, one for each {each} and {self.depth} of k, {along} and {deep} apart"

    def __str__(self) -> str:
        return f"scales of {self.a} x {self.depth} of A, {self.depth} x {self.b} of B"
