"""Many problems in one launch: of one shape, or of ragged sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Stack:
    """Problems of one launch: how many, and elements from one to the next, of A, B, C and each matrix of the
    epilogue."""

    count: int
    a: int
    b: int
    c: int
    added: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shards:
    """Rows of A that arrive shard by shard while the kernel runs: how many shards, and the first row of the one whose
    tiles come first."""

    count: int
    own_row: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of ragged sizes whose ends lie on the GPU, so that the host knows their sum alone: how many, the dimension
    along which they are ragged, and elements from a group's own matrix to the next one's: of B along m, of C along k;
    added: of its own scales. capacity: rows that each group has room for, where it has a count; 0: groups have ends.
    expected: rows of a group that a kernel is chosen for; 0: as many as there may be.
    """

    count: int
    along: Literal["m", "k"]
    step: int
    added: tuple[int, ...] = ()
    capacity: int = 0
    expected: int = 0
