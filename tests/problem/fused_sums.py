"""What one wgmma makes of its products and its accumulator, bit by bit, in NumPy.

The rule of microsoft/MMA-Sim (arXiv 2511.10909): products are exact and not normalised; every term, the accumulator
too, is cut toward zero to 25 fractional bits below the largest exponent of all terms, and their sum is cut to f32. A
zero has the least exponent of its format.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import Array
from tilewright.problem.emulation import INSTRUCTION_BYTES, Algorithm, scales_of, split

FRACTION_BITS = 25
_LEAST = -126
"""The exponent of zeros, and of subnormal numbers of bf16, tf32 and f32."""


def exponents(values: Array, least: int = _LEAST) -> Array:
    """Of numbers in binary. least: that of subnormal numbers."""
    return np.where(values == 0, _LEAST, np.maximum(np.frexp(np.asarray(values, np.float64))[1] - 1, least))


def cut_to_f32(values: Array) -> Array:
    """Numbers of float64 cut toward zero to f32."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    return np.where(abs(rounded.astype(np.float64)) > abs(values), np.nextafter(rounded, np.float32(0)), rounded)


def fused_sum(a: Array, b: Array, total: Array, least: int = _LEAST) -> Array:
    """`total + a @ b` by one instruction; a: (m, terms), b: (terms, n), f32 that the format of operands holds. least:
    the exponent of its subnormal numbers."""
    products = a.astype(np.float64)[:, :, None] * b.astype(np.float64)[None]
    scale = exponents(a, least)[:, :, None] + exponents(b, least)[None]
    largest = np.maximum(scale.max(1), exponents(total))
    unit = np.ldexp(1.0, largest - FRACTION_BITS)
    whole = np.trunc(products / unit[:, None]).sum(1) + np.trunc(total.astype(np.float64) / unit)
    return cut_to_f32(whole * unit)


def emulated(how: Algorithm, a: Array, b: Array, *, grouped: bool = True) -> Array:
    """C by an algorithm. grouped: sums are promoted; False for one long sum in the tensor cores."""
    k, width = a.shape[1], how.padded_k(a.shape[1])
    step = INSTRUCTION_BYTES // how.pieces.bytes
    total = np.zeros((len(a), b.shape[1]), np.float32)
    ones = np.ones((len(a), 1), np.float32), np.ones((1, b.shape[1]), np.float32)
    rows, columns = (scales_of(a, 1)[:, None], scales_of(b, 0)[None]) if how.shift else ones
    least = round(np.log2(how.pieces.tiny))
    lefts = [np.pad(piece, ((0, 0), (0, width - k))) for piece in split(a, how, rows)]
    rights = [np.pad(piece, ((0, width - k), (0, 0))) for piece in split(b, how, columns)]
    every = how.promote_every if grouped else width
    for begin in range(0, width, every):
        group = np.zeros_like(total)
        for number, (i, j) in enumerate(how.products):
            if number == len(how.products) - 1:
                group = group * np.float32(how.rescale)
            for first in range(begin, begin + every, step):
                group = fused_sum(lefts[i][:, first : first + step], rights[j][first : first + step], group, least)
        total = total + group
    both = (1 / rows) * (1 / columns)
    with np.errstate(over="ignore", under="ignore"):
        return total * both * both
