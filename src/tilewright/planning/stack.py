"""Many problems in one launch: of one shape, or of ragged sizes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
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
    """A product that ranks share: rows of each, and the number of the running one. summed: each rank has a part of k,
    and keeps its rows of the sum, of which others send their parts; else rows of A arrive from their ranks while the
    kernel runs."""

    rows: tuple[int, ...]
    rank: int
    summed: bool = False

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each rank, and the one behind the last."""
        return tuple(accumulate(self.rows, initial=0))

    @property
    def numbers(self) -> tuple[int, ...]:
        """What a launch is told, as `Kernel.shard_numbers` orders it."""
        if not self.summed:
            return len(self.rows), self.starts[self.rank]
        return len(self.rows), self.rank, max(self.rows)


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
