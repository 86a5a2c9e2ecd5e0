"""What the ranks of a group store into each other's memory, around a product.

    gathered   each rank has some rows of a matrix, and receives those of all
    summed     each rank has a part of every row, and receives the parts of its own rows, which are added up

Parts are added in the order of the ranks, in f32, and the sum is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from tilewright.dtypes import I32, DType
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, ScalarKind


@dataclass(frozen=True, slots=True)
class Exchange(PlainProblem):
    """rows: of each rank, one behind the other. rank: the running one. columns: elements of a row, without gaps.
    summed: see above."""

    rows: tuple[int, ...]
    rank: int
    columns: int
    dtype: DType
    summed: bool = False

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        """received and flags: of every rank, by tables of addresses, without elements here. flags: 0 before the first
        launch."""
        dtype, own, every = self.dtype, self.rows[self.rank], sum(self.rows)
        rows = ("all rows", every) if self.summed else ("own rows", own)
        result = NamedMatrix("result", dtype, own * self.columns, f"{dtype}, own rows x columns", written=True)
        starts = "i32, ranks + 1: the first row of each rank"
        received = f"{dtype}, of each rank: what it receives"
        flags = "i32, of each rank: for each sender and block, 0 before the first launch"
        return (
            NamedMatrix("source", dtype, rows[1] * self.columns, f"{dtype}, {rows[0]} x columns"),
            *((result,) if self.summed else ()),
            NamedMatrix("shard_starts", I32, len(self.starts), starts),
            NamedMatrix("peer_received", dtype, 0, received, written=not self.summed, of_ranks=True),
            NamedMatrix("peer_flags", I32, 0, flags, of_ranks=True),
        )

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        values = {"ranks": len(self.rows), "own_rank": self.rank, "columns": self.columns}
        return tuple(Scalar(name, value, ScalarKind.SIZE) for name, value in values.items())

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each rank, and the one behind the last."""
        return tuple(accumulate(self.rows, initial=0))

    @property
    def formats(self) -> tuple[DType, bool]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.summed

    @property
    def moved_bytes(self) -> int:
        """What the running rank reads and writes in its own memory."""
        own, others = self.rows[self.rank], sum(self.rows) - self.rows[self.rank]
        rows = 2 * others + (len(self.rows) + 1) * own if self.summed else 2 * own + others
        return rows * self.columns * self.dtype.bytes

    @property
    def title(self) -> str:
        parts = (
            "parts of rows that ranks send each other, added up" if self.summed else "rows that ranks send each other"
        )
        return f"{parts}, {self.dtype}"
