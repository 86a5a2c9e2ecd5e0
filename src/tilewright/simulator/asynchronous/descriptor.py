"""What wgmma reads: the byte address of every element of a tile, from the numbers in its descriptor alone.

The unit knows no buffer and no index. It takes the start address (in units of 16 bytes), two strides and the kind of
swizzle, adds up where each element lies, and flips address bits by other address bits. Rows of a tile are as long as
the swizzle is wide; eight of them make a block. Source: PTX ISA 9.0, "Matrix Descriptor Format", "Strides", and the
canonical layouts of CUTLASS include/cute/atom/mma_traits_sm90_gmma.hpp at 7107b0553.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import Array
from tilewright.ir.async_stmt import SharedMatrix
from tilewright.layout.swizzle import PIECE_BYTES
from tilewright.simulator.memory import Memory

_ADDRESS_BITS = 0x3FFFF
_STRIDE_MASK = 0x3FFF
_ROWS = 8


def tile_offsets(matrix: SharedMatrix, rows: int, k: int, itemsize: int) -> Array:
    """Bytes from the start to each element, (rows of m or n, k), before address bits are flipped."""
    leading, stride = (
        (size // PIECE_BYTES & _STRIDE_MASK) * PIECE_BYTES for size in (matrix.leading_bytes, matrix.stride_bytes)
    )
    row_bytes = matrix.swizzle.row_bytes
    across, along = np.arange(rows)[:, None], np.arange(k)[None, :]
    length = row_bytes // itemsize
    offsets: Array
    if not matrix.turned:
        block, inside = across // _ROWS * stride + across % _ROWS * row_bytes, along * itemsize
        if matrix.swizzle.bits == 0:  # rows of one piece: the next piece of k is `leading` further
            inside = inside // PIECE_BYTES * leading + inside % PIECE_BYTES
        offsets = block + inside
    else:
        # Without a swizzle the two strides change their roles.
        next_row, next_block = (stride, leading) if matrix.swizzle.bits == 0 else (leading, stride)
        offsets = across // length * next_row + across % length * itemsize
        offsets = offsets + along // _ROWS * next_block + along % _ROWS * row_bytes
    return offsets


@dataclass(slots=True)
class Found:
    """Elements of one shared buffer that lie under a tile. at: their positions in the tile, flat; None for all."""

    buffer: str
    elements: Array
    at: Array | None


@dataclass(slots=True)
class Reader:
    """Finds the tiles of one descriptor. outside: addresses beyond the shared memory of the kernel."""

    matrix: SharedMatrix
    offsets: Array
    itemsize: int
    memory: Memory
    _known: dict[int, tuple[list[Found], int | None]] = field(default_factory=dict)

    def find(self, start: int) -> tuple[list[Found], int | None]:
        """The elements of a tile that starts at a byte of the block's shared memory; the first address outside."""
        known = self._known.get(start)
        if known is None:
            first = (start & _ADDRESS_BITS) // PIECE_BYTES * PIECE_BYTES
            address = self.matrix.swizzle.apply(first + self.offsets.reshape(-1))
            known = self._known[start] = self._locate(address)
        return known

    def _locate(self, address: Array) -> tuple[list[Found], int | None]:
        found: list[Found] = []
        claimed = np.zeros(address.shape, np.bool_)
        for buffer, first in self.memory.shared_places():
            here = (address >= first) & (address < first + buffer.size_bytes)
            if not here.any():
                continue
            claimed |= here
            elements = (address - first) // buffer.dtype.bytes
            if here.all():
                return [Found(buffer.name, elements, None)], None
            at = np.flatnonzero(here)
            found.append(Found(buffer.name, elements[at], at))
        return found, int(address[~claimed][0]) if not claimed.all() else None
