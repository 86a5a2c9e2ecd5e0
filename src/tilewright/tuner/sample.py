"""Operands that are made in a moment, and the part of a result that is held against float64.

All of C is compared where that is little work. Else rows and columns are, one of each stretch of either, so that
tiles of a candidate are met everywhere. Operands never exist on the host: they are a million random numbers again
and again, of which the GPU is given one copy, and the reference reads the lines that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from tilewright.bench.protocol import Repeated
from tilewright.dtypes import Array, DType
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.problem.reference import PADDING, Operands, reference, view
from tilewright.problem.tolerance import Verdict, compare, error_bound
from tilewright.runtime.memory import DeviceArray

_POOL = 1_048_573
"""Random numbers that operands are made of, again and again: a prime, so that no rows are alike."""

_SEEDS: dict[OperandName, int] = {"A": 0, "B": 1}

_CHECKED_FLOPS = 2e9
"""Of the float64 reference, computed once: a tenth of a second on a few cores."""

_CHECKED_ELEMENTS = 100_000
"""Of C, that each candidate's are compared with: a few milliseconds."""

_READ_ELEMENTS = 8_000_000
"""Of A and of B, that the reference reads: it widens them to float64."""

_AT_ONCE_BYTES = 128 << 20
"""Of C, that are downloaded in one call: some 30 ms."""

_FEWEST = 16
"""Rows, and columns."""


@dataclass(frozen=True)
class RepeatedOperands:
    """Random normal operands of a problem with tight rows and a beta of 0; C is NaN."""

    gemm: Gemm

    def storage(self, name: OperandName) -> Repeated:
        """What a matrix holds."""
        gemm = self.gemm
        pattern = gemm.out.encode(np.full(1, PADDING, np.float32)) if name == "C" else _numbers(gemm.dtype, name)
        return Repeated(pattern, gemm.storage_elements(name))

    @property
    def storages(self) -> list[Repeated]:
        """Of A, B and C."""
        names: tuple[OperandName, ...] = ("A", "B", "C")
        return [self.storage(name) for name in names]

    def lines(self, name: OperandName, places: Array) -> Array:
        """Rows of A or columns of B, (places, k)."""
        pattern, across = self.storage(name).pattern, self.gemm.leading(name)
        to_line, to_next = (across, 1) if self.gemm.operand(name).contiguous == "k" else (1, across)
        begins, along = (at % len(pattern) for at in (places * to_line, np.arange(self.gemm.k) * to_next))
        return np.concatenate([pattern, pattern]).take(begins[:, None] + along)


@lru_cache(maxsize=8)
def _numbers(dtype: DType, name: OperandName) -> Array:
    return dtype.encode(np.random.default_rng(_SEEDS[name]).standard_normal(_POOL, dtype=np.float32))


@dataclass(frozen=True)
class Sample:
    """Rows and columns of C where it is compared, with the float64 reference there and its bound."""

    gemm: Gemm
    rows: Array
    columns: Array
    expected: Array
    bound: Array

    def verdict(self, stored: Array) -> Verdict:
        """The stored C, flat, held against the reference; `Verdict.worst_at` counts rows and columns of the sample."""
        return self._held(view(self.gemm, "C", stored)[np.ix_(self.rows, self.columns)])

    def verdict_of(self, result: DeviceArray, *, at_once: bool = False) -> Verdict:
        """The same of a C on the GPU, of which the lines of the sample are downloaded and no others; at_once: where C
        is not very large, all of it, in one call of the driver."""
        elements = self.gemm.storage_elements("C")
        if at_once and elements * self.gemm.out.bytes <= _AT_ONCE_BYTES:
            return self.verdict(result.download_parts([0], elements)[0])
        by_rows = self.gemm.c is Order.ROW
        lines, others = (self.rows, self.columns) if by_rows else (self.columns, self.rows)
        length = self.gemm.size(self.gemm.operand("C").contiguous)
        found = result.download_parts((lines * self.gemm.ldc).tolist(), length)[:, others]
        return self._held(found if by_rows else found.T)

    def _held(self, stored: Array) -> Verdict:
        return compare(self.gemm.out.decode(np.ascontiguousarray(stored)), self.expected, self.bound)


def sample_of(operands: RepeatedOperands) -> Sample:
    """What is compared of a result."""
    gemm = operands.gemm
    most = min(_CHECKED_FLOPS / max(1, 2 * gemm.k), _CHECKED_ELEMENTS)
    lines = max(_READ_ELEMENTS // max(1, gemm.k), _FEWEST)
    # Where one side is short, all of it, and more of the other.
    count = max(sqrt(most), most / max(1, gemm.n), _FEWEST)
    rows = sampled(gemm.m, min(int(count), lines), seed=0)
    columns = sampled(gemm.n, min(int(max(most / max(1, len(rows)), _FEWEST)), lines), seed=1)
    part = Gemm(
        *(len(rows), len(columns), gemm.k, gemm.dtype, gemm.accumulate, gemm.out),
        b=Order.COL,
        alpha=gemm.alpha,
        beta=gemm.beta,
        product=gemm.product,
    )
    a, b = operands.lines("A", rows).reshape(-1), operands.lines("B", columns).reshape(-1)
    few = Operands(part, a, b, np.zeros(part.storage_elements("C"), gemm.out.numpy))
    return Sample(gemm, rows, columns, reference(few), error_bound(few))


def sampled(size: int, most: int, seed: int = 0) -> Array:
    """Places along a dimension: all, or the first, the last and one of each stretch.

    >>> sampled(5, 16).tolist(), len(sampled(4096, 64))
    ([0, 1, 2, 3, 4], 64)
    """
    if size <= most:
        return np.arange(size)
    within = np.random.default_rng(seed).random(most)
    places = ((np.arange(most) + within) * size / most).astype(np.int64)
    places[0], places[-1] = 0, size - 1
    return np.minimum(places, size - 1)
