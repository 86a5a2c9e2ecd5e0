"""Scales of blocks: each block of 128 of k, of some rows of A or columns of B, has a scale of its own.

    C[m, n] = epilogue(sum over blocks of k: scale_a[m // a, block] * scale_b[block, n // b] * sum_k A[m, k] * B[k, n])

A kernel multiplies the sum of a block of k when it is added to the sum in f32 (promotion).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.dtypes import Array
from tilewright.errors import ProblemError
from tilewright.problem.problem import Scalar, ScalarKind
from tilewright.units import ceil_div

BlockScaleName = Literal["block_scale_a", "block_scale_b"]

NAMES: tuple[BlockScaleName, BlockScaleName] = ("block_scale_a", "block_scale_b")

SIDES = (1, 128)
"""Rows of A, or columns of B, that share a scale."""


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
    """

    a: int = 1
    b: int = 128
    depth: int = 128
    steps_a: tuple[int, int] | None = None
    steps_b: tuple[int, int] | None = None
    own: tuple[BlockScaleName, ...] = ()

    def __post_init__(self) -> None:
        if self.a not in SIDES or self.b not in SIDES or self.depth < 1:
            raise ProblemError(
                f"Blocks of {self.a} rows or {self.b} columns and {self.depth} of k have no scales.",
                hint="a block has 1 or 128 rows of A, and 1 or 128 columns of B.",
            )

    @property
    def classes(self) -> tuple[int, int, int, tuple[BlockScaleName, ...]]:
        """What a kernel is made for; the steps are its arguments."""
        return self.a, self.b, self.depth, self.own

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
