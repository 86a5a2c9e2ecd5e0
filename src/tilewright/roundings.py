"""How numbers become stored elements of a format and back: the arithmetic that `dtypes` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rounding:
    """How numbers become stored values and back.

    encode: numbers, rounded, as values of the storage type. decode: stored values as a NumPy type that holds them
    exactly. is_numpy: NumPy itself rounds to the storage type, and computes with it. mapped: what TMA makes of wider
    elements under a tensor map of the format, where that is not `encode`.
    """

    encode: Callable[[Array], Array]
    decode: Callable[[Array], Array]
    is_numpy: bool = False
    mapped: Callable[[Array], Array] | None = None


def numpy_rounding(storage: str) -> Rounding:
    """NumPy's own: to nearest, ties to even, for floats."""

    def encode(values: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(storage)

    return Rounding(encode, as_stored, is_numpy=True)


def as_stored(stored: Array) -> Array:
    return stored


def nearest_bf16(values: Array) -> Array:
    """Rounds the float32 bits half to even into the upper 16; a NaN stays a NaN."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FFF), rounded).astype(np.uint16)


def float32_of_bf16(stored: Array) -> Array:
    bits = np.asarray(stored, dtype=np.uint32) << np.uint32(16)
    return bits.view(np.float32)


_TF32_DROPPED = np.uint32((1 << 13) - 1)
"""The bits of a float32 that tf32 lacks."""


def truncated_tf32(values: Array) -> Array:
    """float32 values as a tensor core reads them: the lower 13 bits are ignored.

    Also those of a NaN, which becomes an infinity if it has no others (measured: H200, 0x7f800001).

    >>> float(truncated_tf32(np.float32([1 + 2.0**-10 + 2.0**-11]))[0]) == 1 + 2.0**-10
    True
    """
    return (np.asarray(values, np.float32).view(np.uint32) & ~_TF32_DROPPED).view(np.float32)


def nearest_tf32(values: Array) -> Array:
    """float32 values rounded to tf32, ties away from zero; infinities and NaN stay."""
    numbers = np.asarray(values, dtype=np.float32)
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(1 << 12)) & ~_TF32_DROPPED
    return np.where(np.isfinite(numbers), rounded, bits).view(np.float32)


def even_tf32(values: Array) -> Array:
    """float32 values rounded to tf32, ties to even; infinities and NaN stay."""
    numbers = np.asarray(values, dtype=np.float32)
    bits = numbers.view(np.uint32)
    last_kept = (bits >> np.uint32(13)) & np.uint32(1)
    rounded = (bits + np.uint32((1 << 12) - 1) + last_kept) & ~_TF32_DROPPED
    return np.where(np.isfinite(numbers), rounded, bits).view(np.float32)


def fp8(exponent_bits: int, finite: int) -> Rounding:
    """The rounding of a format of 8 bits. finite: the code of the largest finite number;
    larger codes are NaN, but for that of infinity where a whole exponent is kept for both."""
    fraction_bits = 7 - exponent_bits
    bias, unit = (1 << exponent_bits - 1) - 1, 1 << fraction_bits
    codes = np.arange(128)
    power, fraction = codes >> fraction_bits, codes % unit
    normal = np.ldexp(1 + fraction / unit, power - bias)
    numbers = np.where(power > 0, normal, np.ldexp(fraction / unit, 1 - bias)).astype(np.float32)
    special = codes > finite
    numbers[special] = np.nan
    if special.sum() == unit:
        numbers[finite + 1] = np.inf
    table = np.concatenate([numbers, -numbers])
    halfway = (numbers[:finite] + numbers[1 : finite + 1]) / 2

    def encode(values: Array) -> Array:
        given = np.asarray(values, dtype=np.float32)
        size = np.abs(given)
        below, above = (np.searchsorted(halfway, size, side=side) for side in ("left", "right"))
        code = np.where(below == above, below, below + below % 2)  # ties to even
        code = np.where(np.isnan(given), 0x7F, code + 0x80 * np.signbit(given))
        return code.astype(np.uint8)

    def decode(stored: Array) -> Array:
        found: Array = table[np.asarray(stored, dtype=np.uint8)]
        return found

    return Rounding(encode, decode)
