"""What the ranks of a group store into each other's memory, around a product.

    gathered   each rank has some rows of a matrix, and receives those of all
    summed     each rank has a part of every row, and receives the parts of its own rows, which are added up

Parts are added in the order of the ranks, in f32, and the sum is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from tilewright.dtypes import I32, DType
from tilewright.problem.problem import NamedMatrix, Scalar, ScalarKind


@dataclass(frozen=True, slots=True)
class Exchange:
    """rows: of each rank, one behind the other. rank: the running one. columns: elements of a row, without gaps.
    summed: see above."""

    rows: tuple[int, ...]
    rank: int
    columns: int
    dtype: DType
    summed: bool = False

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        """received and flags: of every rank, by tables of addresses. flags: 0 before the first launch."""
        result = (NamedMatrix("result", self.dtype),) if self.summed else ()
        return (
            NamedMatrix("source", self.dtype),
            *result,
            NamedMatrix("shard_starts", I32),
            NamedMatrix("peer_received", self.dtype, of_ranks=True),
            NamedMatrix("peer_flags", I32, of_ranks=True),
        )

    @property
    def results(self) -> tuple[str, ...]:
        return ("result",) if self.summed else ("peer_received",)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        values = {"ranks": len(self.rows), "own_rank": self.rank, "columns": self.columns}
        return tuple(Scalar(name, value, ScalarKind.SIZE) for name, value in values.items())

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each rank, and the one behind the last."""
        return tuple(accumulate(self.rows, initial=0))

    @property
    def received_rows(self) -> int:
        """Rows of the memory that each rank receives into."""
        return (len(self.rows) - 1) * max(self.rows) if self.summed else sum(self.rows)

    @property
    def formats(self) -> tuple[DType, bool]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.summed

    def storage_elements(self, name: str) -> int:
        """Of what lies on the running rank alone; tables of addresses are no elements."""
        own, every = self.rows[self.rank], sum(self.rows)
        rows = {"source": every if self.summed else own, "result": own}
        return rows[name] * self.columns if name in rows else len(self.starts) if name == "shard_starts" else 0

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

    @property
    def matrix_lines(self) -> tuple[str, ...]:
        """Each matrix in one line, for the header of a kernel."""
        lines = {
            "source": f"source         {self.dtype}, {'all rows' if self.summed else 'own rows'} x columns",
            "result": f"result         {self.dtype}, own rows x columns",
            "shard_starts": "shard_starts   i32, ranks + 1: the first row of each rank",
            "peer_received": f"peer_received  {self.dtype}, of each rank: what it receives",
            "peer_flags": "peer_flags     i32, of each rank: for each sender and block, 0 before the first launch",
        }
        return tuple(lines[matrix.name] for matrix in self.matrices)
