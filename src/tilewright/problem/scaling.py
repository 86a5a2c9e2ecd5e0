"""Powers of two that bring the rows of A, or the columns of B, into the range of f16."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32, DType
from tilewright.errors import ProblemError
from tilewright.problem.problem import NamedMatrix, Scalar, ScalarKind


@dataclass(frozen=True, slots=True)
class Scaling:
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
        if self.leading < self.length or self.apart < self.scaled:
            raise ProblemError(
                f"Lines of {self.length} elements cannot be {self.leading} apart, or {self.scaled} scales {self.apart}."
            )

    @property
    def scaled(self) -> int:
        """How many scales there are."""
        return self.length if self.across else self.lines

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        return NamedMatrix("source", F32), NamedMatrix("target", F32)

    @property
    def results(self) -> tuple[str, ...]:
        return ("target",)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = [Scalar(name, getattr(self, name), ScalarKind.SIZE) for name in ("lines", "length", "count")]
        return (
            *sizes,
            *(Scalar(name, getattr(self, name), ScalarKind.OFFSET) for name in ("leading", "apart", "step")),
        )

    @property
    def formats(self) -> tuple[DType, bool]:
        """What a kernel is made for, beside its configuration."""
        return F32, self.across

    def storage_elements(self, name: str) -> int:
        if name == "target":
            return 2 * self.count * self.apart
        one = (self.lines - 1) * self.leading + self.length if self.lines and self.length else 0
        return (self.count - 1) * self.step + one

    @property
    def compulsory_bytes(self) -> int:
        """The source read once, scales and inverses written once."""
        return self.count * (self.lines * self.length + 2 * self.scaled) * F32.bytes

    @property
    def title(self) -> str:
        return f"powers of two for the {'columns' if self.across else 'lines'} of a matrix"

    @property
    def matrix_lines(self) -> tuple[str, ...]:
        """Each matrix in one line, for the header of a kernel."""
        return (
            "source  f32, lines x length, lines leading elements apart",
            "target  f32, inverses of scales, apart elements for each matrix; the scales",
        )
