"""The XOR swizzles that TMA writes and wgmma reads, as bijections on shared-memory byte addresses.

    address ^ (((address >> 7) & (2**bits - 1)) << 4)

16-byte pieces of a row change places by the number of the row (counted in 128 bytes), so that the pieces of a
column of eight rows lie in different banks. The XOR sees absolute shared-memory addresses: a tile must start at a
multiple of `repeat_bytes`.

Source: CUTLASS include/cute/swizzle.hpp and atom/mma_traits_sm90_gmma.hpp at 7107b0553: `Swizzle<bits, 4, 3>`, and
the layout_type of a wgmma descriptor. That TMA wants the inner box no wider than `row_bytes` is from memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.layout.arrangement import Xor

PIECE_BYTES = 16
_BASE = 4  # log2 of PIECE_BYTES
_SHIFT = 3  # the row number starts this many bits above the piece number


@dataclass(frozen=True, slots=True)
class Swizzle:
    """A hardware swizzle. row_bytes: the widest row of a tile it may hold, 16 (no swizzle), 32, 64 or 128.

    descriptor_code: its layout_type in a wgmma descriptor. tensor_map: its name in the driver API.
    """

    row_bytes: int
    descriptor_code: int
    tensor_map: str

    @property
    def bits(self) -> int:
        """How many address bits are flipped."""
        return (self.row_bytes // PIECE_BYTES).bit_length() - 1

    @property
    def repeat_bytes(self) -> int:
        """The pattern repeats after this, and a tile must be aligned to it.

        >>> [swizzle.repeat_bytes for swizzle in SWIZZLES]
        [16, 256, 512, 1024]
        """
        return 1 << (_BASE + _SHIFT + self.bits) if self.bits else PIECE_BYTES

    def apply(self, byte_address: Any) -> Any:
        """Where the byte of a linear address lies: an int, an array or an index expression. Its own inverse.

        >>> [SWIZZLE_128B.apply(row * 128) // 16 % 8 for row in range(9)]
        [0, 1, 2, 3, 4, 5, 6, 7, 0]
        """
        return byte_address ^ (((byte_address >> (_BASE + _SHIFT)) & ((1 << self.bits) - 1)) << _BASE)

    def arrangement(self, element_bytes: int) -> Xor:
        """The same permutation of a tile whose rows are exactly `row_bytes` long, in elements and rows.

        >>> SWIZZLE_128B.arrangement(2), SWIZZLE_32B.arrangement(4)
        (Xor(bits=3, base=3, shift=0), Xor(bits=1, base=2, shift=2))
        """
        rows_per_step = (1 << (_BASE + _SHIFT)) // self.row_bytes
        return Xor(
            bits=self.bits,
            base=(PIECE_BYTES // element_bytes).bit_length() - 1,
            shift=rows_per_step.bit_length() - 1,
        )


NO_SWIZZLE = Swizzle(16, descriptor_code=0, tensor_map="CU_TENSOR_MAP_SWIZZLE_NONE")
SWIZZLE_32B = Swizzle(32, descriptor_code=3, tensor_map="CU_TENSOR_MAP_SWIZZLE_32B")
SWIZZLE_64B = Swizzle(64, descriptor_code=2, tensor_map="CU_TENSOR_MAP_SWIZZLE_64B")
SWIZZLE_128B = Swizzle(128, descriptor_code=1, tensor_map="CU_TENSOR_MAP_SWIZZLE_128B")
SWIZZLES = (NO_SWIZZLE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B)


def swizzle_of(row_bytes: int) -> Swizzle:
    """The swizzle for tiles whose rows are `row_bytes` long.

    >>> swizzle_of(128).tensor_map
    'CU_TENSOR_MAP_SWIZZLE_128B'
    """
    for swizzle in SWIZZLES:
        if swizzle.row_bytes == row_bytes:
            return swizzle
    raise ScheduleError(
        f"There is no hardware swizzle for rows of {row_bytes} bytes.",
        note="TMA and wgmma permute 16-byte pieces within 32, 64 or 128 bytes",
        hint="make the inner extent of the tile 32, 64 or 128 bytes, such as 64 elements of 2 bytes",
    )
