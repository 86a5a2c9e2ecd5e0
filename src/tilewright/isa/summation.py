"""How the tensor cores of compute capability 9.0 sum: several products and the accumulator at once, cut off.

All products of a group and the accumulator are aligned to the largest exponent among them, cut towards zero to so many
bits below it, and added exactly; the sum is cut (f32) or rounded (f16) once. Products are exact and are not normalised:
the exponent of one is the sum of those of its factors, where a subnormal number has that of the smallest normal one.
The exponent that terms are aligned to is never below -133.

Source: microsoft/MMA-Sim (arXiv 2511.10909), for mma.sync and wgmma; that wmma of tf32 adds four products at once
follows from its machine instruction, and the least exponent from what an H200 computes.
`benchmarks/probes/tensor_core_bits.py` compares each instruction with a GPU, `tests/gpu/test_rungs_on_gpu.py` whole
kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import F32, Array, DType

_NOTHING = -(1 << 12)
"""The exponent of a zero, which is never the largest."""

_LEAST_PRODUCT = -(1 << 11)
"""Less than the exponent of any product of numbers other than zero, and more than that of one with a zero."""

_LEAST = -133
"""The least exponent that terms are aligned to."""

F32_FRACTION_BITS, _F64_FRACTION_BITS = 23, 52
_LEAST_F32 = -126

_LEAST_SCALED = -90
"""The least exponent of which a unit, and the power of two that makes it 1, are normal numbers of f32."""

_CHUNK_TERMS = 32768
"""Products that are summed together: as many as stay in the cache of a core."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """The sum of a tensor core. products: that are added at once. fraction_bits: kept below the largest exponent.
    kept: fraction bits of a sum in f32."""

    products: int
    fraction_bits: int = 25
    kept: int = 23

    def of(
        self, a: Array, b: Array, c: Array, product: DType, accumulate: DType, product_b: DType | None = None
    ) -> Array:
        """D for matrices of shape (..., m, k), (..., k, n) and (..., m, n) of numbers of the formats; D is float32.

        product_b: the format of B, where it is another. NaN has no payload.
        """
        a, b, c = (np.asarray(x, np.float32) for x in (a, b, c))
        lead, (m, n) = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2]), c.shape[-2:]

        def tiles(x: Array) -> Array:
            return np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:])

        with np.errstate(all="ignore"):  # NaN and infinity are values like any others
            powers = _exponents(a, product), _exponents(b, product_b or product)
            in_f32 = self._fits_f32(*powers)
            left, right, c = [tiles(x) for x in (a, powers[0])], [tiles(x) for x in (b, powers[1])], tiles(c)
            if len(c) <= n:
                left = [x.transpose(2, 0, 1)[..., None] for x in left]
                right = [x.transpose(1, 0, 2)[:, :, None] for x in right]
                return self._chunks(left, right, c, accumulate, in_f32).reshape(*lead, m, n)
            left = [np.ascontiguousarray(x.T)[:, :, None] for x in left]  # many small tiles: side by side, so that
            right = [np.ascontiguousarray(x.transpose(1, 2, 0))[:, None] for x in right]  # NumPy has long rows
            d = self._chunks(left, right, c.transpose(1, 2, 0), accumulate, in_f32)
            return d.transpose(2, 0, 1).reshape(*lead, m, n)

    def _fits_f32(self, *exponents: Array) -> bool:
        """Whether each product of numbers with these exponents is finite, normal, and exact in f32, and a group of them
        in units of the last bit kept is in int32."""
        highest = [int(found.max(initial=_NOTHING)) for found in exponents]
        least = [int(found.min(initial=0, where=found != _NOTHING)) for found in exponents]
        return (
            self.products << self.fraction_bits + 2 <= 1 << 31
            and max(highest) <= 127
            and sum(highest) <= 126
            and sum(least) >= _LEAST_SCALED
        )

    def _chunks(self, left: list[Array], right: list[Array], c: Array, accumulate: DType, in_f32: bool) -> Array:
        """Factors and their exponents, (k, rows, ...), which broadcast, plus (rows, ...), some rows at a time."""
        d = np.empty(c.shape, np.float32)
        step = max(1, _CHUNK_TERMS // (self.products * max(1, c[:1].size)))
        for first in range(0, len(c), step):
            rows = slice(first, first + step)
            some = [[x if x.shape[1] == 1 else x[:, rows] for x in side] for side in (left, right)]
            total = c[rows]
            for begin in range(0, len(left[0]), self.products):
                (a, a_power), (b, b_power) = ([x[begin : begin + self.products] for x in side] for side in some)
                highest = np.maximum((a_power + b_power).max(axis=0), _exponents(total, accumulate))
                total = self._group(a, b, total, highest, accumulate, in_f32)
            d[rows] = total
        return d

    def _group(self, a: Array, b: Array, c: Array, highest: Array, accumulate: DType, in_f32: bool) -> Array:
        """highest: the largest exponents of products and c."""
        if in_f32 and highest.min() < _LEAST_SCALED:
            in_f32 = not ((highest < _LEAST_SCALED) & (highest >= _LEAST_PRODUCT)).any()  # zeros are summed in any unit
            highest = np.maximum(highest, _LEAST_SCALED) if in_f32 else highest
        if in_f32:
            scale = _power_of_two(self.fraction_bits - highest)
            terms = a * b
            terms *= scale
            total = terms.astype(np.int32).sum(axis=0, dtype=np.int32) + np.trunc(c * scale, dtype=np.float64)
            total /= scale
        else:
            unit = np.ldexp(1.0, np.maximum(highest, _LEAST).astype(np.int32) - self.fraction_bits)
            total = np.trunc(np.multiply(a, b, dtype=np.float64) / unit).sum(axis=0) + np.trunc(c / unit)
            total *= unit
        if accumulate is F32:
            found = self._as_f32(total, may_be_small=not in_f32)
        else:
            found = total.astype(np.float16).astype(np.float32)
        found += np.float32(0)  # a sum of nothing is +0, and so is one that is too small
        return found if np.isfinite(total).all() else _special(a, b, c, found)

    def _as_f32(self, exact: Array, may_be_small: bool) -> Array:
        """Cut towards zero; what is too large is infinite. may_be_small: below the normal numbers of f32."""
        cut = (exact.view(np.int64) & -1 << _F64_FRACTION_BITS - self.kept).view(np.float64)
        if may_be_small:
            unit = 2.0 ** (_LEAST_F32 - self.kept)
            cut = np.where(np.abs(exact) < 2.0**_LEAST_F32, np.trunc(exact / unit) * unit, cut)
        return cut.astype(np.float32)


@dataclass(frozen=True, slots=True)
class SumByHalves:
    """The sum of FP8 products by mma.sync: from zero as f16 is summed, first the products of those k whose second bit
    is 0, then the others; C is added to the sum in f32, and rounded. Source: what an H200 computes."""

    def of(
        self, a: Array, b: Array, c: Array, product: DType, accumulate: DType, product_b: DType | None = None
    ) -> Array:
        """As `BlockSum.of`."""
        later = np.arange(a.shape[-1]) // 2 % 2 == 1
        total = np.zeros_like(c, np.float32)
        for half in (~later, later):
            rule = BlockSum(int(half.sum()))
            total = rule.of(a[..., half], b[..., half, :], total, product, accumulate, product_b)
        with np.errstate(all="ignore"):
            return np.asarray(total + np.asarray(c, np.float32))


def _exponents(values: Array, dtype: DType) -> Array:
    """Of float32 numbers, not normalised below the smallest normal one of their format; of zero, none."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    exponents = (bits >> F32_FRACTION_BITS).astype(np.int16)
    exponents &= 0xFF
    exponents -= 127
    np.maximum(exponents, round(math.log2(dtype.tiny)), out=exponents)
    exponents[values == 0] = _NOTHING
    return exponents


def _power_of_two(exponents: Array) -> Array:
    """2.0**exponents in float32, of exponents of normal numbers."""
    return (exponents.astype(np.int32) + 127 << F32_FRACTION_BITS).view(np.float32)


def _special(a: Array, b: Array, c: Array, total: Array) -> Array:
    """The sum where infinities and NaN take part: they decide, whatever is finite."""
    left, right = (np.where(np.isfinite(x), np.sign(x), x) for x in (a, b))
    found = (left * right).sum(axis=0) + np.where(np.isfinite(c), 0, c)
    return np.where(np.isfinite(found), total, found)
