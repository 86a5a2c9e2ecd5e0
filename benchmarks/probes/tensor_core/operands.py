"""Random and adversarial operands of one instruction, drawn from a seed of their own for each instruction and kind."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tensor_core.formats import BF16, E4M3, E5M2, F16, TF32, Bits
from tensor_core.kernels import Instruction

TILES = 16
"""Of each instruction and kind."""

Matrices = tuple[Bits, Bits, Bits]
"""A (tiles, m, k), B (tiles, n, k), C (tiles, m, n)."""


class Draw:
    """What the kinds below draw from. a, b, c: shapes."""

    def __init__(self, of: Instruction, kind: str) -> None:
        self.of, self.product, self.sum = of, of.product, of.sum
        self.rng = np.random.default_rng([zlib.crc32(word.encode()) for word in (of.name, kind)])
        self.a, self.b, self.c = (TILES, of.m, of.k), (TILES, of.n, of.k), (TILES, of.m, of.n)
        self.normals = [self.rng.standard_normal(shape) for shape in (self.a, self.b, self.c)]

    def encoded(self, a: Any, b: Any, c: Any) -> Matrices:
        return self.product.encode(a), self.product.encode(b), self.sum.encode(np.asarray(c))

    def normal(self, factor: float = 4) -> Matrices:
        a, b, c = self.normals
        return self.encoded(a, b, c * factor)

    def factors(self, low: int, high: int, low_b: int | None = None, high_b: int | None = None) -> tuple[Bits, Bits]:
        """A and B whose elements have exponents from low to high."""
        a = self.product.of_exponent(self.rng, self.a, low, high)
        b_range = (low if low_b is None else low_b, high if high_b is None else high_b)
        return a, self.product.of_exponent(self.rng, self.b, *b_range)

    def added(self, low: int, high: int) -> Bits:
        """C whose elements have exponents from low to high."""
        return self.sum.of_exponent(self.rng, self.c, low, high)


def _uniform(d: Draw) -> Matrices:
    return d.encoded(d.rng.random(d.a), d.rng.random(d.b), d.rng.random(d.c) * 64)


def _any_bits(d: Draw) -> Matrices:
    """Huge ranges."""
    return d.product.finite(d.rng, d.a), d.product.finite(d.rng, d.b), d.sum.finite(d.rng, d.c)


def _any_bits_from_zero(d: Draw) -> Matrices:
    return d.product.finite(d.rng, d.a), d.product.finite(d.rng, d.b), np.zeros(d.c, d.sum.storage)


def _spread(d: Draw) -> Matrices:
    """Products within some 40 binades, C among them."""
    half = 3 if d.product is E4M3 else 6 if d.product in (F16, E5M2) else 10
    c = d.added(-2 * half, 2 * half)
    return *d.factors(-half, half), c


def _cancellation(d: Draw) -> Matrices:
    """Pairs of products that cancel but for the last bits, at random places."""
    a, b = d.factors(-2, 2)
    order = d.rng.permutation(d.of.k)
    first, second = order[: d.of.k // 4], order[d.of.k // 4 : d.of.k // 2]
    a[..., second], b[..., second] = a[..., first] ^ d.product.sign, b[..., first]
    last = d.product.storage(1 << d.product.low_bits)
    b[..., second] ^= np.where(d.rng.random(b[..., second].shape) < 0.3, last, d.product.storage(0))
    small = d.product.of_exponent(d.rng, d.a, -4 if d.product.bytes == 1 else -9, -3)
    a[..., order[d.of.k // 2 :]] = small[..., order[d.of.k // 2 :]]
    return a, b, d.added(-9, -2)


def _c_cancels(d: Draw) -> Matrices:
    """C is minus the sum, rounded."""
    a, b = (d.product.encode(factor) for factor in d.normals[:2])
    exact = np.einsum("tmk,tnk->tmn", d.product.value(a), d.product.value(b))
    return a, b, d.sum.encode(-exact)


def _subnormal(d: Draw) -> Matrices:
    low, product = d.product.least_exponent, d.product
    fractions = (1 << product.fraction_bits + product.low_bits) - 1
    a = product.finite(d.rng, d.a) & product.storage(fractions | int(product.sign))
    high = {"f16": (0, 8), "e4m3": (0, 6), "e5m2": (0, 8)}.get(product.name, (100, 120))
    b = product.of_exponent(d.rng, d.b, *high)
    return a.astype(product.storage), b, d.added(low + high[0] - 4, low + high[1] + 2)


def _tiny(d: Draw) -> Matrices:
    """Results near the smallest numbers of the sum."""
    if d.product in (BF16, TF32):
        return *d.factors(-70, -60, -84, -64), d.added(-126, -125) & d.sum.storage(0x807FFFFF)
    low = d.product.least_exponent
    a, b = d.factors(low, low + 2)
    if d.sum is F16:
        return a, b, d.added(-14, -13) & d.sum.storage(0x83FF)
    none = d.rng.random(d.c) < 0.5
    return a, b, np.where(none, 0, d.added(-126, -60)).astype(d.sum.storage)


def _zero_beside_huge(d: Draw) -> Matrices:
    """0 times a huge number among small products: the exponent that a product of zero counts with."""
    a, b = d.factors(-3, 0)
    huge = {"f16": 15, "e4m3": 7, "e5m2": 15}.get(d.product.name, 120)
    for tile, at in enumerate(d.rng.integers(0, d.of.k, TILES)):
        a[tile, :, at] = 0 if tile % 2 else d.product.sign
        b[tile, :, at] = d.product.of_exponent(d.rng, (d.of.n,), huge, huge)
    return a, b, d.added(-8, -2)


def _zeros_beside_tiny(d: Draw) -> Matrices:
    """Products so small that a zero's exponent could be the largest."""
    low = d.product.least_exponent
    a, b = d.factors(-80, -60, -80, -70) if d.product in (BF16, TF32) else d.factors(low, low + 3)
    a[d.rng.random(d.a) < 0.4] = 0
    b[d.rng.random(d.b) < 0.4] = 0
    return a, b, np.zeros(d.c, d.sum.storage)


