"""Number formats as bit patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Bits = Any
"""An array of unsigned integers that hold numbers of a format."""


@dataclass(frozen=True)
class Format:
    """A format by its fields. finite_only: there is no infinity, and NaN is all ones."""

    name: str
    bytes: int
    exponent_bits: int
    fraction_bits: int
    bias: int
    finite_only: bool = False

    @property
    def least_exponent(self) -> int:
        return 1 - self.bias

    @property
    def storage(self) -> Any:
        return {1: np.uint8, 2: np.uint16, 4: np.uint32}[self.bytes]

    @property
    def low_bits(self) -> int:
        """Bits of the storage below the format's last."""
        return 8 * self.bytes - 1 - self.exponent_bits - self.fraction_bits

    @property
    def sign(self) -> Any:
        return self.storage(1 << 8 * self.bytes - 1)

    def value(self, bits: Bits) -> Any:
        """In float64."""
        whole = bits.astype(np.int64) >> self.low_bits
        top = (1 << self.exponent_bits) - 1
        sign = np.where(whole >> (self.exponent_bits + self.fraction_bits) & 1, -1, 1)
        exponent, fraction = whole >> self.fraction_bits & top, whole & (1 << self.fraction_bits) - 1
        significand = np.where(exponent == 0, fraction, fraction | 1 << self.fraction_bits)
        power = np.where(exponent == 0, 1, exponent) - self.bias - self.fraction_bits
        with np.errstate(all="ignore"):
            found = np.ldexp((sign * significand).astype(np.float64), power)
        if self.finite_only:
            return np.where((exponent == top) & (fraction == (1 << self.fraction_bits) - 1), np.nan, found)
        return np.where(exponent == top, np.where(fraction == 0, sign * np.inf, np.nan), found)

    def encode(self, values: Any) -> Bits:
        """The nearest numbers."""
        if self.name == "f16":
            return values.astype(np.float16).view(np.uint16)
        single = values.astype(np.float32).view(np.uint32)
        if self.name == "f32":
            return single
        if self.name == "tf32":
            return (single + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
        if self.name == "bf16":
            return ((single.astype(np.uint64) + 0x7FFF + (single >> 16 & 1)) >> 16).astype(np.uint16)
        codes = np.arange(128, dtype=np.uint8)
        codes = codes[np.isfinite(self.value(codes))]
        table = self.value(codes)
        found = codes[np.searchsorted((table[1:] + table[:-1]) / 2, np.abs(values))]
        return (found | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)

    def finite(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Bits:
        """Any finite bit pattern, all equally likely."""
        wide = np.uint64 if self.bytes == 4 else np.int64
        bits = rng.integers(0, 1 << 8 * self.bytes, shape, dtype=wide).astype(self.storage)
        if self.low_bits:
            bits &= self.storage(-1 << self.low_bits & 0xFFFFFFFF)
        one = {1: 0x3C, 2: 0x3C00, 4: 0x3F800000}[self.bytes]
        bits[~np.isfinite(self.value(bits))] = one
        return bits

    def of_exponent(self, rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Bits:
        """Random signs and fractions, exponents of 2 from low to high."""
        low, high = max(low, self.least_exponent), min(high, (1 << self.exponent_bits) - 2 - self.bias)
        power = rng.integers(low, high + 1, shape) + self.bias
        fraction = rng.integers(0, 1 << self.fraction_bits, shape)
        sign = rng.integers(0, 2, shape)
        bits = (sign << self.exponent_bits | power) << self.fraction_bits | fraction
        return (bits << self.low_bits).astype(np.uint64).astype(self.storage)


F16 = Format("f16", 2, 5, 10, 15)
BF16 = Format("bf16", 2, 8, 7, 127)
TF32 = Format("tf32", 4, 8, 10, 127)
E4M3 = Format("e4m3", 1, 4, 3, 7, finite_only=True)
E5M2 = Format("e5m2", 1, 5, 2, 15)
F32 = Format("f32", 4, 8, 23, 127)
