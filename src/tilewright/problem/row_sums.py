"""Sums of rows that indices name: what brings tokens to their experts, and the results of experts back to the tokens.

    sums[i] = sum over j of weights[i, j] * source[index[i, j]]

The terms of a row are added in the order of j, in f32, so that the bits do not depend on how the kernel runs. With one
term and no weights it gathers rows, as they are. An index that names no row of the source leaves its term out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32, I32, DType
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, check_apart, elements_of


@dataclass(frozen=True, slots=True)
class RowSums(PlainProblem):
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
        check_apart((self.length, self.leading), (self.length, self.to_leading))

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
        each = f"lines x {self.terms}" if self.terms else "listed"
        source = elements_of(self.from_lines, self.length, self.leading)
        lie = f"{self.dtype}, from_lines x length, rows leading elements apart"
        found = [
            NamedMatrix("source", self.dtype, source, lie),
            NamedMatrix("index", I32, self.indices, f"i32, {each}: rows of the source"),
        ]
        if self.weighted:
            found.append(NamedMatrix("weights", F32, self.indices, f"f32, {each}"))
        if not self.terms:
            lie = "i32, lines + 1: where the terms of each row begin in the list"
            found.append(NamedMatrix("begins", I32, self.lines + 1, lie))
        sums = elements_of(self.lines, self.length, self.to_leading)
        lie = f"{self.dtype}, lines x length, rows to_leading elements apart"
        return *found, NamedMatrix("sums", self.dtype, sums, lie, written=True)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        listed = () if self.terms else self.sizes("listed")
        return *self.sizes("lines", "length", "from_lines"), *listed, *self.offsets("leading", "to_leading")

    @property
    def formats(self) -> tuple[DType, int, bool]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.terms, self.weighted

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