def _one_large(d: Draw) -> Matrices:
    """One large product and many small ones: the bits kept below the largest term."""
    d.factors(0, 0)
    near, far = {"e4m3": (3, 6), "f16": (5, 14), "e5m2": (5, 14)}.get(d.product.name, (6, 15))
    a, b = d.factors(-far, -near + 2, -near, 0)
    for tile, at in enumerate(d.rng.integers(0, d.of.k, TILES)):
        a[tile, :, at] = d.product.of_exponent(d.rng, (d.of.m,), 0, 2)
        b[tile, :, at] = d.product.of_exponent(d.rng, (d.of.n,), 0, 2)
    return a, b, d.added(-8, 3)


def _c_large(d: Draw) -> Matrices:
    """Products below the last bit of C: cut or rounded, one by one or together."""
    return *d.factors(-2, 0), d.added(6, 14 if d.sum is F16 else 30)


def _overflow(d: Draw) -> Matrices:
    if d.product in (BF16, TF32):
        return *d.factors(62, 63, 61, 63), d.added(125, 127)
    top = {"e4m3": 8}.get(d.product.name, 15)
    a, b = d.factors(top - 2, top)
    for factor in (a, b) if d.product is E4M3 else ():
        factor[~np.isfinite(d.product.value(factor))] = 0x70
    if d.sum is F16:
        return *d.factors(5, 6, 6, 7), d.added(13, 15)
    return a, b, d.added(126, 127)


def _special(d: Draw) -> Matrices:
    """Infinities and NaN here and there."""
    a, b, c = d.normal()
    if d.product.finite_only:
        a[d.rng.random(d.a) < 0.01] = 0x7F
    else:
        infinity = {"f16": 0x7C00, "bf16": 0x7F80, "tf32": 0x7F800000, "e5m2": 0x7C}[d.product.name]
        a[d.rng.random(d.a) < 0.01] = infinity
        b[d.rng.random(d.b) < 0.01] = infinity | int(d.product.sign)
        a[d.rng.random(d.a) < 0.005] = infinity + (1 << d.product.low_bits)
        b[d.rng.random(d.b) < 0.02] = 0
    c[d.rng.random(d.c) < 0.02] = 0x7C00 if d.sum is F16 else 0x7F800000
    c[d.rng.random(d.c) < 0.01] = 0xFE01 if d.sum is F16 else 0xFFC00123
    return a, b, c


def _signed_zeros(d: Draw) -> Matrices:
    a, b = (d.product.finite(d.rng, shape) & d.product.sign for shape in (d.a, d.b))
    return a, b, (d.sum.finite(d.rng, d.c) & d.sum.sign).astype(d.sum.storage)


def _low_bits(d: Draw) -> Matrices:
    """Operands in tf32's storage that were not rounded."""
    a, b, c = d.normal()
    if d.product is TF32:
        a |= d.rng.integers(0, 1 << 13, d.a).astype(np.uint32)
        b |= d.rng.integers(0, 1 << 13, d.b).astype(np.uint32)
    return a, b, c


KINDS: dict[str, Callable[[Draw], Matrices]] = {
    "normal": Draw.normal,
    "normal, c = 0": lambda d: d.normal(0),
    "uniform": _uniform,
    "any bits": _any_bits,
    "any bits, c = 0": _any_bits_from_zero,
    "spread": _spread,
    "cancellation": _cancellation,
    "c cancels": _c_cancels,
    "subnormal operands": _subnormal,
    "tiny results": _tiny,
    "zero beside huge": _zero_beside_huge,
    "zeros beside tiny": _zeros_beside_tiny,
    "one large, many small": _one_large,
    "c large": _c_large,
    "overflow": _overflow,
    "special": _special,
    "signed zeros": _signed_zeros,
    "tf32 low bits": _low_bits,
}


def operands(of: Instruction, kind: str) -> Matrices:
    """The same for the same instruction and kind."""
    return KINDS[kind](Draw(of, kind))
