"""Memory: the storage of the operands, and the shared memory of the blocks that run together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from tilewright.dtypes import Array, DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.kernel import FLAGS_OF_A_TILE, TILE_FLAGS, Kernel
from tilewright.problem.problem import Stored
from tilewright.simulator.arithmetic import Arithmetic


class Memory:
    """Flat arrays of elements. A shared buffer holds one copy for each block of the batch, one after the other.

    base_bytes: the address of the first element of each global operand, where it is not a multiple of 256. tiles: of
    blocks, for which there is a workspace where work items add up in order. tables: further arrays, by name.
    """

    def __init__(
        self,
        kernel: Kernel,
        operands: Stored,
        arithmetic: Arithmetic,
        base_bytes: Mapping[str, int],
        tiles: int = 0,
        group_ends: Sequence[int] = (),
        tables: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self._arithmetic = arithmetic
        self._kernel = kernel
        self.arrays: dict[str, Array] = {
            matrix.name: arithmetic.import_storage(operands.storage(matrix.name), matrix.dtype)
            for matrix in kernel.problem.matrices
        }
        for parameter in kernel.workspace:
            is_flags = parameter.name == TILE_FLAGS
            count = tiles * (FLAGS_OF_A_TILE if is_flags else kernel.partial_elements)
            values = np.full(count, 0 if is_flags else arithmetic.poison(parameter.dtype))
            self.arrays[parameter.name] = values.astype(arithmetic.memory_type(parameter.dtype))
        if kernel.problems.has_groups:
            self.arrays[kernel.group_sizes] = np.asarray(group_ends, np.int32)
        self.arrays |= {name: values.copy() for name, values in tables.items()}
        offsets = zip(kernel.shared, kernel.shared_offsets, strict=True)
        self._base_bytes = {**{buffer.name: at for buffer, at in offsets}, **base_bytes}

    def new_batch(self, blocks: int) -> None:
        """Shared memory for `blocks` blocks that start now: nothing in it is written."""
        for buffer in self._kernel.shared:
            kind, poison = self._arithmetic.memory_type(buffer.dtype), self._arithmetic.poison(buffer.dtype)
            values = self._arithmetic.encode(np.full(blocks * buffer.elements, poison), buffer.dtype)
            self.arrays[buffer.name] = values.astype(kind, copy=False)

    def shared_places(self) -> Iterator[tuple[Buffer, int]]:
        """The shared buffers of a block, each with the address of its first element."""
        yield from zip(self._kernel.shared, self._kernel.shared_offsets, strict=True)

    def mapped(self, values: Array, dtype: DType) -> Array:
        """Elements as TMA writes them under a tensor map of a format."""
        return self._arithmetic.mapped(values, dtype)

    def base_of(self, name: str) -> int:
        """Address of the first element of a buffer, bytes, as far as alignment and banks can tell."""
        return self._base_bytes.get(name, 0)

    def elements(self, buffer: Buffer) -> int:
        """Elements that a thread may address."""
        return len(self.arrays[buffer.name]) if buffer.space is Space.GLOBAL else buffer.elements
