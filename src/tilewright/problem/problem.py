"""What every reader of a kernel asks of its problem: the matrices by name, and the scalar arguments with their values.

`Gemm`, `Relayout` and `Reduction` are problems. A kernel holds one as the class of what it computes; a launch, or a
simulation, gives the values of another one of that class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from tilewright.artifacts import Extent, Parameter
from tilewright.dtypes import F32, I32, I64, Array, DType
from tilewright.errors import ProblemError


class ScalarKind(Enum):
    """How a kernel takes a scalar."""

    SIZE = "size"  # i32
    OFFSET = "offset"  # elements between lines or matrices: i32 where all offsets fit, else i64
    FACTOR = "factor"  # f32

    def dtype(self, *, near: bool) -> DType:
        """near: every element offset fits in 31 bits."""
        if self is ScalarKind.FACTOR:
            return F32
        return I32 if near or self is ScalarKind.SIZE else I64


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar argument of one problem."""

    name: str
    value: float
    kind: ScalarKind


class Matrix(Protocol):
    """A matrix in global memory: its name as an argument, and the format of its elements."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DType: ...


@dataclass(frozen=True, slots=True)
class NamedMatrix:
    """A matrix of a problem that has no `Operand`s.

    elements: from the first to the last, gaps included. told: its format and how it lies, for the header of a kernel.
    written: by the launch. of_ranks: each rank of a group has one; a kernel is told of all.
    """

    name: str
    dtype: DType
    elements: int
    told: str
    written: bool = False
    of_ranks: bool = False


class Problem(Protocol):
    """Matrices and scalars are in the order of the launch arguments."""

    @property
    def matrices(self) -> tuple[Matrix, ...]: ...

    @property
    def scalars(self) -> tuple[Scalar, ...]: ...

    @property
    def results(self) -> tuple[str, ...]:
        """The matrices that are written."""

    def storage_elements(self, name: str) -> int:
        """Elements from the first to the last of a matrix, gaps included."""


class PlainProblem(ABC):
    """A problem whose matrices say themselves how they lie, and whose scalars are fields of it."""

    __slots__ = ()

    @property
    @abstractmethod
    def matrices(self) -> tuple[NamedMatrix, ...]: ...

    @property
    @abstractmethod
    def scalars(self) -> tuple[Scalar, ...]: ...

    @property
    @abstractmethod
    def title(self) -> str:
        """What is computed, for the header of a kernel."""

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.matrices if one.written)

    def storage_elements(self, name: str) -> int:
        return next(one.elements for one in self.matrices if one.name == name)

    def sizes(self, *names: str) -> tuple[Scalar, ...]:
        """Fields that a kernel takes as sizes."""
        return tuple(Scalar(name, getattr(self, name), ScalarKind.SIZE) for name in names)

    def offsets(self, *names: str) -> tuple[Scalar, ...]:
        """Fields that a kernel takes as elements between lines or matrices."""
        return tuple(Scalar(name, getattr(self, name), ScalarKind.OFFSET) for name in names)


def elements_of(lines: int, length: int, leading: int, count: int = 1, step: int = 0) -> int:
    """Elements from the first to the last of lines, or of a batch of as many, whose beginnings are `leading` and
    `step` apart.

    >>> elements_of(3, 5, 8), elements_of(3, 0, 8)
    (21, 0)
    """
    return (count - 1) * step + (lines - 1) * leading + length if lines and length else 0


def check_apart(*lines: tuple[int, int]) -> None:
    """Raises ProblemError for lines that would overlap. lines: elements of each, and from one to the next."""
    for length, leading in lines:
        if leading < length:
            raise ProblemError(f"Lines of {length} elements cannot be {leading} apart.")


@dataclass(frozen=True, slots=True)
class TmaMatrix:
    """A matrix as TMA takes it: `lines` lines of `length` elements, whose beginnings are `leading` elements apart.

    dtype: of an element in memory. mapped: the format that TMA is told, to which it rounds what it loads.
    """

    length: Extent
    lines: Extent
    leading: Extent
    dtype: DType
    mapped: DType


def tma_matrix(problem: Problem, name: str) -> TmaMatrix:
    """How a matrix of a problem lies for TMA. Raises TypeError for a problem that has none."""
    find: Callable[[str], TmaMatrix] | None = getattr(problem, "tma_matrix", None)
    if find is None:
        raise TypeError(f"TMA copies no matrix of a {type(problem).__name__}")
    return find(name)


def parameters_of(problem: Problem, *, near: bool) -> tuple[Parameter, ...]:
    """What a kernel takes of one problem, in order."""
    pointers = (
        Parameter(one.name, one.dtype, is_pointer=True, of_ranks=isinstance(one, NamedMatrix) and one.of_ranks)
        for one in problem.matrices
    )
    return (*pointers, *(Parameter(scalar.name, scalar.kind.dtype(near=near)) for scalar in problem.scalars))


def values_of(problem: Problem) -> dict[str, float]:
    """The scalar arguments by name, as a GPU sees them: factors are rounded to f32."""
    return {
        scalar.name: float(np.float32(scalar.value)) if scalar.kind is ScalarKind.FACTOR else scalar.value
        for scalar in problem.scalars
    }


class Stored(Protocol):
    """A problem with the storage of its matrices: flat arrays, gaps included."""

    @property
    def problem(self) -> Problem: ...

    def storage(self, name: str) -> Array: ...
