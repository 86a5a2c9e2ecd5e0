"""Sums of rows that indices name: what brings tokens to their experts, and the results of experts back to the tokens.

    sums[i] = sum over j of weights[i, j] * source[index[i, j]]

The terms of a row are added in the order of j, in f32, so that the bits do not depend on how the kernel runs. With one
term and no weights it gathers rows, as they are. An index that names no row of the source leaves its term out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32, I32, DType
from tilewright.errors import ProblemError
from tilewright.problem.problem import NamedMatrix, Scalar, ScalarKind


@dataclass(frozen=True, slots=True)
class RowSums:
    """dtype: of source and sums.

    lines, length: of the sums; from_lines: rows of the source; leading, to_leading: elements from row to row of the
    source and of the sums. terms: of each row; 0 where a row has those from begins[i] to begins[i + 1] of one list of
    `listed`. weighted: whether terms have weights, f32, which lie as the indices do.
    """

    lines: int
    length: int
    from_lines: int
    leading: int
    to_leading: int
    dtype: DType
    terms: int = 1
    weighted: bool = False
    listed: int = 0

    def __post_init__(self) -> None:
        if self.leading < self.length or self.to_leading < self.length:
            raise ProblemError(f"Rows of {self.length} elements cannot be {self.leading} and {self.to_leading} apart.")

    @property
    def is_copy(self) -> bool:
        """Whether rows are copied as they are."""
        return self.terms == 1 and not self.weighted

    @property
    def indices(self) -> int:
        """How many indices, and weights, there are."""
        return self.lines * self.terms if self.terms else self.listed

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        weights = (NamedMatrix("weights", F32),) if self.weighted else ()
        begins = () if self.terms else (NamedMatrix("begins", I32),)
        return NamedMatrix("source", self.dtype), NamedMatrix("index", I32), *weights, *begins, self._sums

    @property
    def _sums(self) -> NamedMatrix:
        return NamedMatrix("sums", self.dtype)

    @property
    def results(self) -> tuple[str, ...]:
        return ("sums",)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = [Scalar(name, getattr(self, name), ScalarKind.SIZE) for name in ("lines", "length", "from_lines")]
        listed = () if self.terms else (Scalar("listed", self.listed, ScalarKind.SIZE),)
        offsets = (Scalar(name, getattr(self, name), ScalarKind.OFFSET) for name in ("leading", "to_leading"))
        return *sizes, *listed, *offsets

    @property
    def formats(self) -> tuple[DType, int, bool]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.terms, self.weighted

    def storage_elements(self, name: str) -> int:
        if name in ("index", "weights"):
            return self.indices
        if name == "begins":
            return self.lines + 1
        lines, leading = (self.from_lines, self.leading) if name == "source" else (self.lines, self.to_leading)
        return (lines - 1) * leading + self.length if lines and self.length else 0

    @property
    def compulsory_bytes(self) -> int:
        """Each term read once, from the caches or not, and each row written once."""
        return (self.indices + self.lines) * self.length * self.dtype.bytes + self.indices * I32.bytes

    @property
    def title(self) -> str:
        if self.is_copy:
            return f"rows of {self.dtype} that indices name"
        count = f"{self.terms} rows" if self.terms else "rows of a list"
        return f"{'weighted ' if self.weighted else ''}sums of {count} of {self.dtype} that indices name"

    @property
    def matrix_lines(self) -> tuple[str, ...]:
        """Each matrix in one line, for the header of a kernel."""
        each = f"lines x {self.terms}" if self.terms else "listed"
        lines = {
            "source": f"source   {self.dtype}, from_lines x length, rows leading elements apart",
            "index": f"index    i32, {each}: rows of the source",
            "weights": f"weights  f32, {each}",
            "begins": "begins   i32, lines + 1: where the terms of each row begin in the list",
            "sums": f"sums     {self.dtype}, lines x length, rows to_leading elements apart",
        }
        return tuple(lines[matrix.name] for matrix in self.matrices)
