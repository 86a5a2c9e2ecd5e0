"""Copies of matrices that a product reads more easily: padded, transposed, in another format."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.dtypes import DType
from tilewright.errors import ProblemError
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, ScalarKind, check_apart, elements_of


@dataclass(frozen=True, slots=True)
class MatrixCopy:
    """One matrix and its copy; all sizes in elements.

    lines, length, leading: of the source as it lies: its lines, elements of a line, elements from line to line.
    to_lines, to_length, to_leading: of the copy. What the copy has beyond the source is zero; what lies between its
    lines is not written. transposed: line i of the copy is element i of every line of the source. step, to_step: from
    one matrix of a batch to the next.
    """

    lines: int
    length: int
    leading: int
    to_lines: int
    to_length: int
    to_leading: int
    transposed: bool = False
    step: int = 0
    to_step: int = 0

    def __post_init__(self) -> None:
        lines, length = (self.length, self.lines) if self.transposed else (self.lines, self.length)
        if self.to_lines < lines or self.to_length < length:
            raise ProblemError(
                f"A copy of {self.to_lines} lines of {self.to_length} elements does not hold {lines} of {length}."
            )
        check_apart((self.length, self.leading), (self.to_length, self.to_leading))


_SUFFIXES = ("", "_2")
"""Of the names of the arguments of each copy."""


@dataclass(frozen=True, slots=True)
class Relayout(PlainProblem):
    """Up to two matrices copied by one launch. dtype, out: formats of sources and copies; count: of a batch.

    >>> from tilewright.dtypes import F32
    >>> Relayout((MatrixCopy(3, 5, 5, 3, 8, 8),), F32, F32).compulsory_bytes
    156
    """

    copies: tuple[MatrixCopy, ...]
    dtype: DType
    out: DType
    count: int = 1
    names: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if not 1 <= len(self.copies) <= len(_SUFFIXES):
            raise ProblemError(f"One launch copies one or two matrices, not {len(self.copies)}.")
        object.__setattr__(self, "names", _SUFFIXES[: len(self.copies)])

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        found: list[NamedMatrix] = []
        for s, one in zip(self.names, self.copies, strict=True):
            source = elements_of(one.lines, one.length, one.leading, self.count, one.step)
            target = elements_of(one.to_lines, one.to_length, one.to_leading, self.count, one.to_step)
            lies = f"{self.dtype}, lines{s} x length{s}, lines leading{s} elements apart"
            to = f"{self.out}, to_lines{s} x to_length{s}, lines to_leading{s} elements apart; zeros beyond"
            found.append(NamedMatrix(f"source{s}", self.dtype, source, lies))
            found.append(NamedMatrix(f"target{s}", self.out, target, to, written=True))
        return tuple(found)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        found: list[Scalar] = []
        for suffix, copy in zip(self.names, self.copies, strict=True):
            sizes = ("lines", "length", "to_lines", "to_length")
            found += [Scalar(f"{name}{suffix}", getattr(copy, name), ScalarKind.SIZE) for name in sizes]
            offsets = ("leading", "to_leading", "step", "to_step")
            found += [Scalar(f"{name}{suffix}", getattr(copy, name), ScalarKind.OFFSET) for name in offsets]
        return (*found, Scalar("count", self.count, ScalarKind.SIZE))

    @property
    def formats(self) -> tuple[DType, DType]:
        """What a kernel is made for, beside its configuration."""
        return self.dtype, self.out

    @property
    def compulsory_bytes(self) -> int:
        """Every source read once, every copy written once."""
        read = sum(copy.lines * copy.length for copy in self.copies) * self.dtype.bytes
        return self.count * (read + sum(copy.to_lines * copy.to_length for copy in self.copies) * self.out.bytes)

    @property
    def title(self) -> str:
        kinds = dict.fromkeys("a transposed copy" if copy.transposed else "a padded copy" for copy in self.copies)
        return f"{' and '.join(kinds)} of {self.dtype}" + (f" in {self.out}" if self.out is not self.dtype else "")
