"""Powers of two that bring the rows of A, or the columns of B, into the range of f16."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32, DType
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, check_apart, elements_of


@dataclass(frozen=True, slots=True)
class Scaling(PlainProblem):
    """A scale for each line of each matrix of a batch, or for each column of its lines, and its inverse. Sizes in
    elements.

    lines, length, leading: of the source as it lies: its lines, elements of a line, elements from line to line.
    across: a scale is of a column, all lines together; else of a line. apart: in the target, from the inverses of one
    matrix to those of the next; behind those of all follow the scales. step: from one matrix to the next. count: of
    the batch.
    """

    lines: int
    length: int
    leading: int
    across: bool
    apart: int
    step: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        check_apart((self.length, self.leading), (self.scaled, self.apart))

    @property
    def scaled(self) -> int:
        """How many scales there are."""
        return self.length if self.across else self.lines

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        source = elements_of(self.lines, self.length, self.leading, self.count, self.step)
        lie = "f32, inverses of scales, apart elements for each matrix; the scales"
        return (
            NamedMatrix("source", F32, source, "f32, lines x length, lines leading elements apart"),
            NamedMatrix("target", F32, 2 * self.count * self.apart, lie, written=True),
        )

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return *self.sizes("lines", "length", "count"), *self.offsets("leading", "apart", "step")

    @property
    def formats(self) -> tuple[DType, bool]:
        """What a kernel is made for, beside its configuration."""
        return F32, self.across

    @property
    def compulsory_bytes(self) -> int:
        """The source read once, scales and inverses written once."""
        return self.count * (self.lines * self.length + 2 * self.scaled) * F32.bytes

    @property
    def title(self) -> str:
        return f"powers of two for the {'columns' if self.across else 'lines'} of a matrix"
