"""Statements of a kernel: what one thread does, in order.

Every memory access is one `Move`, every arithmetic one `Assign`; so each line of the printed kernel is one kind of
instruction, and a counter can be laid beside it. `origin` names the declared thing a statement comes from (a staged
tile, the running sum, the result), which is how counts find their way back to the line of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tilewright.ir.buffer import Buffer, Ref
from tilewright.ir.expr import Expr


@dataclass(frozen=True, slots=True)
class Let:
    """`name = value`, constant in the enclosing body."""

    name: str
    value: Expr
    note: str = ""


@dataclass(frozen=True, slots=True)
class For:
    """`for var in 0 .. extent`. The extent is the same for every thread of the block.

    unroll: written out by the compiler, which a loop that indexes registers needs.
    """

    var: str
    extent: Expr
    body: tuple[Stmt, ...]
    unroll: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class If:
    """A branch. Threads of a warp may differ."""

    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Alloc:
    """Declares a register buffer in the enclosing body; its elements hold nothing yet."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Move:
    """`width` consecutive elements from `src` to `dst`: one load or store instruction per thread.

    Exactly one side is in registers, unless both are. Where `guard` is false a load fills its registers with zero
    and a store does nothing; memory is not touched either way.
    """

    dst: Ref
    src: Ref
    width: int = 1
    guard: Expr | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Assign:
    """`dst = value` on registers. An `Fma` whose addend is `dst` is one multiply-add."""

    dst: Ref
    value: Expr
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every thread of the block waits here for all others; shared memory written before is visible after."""

    note: str = ""
    origin: str = ""


Stmt = Union[Let, For, If, Alloc, Move, Assign, Barrier]  # noqa: UP007
Body = tuple[Stmt, ...]
