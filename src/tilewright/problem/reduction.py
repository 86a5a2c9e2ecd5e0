"""Partial sums of a product added up, with the epilogue: what follows a split of k over blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import F32, Array, DType
from tilewright.problem.epilogue import PLAIN, Epilogue
from tilewright.problem.gemm import Gemm
from tilewright.problem.problem import NamedMatrix, Scalar, ScalarKind
from tilewright.problem.storages import Storages, poisoned


@dataclass(frozen=True, slots=True)
class Reduction:
    """`C[m, n] = activation(alpha * sum_p partials[p, m, n] + beta * R[m, n] + bias)`; all row-major, p ascending.

    R is C, or the residual. row, part: elements from row to row, and from partial sum to partial sum.
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
    ld_residual: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ldc", self.ldc or max(self.n, 1))
        if self.epilogue.residual:
            object.__setattr__(self, "ld_residual", self.ld_residual or max(self.n, 1))

    @classmethod
    def of(cls, gemm: Gemm, parts: int, row: int, part: int) -> Reduction:
        """The sum that ends a product whose k was split."""
        return cls(
            *(gemm.m, gemm.n, parts, row, part, gemm.out, gemm.alpha, gemm.beta),
            *(gemm.epilogue, gemm.ldc, gemm.ld_residual if gemm.epilogue.residual else 0),
        )

    @property
    def matrices(self) -> tuple[NamedMatrix, ...]:
        added = [n for n, there in (("bias", self.epilogue.bias), ("residual", self.epilogue.residual)) if there]
        return NamedMatrix("partials", F32), *(NamedMatrix(name, self.out) for name in ("C", *added))

    @property
    def results(self) -> tuple[str, ...]:
        return ("C",)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        sizes = (("M", self.m), ("N", self.n), ("parts", self.parts))
        offsets = [("row", self.row), ("part", self.part), ("ldc", self.ldc)]
        offsets += [("ld_residual", self.ld_residual)] if self.epilogue.residual else []
        return (
            *(Scalar(name, value, ScalarKind.SIZE) for name, value in sizes),
            *(Scalar(name, value, ScalarKind.OFFSET) for name, value in offsets),
            *(Scalar(name, getattr(self, name), ScalarKind.FACTOR) for name in ("alpha", "beta")),
        )

    @property
    def formats(self) -> tuple[DType, Epilogue]:
        """What a kernel is made for, beside its configuration."""
        return self.out, self.epilogue

    def storage_elements(self, name: str) -> int:
        if not self.m or not self.n:
            return 0
        if name == "bias":
            return self.n if self.epilogue.bias == "n" else self.m
        leading = {"partials": self.row, "C": self.ldc, "residual": self.ld_residual}[name]
        return (self.m - 1) * leading + self.n + ((self.parts - 1) * self.part if name == "partials" else 0)

    @property
    def compulsory_bytes(self) -> int:
        """Every partial sum read once, C written once and read where beta is not 0."""
        return self.m * self.n * (self.parts * F32.bytes + self.out.bytes * (1 if self.beta == 0 else 2))

    @property
    def title(self) -> str:
        source = "residual" if self.epilogue.residual else "C"
        text = f"alpha * sum of partials + beta * {source}{' + bias' if self.epilogue.bias else ''}"
        return f"C = {text if self.epilogue.activation is None else f'{self.epilogue.activation.value}({text})'}"

    @property
    def matrix_lines(self) -> tuple[str, ...]:
        """Each matrix in one line, for the header of a kernel."""
        along = "column" if self.epilogue.bias == "n" else "row"
        found = ["partials  f32, parts x M x N, matrices part elements apart, rows row elements apart"]
        found += [f"C  {self.out}, M x N, rows ldc elements apart"]
        found += [f"bias  {self.out}, one for each {along}"] if self.epilogue.bias else []
        found += [f"residual  {self.out}, M x N, rows ld_residual elements apart"] if self.epilogue.residual else []
        return tuple(found)


def make_partials(problem: Reduction, *, seed: int = 0) -> Storages:
    """Random normal matrices; gaps, and what beta = 0 leaves unread, hold NaN."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for matrix in problem.matrices:
        storage = arrays[matrix.name] = poisoned(problem, matrix.name)
        if matrix.name == "bias":
            storage[...] = matrix.dtype.encode(rng.standard_normal(storage.size, dtype=np.float32))
        elif matrix.name == "partials" or _reads(problem, matrix.name):
            target = _view(problem, matrix.name, storage)
            target[...] = matrix.dtype.encode(rng.standard_normal(target.shape, dtype=np.float32))
    return Storages(problem, arrays)


def reduced(storages: Storages) -> Array:
    """C in float64, shape (m, n); C and the residual are not read where beta is 0."""
    problem = storages.problem
    assert isinstance(problem, Reduction)
    value: Array = _view(problem, "partials", storages.storage("partials")).astype(np.float64).sum(axis=0)
    value = problem.alpha * value
    if problem.beta != 0:
        name = "residual" if problem.epilogue.residual else "C"
        value = value + problem.beta * problem.out.decode(_view(problem, name, storages.storage(name)))[0]
    if problem.epilogue.bias:
        bias = problem.out.decode(storages.storage("bias")).astype(np.float64)
        value = value + (bias[None, :] if problem.epilogue.bias == "n" else bias[:, None])
    return value if problem.epilogue.activation is None else problem.epilogue.activation.of(value)


def result_of(problem: Reduction, stored: Array) -> Array:
    """The matrix C, decoded, of its storage."""
    matrix: Array = problem.out.decode(_view(problem, "C", stored))[0]
    return matrix


def _reads(problem: Reduction, name: str) -> bool:
    return problem.beta != 0 and name == ("residual" if problem.epilogue.residual else "C")


def _view(problem: Reduction, name: str, storage: Array) -> Array:
    """A storage as (matrices, m, n)."""
    leading = {"partials": problem.row, "C": problem.ldc, "residual": problem.ld_residual}[name]
    count, apart = (problem.parts, problem.part) if name == "partials" else (1, 0)
    step = storage.itemsize
    if not problem.m or not problem.n:
        return np.zeros((count, problem.m, problem.n), storage.dtype)
    shape, strides = (count, problem.m, problem.n), (apart * step, leading * step, step)
    found: Array = np.lib.stride_tricks.as_strided(storage, shape, strides)
    return found
