"""Codes of weights in 4 or 8 bits, several in a word of 32 bits, in the order in which a kernel unpacks them.

An int4 code is stored plus 8. Codes go in pairs, a number in each half of a register, so a shift and a mask bring two
of them into place: nibbles j and j + 4 of a word, bytes j and j + 2. A nibble with zeros around it is a subnormal
number, and the second lowest of a half is 16 times that of the lowest; one exact multiply-add makes it normal and takes
the 8 away. It cannot reach the code itself, whose ratio to the subnormal number is above all powers of two of the
format: so codes are unpacked as multiples of a lower power (`unpacked_exponent`), which the result is multiplied by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.dtypes import BF16, E4M3, F16, Array, DType

WORD_BITS = 32

CodesName = Literal["int4", "e4m3"]


@dataclass(frozen=True, slots=True)
class Codes:
    """name: as users know the format. bits: of a code. largest: of the codes that weights get."""

    name: CodesName
    bits: int
    largest: float

    @property
    def per_word(self) -> int:
        return WORD_BITS // self.bits

    @property
    def places(self) -> tuple[int, ...]:
        """Where each code of a word stands, in codes from its lowest bits on.

        >>> INT4.places, E4M3_CODES.places
        ((0, 4, 1, 5, 2, 6, 3, 7), (0, 2, 1, 3))
        """
        half = self.per_word // 2
        return tuple(number // 2 + half * (number % 2) for number in range(self.per_word))

    def pack(self, values: Array) -> Array:
        """Words of codes, whose numbers are along the last axis: int32, one axis element for `per_word` numbers."""
        if self.name == "int4":
            stored = (np.rint(np.clip(values, -8, 7)).astype(np.int64) + 8).astype(np.uint32)
        else:
            stored = E4M3.encode(np.asarray(values, np.float32)).astype(np.uint32)
        grouped = stored.reshape(*stored.shape[:-1], -1, self.per_word)
        shifts = np.array([place * self.bits for place in self.places], np.uint32)
        words: Array = np.bitwise_or.reduce(grouped << shifts, axis=-1).view(np.int32)
        return words

    def unpack(self, words: Array) -> Array:
        """The numbers of words, float32, with an axis of `per_word` at the end. An e4m3 code has no NaN here: 0x7f is
        480, as the arithmetic of kernels reads it."""
        shifts = np.array([place * self.bits for place in self.places], np.uint32)
        stored = np.asarray(words).view(np.uint32)[..., None] >> shifts & np.uint32((1 << self.bits) - 1)
        if self.name == "int4":
            return stored.astype(np.float32) - np.float32(8)
        magnitude = ((stored & 0x7F) << np.uint32(20)).view(np.float32) * np.float32(2.0**120)
        return np.where(stored & 0x80, -magnitude, magnitude)

    def __str__(self) -> str:
        return self.name


INT4 = Codes("int4", 4, 7.0)
E4M3_CODES = Codes("e4m3", 8, 448.0)

_UNPACKED: dict[tuple[Codes, DType], int] = {(INT4, BF16): -6, (INT4, F16): -9}


def unpacked_exponent(codes: Codes, dtype: DType) -> int:
    """Kernels unpack a code as a number of the format: the code times two to this power, exactly."""
    return _UNPACKED.get((codes, dtype), 0)


CODES: dict[CodesName, Codes] = {codes.name: codes for codes in (INT4, E4M3_CODES)}

FRAGMENT_CODES = 8
"""Codes that a lane unpacks at a time: its part of a 16 x 16 tile of an operand of mma.m16n8k16."""
