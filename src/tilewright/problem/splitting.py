"""An operand of f32 as pieces of a narrower format, each a matrix of its own."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import F32, DType
from tilewright.errors import ProblemError
from tilewright.problem.emulation import Algorithm
from tilewright.problem.problem import NamedMatrix, Scalar, ScalarKind


@dataclass(frozen=True, slots=True)
class Splitting:
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
        if self.leading < self.length or self.to_leading < self.to_length:
            raise ProblemError(
                f"Lines of {self.length} and {self.to_length} elements cannot be {self.leading} and {self.to_leading} "
                "apart."
            )
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
        more = ("inverses" if self.own_scales else "scales",) * (self.algorithm.shift > 0) + ("flag",) * self.flags
        return NamedMatrix("source", F32), NamedMatrix("target", self.out), *(NamedMatrix(one, F32) for one in more)

    @property
    def results(self) -> tuple[str, ...]:
        return "target", *(("inverses",) * self.own_scales), *(("flag",) * self.flags)

    @property
    def flags(self) -> bool:
        """Whether a flag is raised."""
        return self.least > 0

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = ("lines", "length", "to_lines", "to_length", "count")
        offsets: tuple[str, ...] = ("leading", "to_leading", "to_piece", "step", "to_step")
        found = [Scalar(name, getattr(self, name), ScalarKind.SIZE) for name in sizes]
        offsets += ("scale_step",) * (self.algorithm.shift > 0)
        least = (Scalar("least", self.least, ScalarKind.FACTOR),) if self.flags else ()
        return (*found, *(Scalar(name, getattr(self, name), ScalarKind.OFFSET) for name in offsets), *least)

    @property
    def formats(self) -> tuple[str, bool, bool, bool]:
        """What a kernel is made for, beside its configuration."""
        return self.algorithm.name, self.across, self.own_scales, self.flags

    def storage_elements(self, name: str) -> int:
        if name == "flag":
            return 1
        if name in ("scales", "inverses"):
            return (self.count - 1) * self.scale_step + self.scaled
        if name == "source":
            lines, length, leading, step, more = self.lines, self.length, self.leading, self.step, 0
        else:
            lines, length, leading, step = self.to_lines, self.to_length, self.to_leading, self.to_step
            more = (self.algorithm.count - 1) * self.to_piece
        return (self.count - 1) * step + more + (lines - 1) * leading + length if lines and length else 0

    @property
    def compulsory_bytes(self) -> int:
        """The source and the scales read once, or their inverses written, and every piece written once."""
        written = self.algorithm.count * self.to_lines * self.to_length * self.out.bytes
        scales = self.storage_elements("scales") * F32.bytes if self.algorithm.shift else 0
        return self.count * (self.lines * self.length * F32.bytes + scales + written)

    @property
    def title(self) -> str:
        return f"the pieces of a matrix for {self.algorithm}"

    @property
    def matrix_lines(self) -> tuple[str, ...]:
        """Each matrix in one line, for the header of a kernel."""
        return (
            "source  f32, lines x length, lines leading elements apart",
            f"target  {self.algorithm.pieces}, {self.algorithm.count} pieces, to_piece elements apart, each to_lines x "
            "to_length, lines to_leading elements apart; zeros beyond the source",
            *(
                (f"scales  f32, one for each {'column' if self.across else 'line'}, a factor twice",)
                if self.algorithm.shift and not self.own_scales
                else ()
            ),
            *(("inverses  f32, of the scale of each line",) if self.own_scales else ()),
            *(("flag  f32, 1 where a scaled number is not 0 and below least",) if self.flags else ()),
        )


def stored_as(algorithm: Algorithm) -> DType:
    """The format in which pieces are stored: tf32 lies in memory as f32."""
    return algorithm.pieces if algorithm.pieces.is_factor else F32
