"""Buffers: named storage in one memory space."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.dtypes import I64, DType
from tilewright.enums import Spelled
from tilewright.ir.expr import ZERO, Binary, Cast, Expr, Op, Var


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


def room_of(name: str) -> Var:
    """Elements from a rank's buffer to the next rank's, for whoever has all of them side by side."""
    return Var(f"{name}_room", I64)


def _wide(offset: Expr) -> Expr:
    return offset if offset.dtype is I64 else Cast(I64, offset)


@dataclass(frozen=True, slots=True)
class Ref:
    """A place in a buffer: where an access of one or more consecutive elements begins."""

    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def flat(self) -> Expr:
        """The element offset in the C array."""
        if self.buffer.of_ranks:
            rank, inside = self.index
            return Binary(Op.MUL, Cast(I64, rank), room_of(self.buffer.name)) + _wide(inside)
        if self.buffer.space is Space.GLOBAL:
            *base, inside = self.index
            return base[0] + _wide(inside) if base else inside
        offset: Expr = ZERO
        for position, stride in zip(self.index, self.buffer.strides, strict=True):
            offset = offset + position * stride
        return offset
