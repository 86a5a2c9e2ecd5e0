"""Partial results folded into one: sums of a product whose k is split, with the epilogue, or what is folded of C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.dtypes import F32, Array, DType
from tilewright.problem.epilogue import PLAIN, Epilogue
from tilewright.problem.functions import Operation
from tilewright.problem.gemm import Gemm, leading_of
from tilewright.problem.problem import NamedMatrix, PlainProblem, Scalar, ScalarKind, elements_of
from tilewright.problem.storages import Storages
from tilewright.problem.values import Added, AddedName, Exact, Fold, evaluate
from tilewright.units import round_up

_VECTOR = 4
"""Neighbours that a thread stores at once, 16 bytes in f32."""


def row_of_parts(columns: int) -> int:
    """Elements from row to row of the partial sums of a product: each row begins where a thread can store a vector."""
    return round_up(columns, _VECTOR)


@dataclass(frozen=True, slots=True)
class Reduction(PlainProblem):
    """C: the value of `epilogue` for the sums over p of partials[p, m, n]; all row-major, p ascending.

    row, part: elements from row to row, and from partial sum to partial sum. operation: of the fold, the largest in
    place of the sum.
    """

    m: int
    n: int
    parts: int
    row: int
    part: int
    out: DType = F32
    alpha: float = 1.0
    beta: float = 0.0
    epilogue: Epilogue = PLAIN
    ldc: int = 0
    ld_added: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    operation: Literal[Operation.PLUS, Operation.MAXIMUM] = Operation.PLUS

    def __post_init__(self) -> None:
        object.__setattr__(self, "ldc", self.ldc or max(self.n, 1))
        tight = (0,) * len(self.epilogue.matrices)
        given = (*self.ld_added, *tight[len(self.ld_added) :])
        object.__setattr__(self, "ld_added", tuple(leading or max(self.n, 1) for leading in given))
        numbers = (*self.numbers, *(1.0,) * (len(self.epilogue.factors) - len(self.numbers)))
        object.__setattr__(self, "numbers", numbers)

    @classmethod
    def of(cls, gemm: Gemm, parts: int, row: int, part: int) -> Reduction:
        """The sum that ends a product whose k was split."""
        return cls(
            *(gemm.m, gemm.n, parts, row, part, gemm.out, gemm.alpha, gemm.beta),
            *(gemm.epilogue, gemm.ldc, gemm.ld_added, gemm.numbers),
        )

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        parts = elements_of(self.m, self.n, self.row, self.parts, self.part)
        lie = "f32, parts x M x N, matrices part elements apart, rows row elements apart"
        result = elements_of(self.m, self.n, self.ldc)
        lies = f"{self.out}, M x N, rows ldc elements apart"
        return (
            NamedMatrix("partials", F32, parts, lie),
            NamedMatrix("C", self.out, result, lies, written=True),
            *map(self._added, self.epilogue.operands),
        )

    def _added(self, one: Added) -> NamedMatrix:
        """What the epilogue reads, as a matrix."""
        if one.is_vector:
            length = 1 if one.single else self.n if one.along == "n" else self.m
            elements, apart = length if self.m and self.n else 0, ""
        else:
            elements = elements_of(self.m, self.n, self.leading(one.name))
            apart = f", rows ld_{one.name} elements apart"
        dtype = one.dtype or self.out
        return NamedMatrix(one.name, dtype, elements, f"{dtype}, {one.described}{apart}")

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = (("M", self.m), ("N", self.n), ("parts", self.parts))
        names = (leading_of(one.name) for one in self.epilogue.matrices)
        factors = (("alpha", self.alpha), ("beta", self.beta), *zip(self.epilogue.factors, self.numbers, strict=True))
        return (
            *(Scalar(name, value, ScalarKind.SIZE) for name, value in sizes),
            *self.offsets("row", "part", "ldc"),
            *(Scalar(name, value, ScalarKind.OFFSET) for name, value in zip(names, self.ld_added, strict=True)),
            *(Scalar(name, value, ScalarKind.FACTOR) for name, value in factors),
        )

    def operand(self, name: str) -> Added | None:
        """What the epilogue reads by that name; None for another matrix."""
        return next((one for one in self.epilogue.operands if one.name == name), None)

    @property
    def formats(self) -> tuple[DType, Epilogue, Operation]:
        """What a kernel is made for, beside its configuration."""
        return self.out, self.epilogue, self.operation

    def leading(self, name: str) -> int:
        """Elements from row to row of a matrix."""
        own = {"partials": self.row, "C": self.ldc}
        added = zip((one.name for one in self.epilogue.matrices), self.ld_added, strict=True)
        return (own | dict(added))[name]

    @property
    def compulsory_bytes(self) -> int:
        """Every partial sum read once, C written once and read where beta is not 0."""
        return self.m * self.n * (self.parts * F32.bytes + self.out.bytes * (1 if self.beta == 0 else 2))

    @property
    def title(self) -> str:
        what = "sum" if self.operation is Operation.PLUS else "largest"
        return f"C = {self.epilogue.formula(f'{what} of partials')}"


def reduced(storages: Storages) -> Array:
    """C in float64, shape (m, n); C and the residual are not read where beta is 0."""
    problem = storages.problem
    assert isinstance(problem, Reduction)
    partials = _view(problem, "partials", storages.storage("partials")).astype(np.float64)
    (total,) = Fold(problem.operation).of(partials, 0)

    def matrix(name: AddedName | Literal["C"]) -> Array:
        storage = storages.storage(name)
        operand = problem.operand(name)
        if operand is None or not operand.is_vector:
            dtype = problem.out if operand is None else operand.dtype or problem.out
            whole: Array = dtype.decode(_view(problem, name, storage))[0].astype(np.float64)
            return whole
        line = (operand.dtype or problem.out).decode(storage).astype(np.float64)
        return line[None, :] if operand.along == "n" else line[:, None]

    factors = dict(zip(problem.epilogue.factors, problem.numbers, strict=True))
    value = evaluate(problem.epilogue.value, Exact((total,), problem.alpha, problem.beta, matrix, factors))
    return np.broadcast_to(value, (problem.m, problem.n))


def result_of(problem: Reduction, stored: Array) -> Array:
    """The matrix C, decoded, of its storage."""
    matrix: Array = problem.out.decode(_view(problem, "C", stored))[0]
    return matrix


def _view(problem: Reduction, name: str, storage: Array) -> Array:
    """A storage as (matrices, m, n)."""
    leading = problem.leading(name)
    count, apart = (problem.parts, problem.part) if name == "partials" else (1, 0)
    step = storage.itemsize
    if not problem.m or not problem.n:
        return np.zeros((count, problem.m, problem.n), storage.dtype)
    shape, strides = (count, problem.m, problem.n), (apart * step, leading * step, step)
    found: Array = np.lib.stride_tricks.as_strided(storage, shape, strides)
    return found
