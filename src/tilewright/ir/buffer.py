"""Buffers: named storage in one memory space."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.dtypes import DType
from tilewright.enums import Spelled


class Space(Spelled):
    """A memory: where a buffer lives, and who sees it."""

    GLOBAL = "global"  # every block; kernel parameters
    SHARED = "shared"  # the threads of one block
    REGISTER = "register"  # one thread


class Handoff(Spelled):
    """How what some threads write to a shared buffer is handed over to those that read it, and given back.

    OWN_DATA: each thread reads what it wrote itself. BLOCK_BARRIER: all threads of the block meet, where the pipeline
    says so. LOCKSTEP: halves of the block alternate, and meet. MBARRIERS: each stage has barriers of its own.
    WARPGROUP: the threads of a warpgroup meet.
    """

    OWN_DATA = "own data"
    BLOCK_BARRIER = "block barrier"
    LOCKSTEP = "lockstep"
    MBARRIERS = "mbarriers"
    WARPGROUP = "warpgroup"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named storage.

    shape: extents in elements, row-major, as the C array is declared. A global buffer is indexed logically while a
    kernel is being lowered, by (row, column) or (row, column, number of the matrix). Afterwards it is indexed by
    (offset) or (base, offset) in elements: the base of the matrix has 64 bits.
    axes: what each extent counts, for comments. note: one phrase that says why it looks as it does. align_bytes: where
    it must begin, if that is more than its accesses ask for. offsets_into: of registers that hold offsets, the global
    buffer that they are offsets into: they are printed as pointers. stages: copies of what it holds, which its first
    extent counts, in turn filled and read. handoff: of a shared buffer whose accesses are ordered by whoever emits
    them; None where `place_barriers` orders them. of_ranks: a global buffer that each rank has one of, all equally
    large, indexed by (rank, offset).
    """

    name: str
    space: Space
    dtype: DType
    shape: tuple[int, ...]
    axes: tuple[str, ...] = ()
    note: str = ""
    align_bytes: int = 0
    offsets_into: Buffer | None = None
    stages: int = 1
    handoff: Handoff | None = None
    of_ranks: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis of the C array."""
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= extent
        return tuple(reversed(strides))


PEERS = "peer_"
"""Before the name of a buffer in symmetric memory: those of all ranks, as a kernel names them."""
