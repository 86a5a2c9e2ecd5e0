"""How the tensor cores of compute capability 9.0 sum: several products and the accumulator at once, cut off.

All products of a group and the accumulator are aligned to the largest exponent among them, cut towards zero to so many
bits below it, and added exactly; the sum is cut (f32) or rounded (f16) once. Products are exact and are not normalised:
the exponent of one is the sum of those of its factors, where a subnormal number has that of the smallest normal one.

Source: microsoft/MMA-Sim (arXiv 2511.10909), for mma.sync and wgmma; that wmma of tf32 adds four products at once
follows from its machine instruction. `tests/gpu/test_rungs_on_gpu.py` compares whole kernels with a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import F32, Array, DType

_NOTHING = -(1 << 12)
"""The exponent of a zero, which is never the largest."""

_LEAST = -400
"""Below the exponents of all products of two numbers of f32."""

F32_FRACTION_BITS = 23
_LEAST_F32 = -126

_CHUNK_TERMS = 32768
"""Products that are summed together: as many as stay in the cache of a core."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """The sum of a tensor core. products: that are added at once. fraction_bits: kept below the largest exponent.
    kept: fraction bits of a sum in f32."""

    products: int
    fraction_bits: int = 25
    kept: int = 23

    def of(self, a: Array, b: Array, c: Array, product: DType, accumulate: DType) -> Array:
        """D for matrices of shape (..., m, k), (..., k, n) and (..., m, n) of numbers that the formats hold, float32.

        NaN has no payload.
        """
        lead, (m, n) = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2]), c.shape[-2:]
        a, b, c = (np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:]) for x in (a, b, c))
        with np.errstate(all="ignore"):  # NaN and infinity are values like any others
            return self._tiles(a, b, c, product, accumulate).reshape(*lead, m, n)

    def _tiles(self, a: Array, b: Array, c: Array, product: DType, accumulate: DType) -> Array:
        """(tiles, m, k) by (tiles, k, n) plus (tiles, m, n)."""
        if len(c) > c.shape[2]:  # many small tiles: side by side, so that NumPy has long rows
            a, b, c = (np.ascontiguousarray(x.transpose(1, 2, 0)) for x in (a, b, c))
            return self._rows(a[:, :, None], b[None], c, product, accumulate).transpose(2, 0, 1)
        each = zip(a, b, c, strict=True)
        return np.stack([self._rows(x[..., None], y[None], held, product, accumulate) for x, y, held in each])

    def _rows(self, a: Array, b: Array, c: Array, product: DType, accumulate: DType) -> Array:
        """(m, k, ...) by (1, k, ...) plus (m, ...), some rows at a time."""
        d = np.empty(c.shape, np.float32)
        powers = [_exponents(matrix, product) for matrix in (a, b)]
        step = max(1, _CHUNK_TERMS // (self.products * max(1, c[0].size)))
        for first in range(0, len(c), step):
            rows = slice(first, first + step)
            total = c[rows]
            for begin in range(0, a.shape[1], self.products):
                k = slice(begin, begin + self.products)
                highest = (powers[0][rows, k] + powers[1][:, k]).max(axis=1)
                total = self._group(a[rows, k], b[:, k], total, highest, accumulate)
            d[rows] = total
        return d

    def _group(self, a: Array, b: Array, c: Array, highest: Array, accumulate: DType) -> Array:
        """highest: exponents of the products, (m, ...)."""
        highest = np.maximum(highest, _exponents(c, accumulate))
        scale = np.ldexp(1.0, self.fraction_bits - np.maximum(highest, _LEAST).astype(np.int32))
        terms = np.multiply(a, b, dtype=np.float64)
        terms *= scale[:, None]
        np.trunc(terms, out=terms)
        total = terms.sum(axis=1) + np.trunc(c * scale)
        total += 0.0  # a sum of nothing is +0
        total /= scale
        found = self._as_f32(total) if accumulate is F32 else total.astype(np.float16).astype(np.float32)
        found += np.float32(0)  # nor has a sum that is too small a sign
        return found if np.isfinite(total).all() else _special(a, b, c, found)

    def _as_f32(self, exact: Array) -> Array:
        """Cut towards zero; what is too large is infinite."""
        if self.kept < F32_FRACTION_BITS:
            unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 1, _LEAST_F32) - self.kept)
            exact = np.trunc(exact / unit) * unit
        near, size = exact.astype(np.float32), np.abs(exact)
        near.view(np.int32)[...] -= (np.abs(near) > size) & (size < 2.0**128)  # one towards zero
        return near


def _exponents(values: Array, dtype: DType) -> Array:
    """Of float32 numbers, not normalised below the smallest normal one of their format; of zero, none."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    least = round(np.log2(dtype.tiny))
    exponents = np.maximum((bits >> F32_FRACTION_BITS & 0xFF) - 127, least)
    return np.where(values == 0, _NOTHING, exponents).astype(np.int16)


def _special(a: Array, b: Array, c: Array, total: Array) -> Array:
    """The sum where infinities and NaN take part: they decide, whatever is finite."""
    left, right = (np.where(np.isfinite(x), np.sign(x), x) for x in (a, b))
    found = (left * right).sum(axis=1) + np.where(np.isfinite(c), 0, c)
    return np.where(np.isfinite(found), total, found)
