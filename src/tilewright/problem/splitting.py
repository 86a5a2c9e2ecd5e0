"""An operand of f32 as pieces of a narrower format, each a matrix of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32, DType
from tilewright.errors import ProblemError
from tilewright.problem.emulation import Algorithm
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, ScalarKind, check_apart, elements_of


@dataclass(frozen=True, slots=True)
class Splitting(PlainProblem):
    """The pieces of one matrix or of a batch; all sizes in elements.

    algorithm: which pieces.
    lines, length, leading: of the source as it lies: its lines, elements of a line, elements from line to line.
    to_lines, to_length, to_leading: of one piece; what it has beyond the source is zero. to_piece: from one piece to
    the next. step, to_step: from one matrix of a batch to the next. count: of the batch. across:
    scales, of algorithms that have them, are of columns of the source, not of lines. least: magnitudes of scaled
    numbers below which a flag is raised; 0: there is no flag. scale_step: from the scales of one matrix to the next.
    own_scales: of lines, which the launch finds; it stores their inverses.
    """

    algorithm: Algorithm
    lines: int
    length: int
    leading: int
    to_lines: int
    to_length: int
    to_leading: int
    to_piece: int
    step: int = 0
    to_step: int = 0
    count: int = 1
    across: bool = False
    least: float = 0.0
    scale_step: int = 0
    own_scales: bool = False

    def __post_init__(self) -> None:
        if self.to_lines < self.lines or self.to_length < self.length:
            raise ProblemError(
                f"A piece of {self.to_lines} lines of {self.to_length} elements does not hold {self.lines} of "
                f"{self.length}."
            )
        check_apart((self.length, self.leading), (self.to_length, self.to_leading))
        if self.own_scales and (self.across or not self.algorithm.shift):
            raise ProblemError(f"A launch that splits for {self.algorithm} finds no scales of columns.")
        if self.least and not self.algorithm.shift:
            raise ProblemError(f"{self.algorithm} scales no numbers, so that none of them is below {self.least}.")

    @property
    def out(self) -> DType:
        """The format in which pieces are stored."""
        return stored_as(self.algorithm)

    @property
    def scaled(self) -> int:
        """Scales of one matrix."""
        return self.length if self.across else self.lines

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        source = elements_of(self.lines, self.length, self.leading, self.count, self.step)
        pieces = elements_of(self.to_lines, self.to_length, self.to_leading, self.count, self.to_step)
        pieces += (self.algorithm.count - 1) * self.to_piece if pieces else 0
        lie = (
            f"{self.algorithm.pieces}, {self.algorithm.count} pieces, to_piece elements apart, each to_lines x "
            "to_length, lines to_leading elements apart; zeros beyond the source"
        )
        found = [
            NamedMatrix("source", F32, source, "f32, lines x length, lines leading elements apart"),
            NamedMatrix("target", self.out, pieces, lie, written=True),
        ]
        if self.own_scales:
            lie = "f32, of the scale of each line"
            found.append(NamedMatrix("inverses", F32, self._scale_elements, lie, written=True))
        elif self.algorithm.shift:
            lie = f"f32, one for each {'column' if self.across else 'line'}, a factor twice"
            found.append(NamedMatrix("scales", F32, self._scale_elements, lie))
        if self.flags:
            lie = "f32, 1 where a scaled number is not 0 and below least"
            found.append(NamedMatrix("flag", F32, 1, lie, written=True))
        return tuple(found)

    @property
    def _scale_elements(self) -> int:
        return (self.count - 1) * self.scale_step + self.scaled

    @property
    def flags(self) -> bool:
        """Whether a flag is raised."""
        return self.least > 0

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        offsets = self.offsets("leading", "to_leading", "to_piece", "step", "to_step")
        offsets += self.offsets("scale_step") if self.algorithm.shift else ()
        least = (Scalar("least", self.least, ScalarKind.FACTOR),) if self.flags else ()
        return *self.sizes("lines", "length", "to_lines", "to_length", "count"), *offsets, *least

    @property
    def formats(self) -> tuple[str, bool, bool, bool]:
        """What a kernel is made for, beside its configuration."""
        return self.algorithm.name, self.across, self.own_scales, self.flags

    @property
    def compulsory_bytes(self) -> int:
        """The source and the scales read once, or their inverses written, and every piece written once."""
        written = self.algorithm.count * self.to_lines * self.to_length * self.out.bytes
        scales = self._scale_elements * F32.bytes if self.algorithm.shift else 0
        return self.count * (self.lines * self.length * F32.bytes + scales + written)

    @property
    def title(self) -> str:
        return f"the pieces of a matrix for {self.algorithm}"


def stored_as(algorithm: Algorithm) -> DType:
    """The format in which pieces are stored: tf32 lies in memory as f32."""
    return algorithm.pieces if algorithm.pieces.is_factor else F32
