"""cuBLAS, which every figure is a ratio to: called through ctypes, so that no framework is imported for it.

Numbers are those of cublas_api.h and library_types.h of CUDA 13.0; they have not changed since 11. The tests hold them
to the headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.dtypes import F32, FP8_FORMATS
from tilewright.errors import FormatError, LaunchError
from tilewright.problem.gemm import Gemm, Operand, Order
from tilewright.runtime.driver import Gpu
from tilewright.runtime.memory import DeviceArray

COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
OP_N, OP_T = 0, 1
MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
GEMM_DEFAULT = -1

WORKSPACE_BYTES = 32 << 20
"""What PyTorch gives cuBLAS on Hopper; which kernel it takes depends on it."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A peer: what it is, its version, and a function that launches it on the GPU's stream."""

    name: str
    version: str
    launch: Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as cuBLAS sees it, column-major. transposed: what is multiplied is its transpose."""

    rows: int
    columns: int
    leading: int
    transposed: bool


def as_columns(gemm: Gemm, operand: Operand) -> Matrix:
    """An operand of the transposed product: a row-major matrix is its column-major transpose.

    Row-major C = A B is column-major C' = B' A', so B comes first and A second.
    """
    length, lines = gemm.size(operand.contiguous), gemm.size(operand.strided)
    return Matrix(length, lines, gemm.leading(operand.name), operand.order is Order.COL)


def compute_type(gemm: Gemm) -> int:
    """How products are summed: cublasComputeType_t. Raises FormatError."""
    if gemm.accumulate is not F32:
        raise FormatError(f"cuBLAS is not asked for sums in {gemm.accumulate}.", hint="accumulate in f32.")
    if gemm.multiplied is gemm.dtype:
        return COMPUTE_32F
    if gemm.multiplies_tf32:
        return COMPUTE_32F_FAST_TF32
    raise FormatError(f"cuBLAS does not round {gemm.dtype} to {gemm.multiplied}.")


@cache
def library(name: str = "cublas") -> Any:
    """cuBLAS or cuBLASLt, as the installed framework brings it. Raises LaunchError where there is none."""
    from cuda import pathfinder

    try:
        found = pathfinder.load_nvidia_dynamic_lib(name)
    except Exception as failure:
        raise LaunchError(
            f"{name.replace('cublas', 'cuBLAS')} was not found.",
            note=str(failure).partition("\n")[0],
            hint="PyTorch brings it.",
        ) from None
    return ctypes.CDLL(found.abs_path)


def cublas(gpu: Gpu, gemm: Gemm) -> Baseline | None:
    """cuBLAS for a problem with alpha 1 and beta 0; None where it is not installed, or does not multiply the formats.

    True f32 unless the problem asks for tf32; 16-bit operands with sums in f32.
    """
    if gemm.dtype in FP8_FORMATS:
        return None
    try:
        compute, handle = compute_type(gemm), _handle_of(gpu)
    except (FormatError, LaunchError):
        return None
    return Baseline("cuBLAS", handle.version, handle.product(gemm, compute))


@cache
def _handle_of(gpu: Gpu) -> Cublas:
    return Cublas(library(), int(gpu.stream.handle), DeviceArray(gpu, (WORKSPACE_BYTES,)))


class Cublas:
    """A handle of the current GPU. stream: an address. workspace: memory on it, kept."""

    def __init__(self, functions: Any, stream: int, workspace: DeviceArray) -> None:
        self._functions, self._workspace = functions, workspace
        self._handle = c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, c_void_p(stream))  # takes an earlier workspace away
        self._call("cublasSetWorkspace_v2", self._handle, c_void_p(workspace.pointer), c_size_t(workspace.nbytes))
        self._call("cublasSetMathMode", self._handle, MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)

    @property
    def version(self) -> str:
        """Such as 13.1.0, which the library tells as 130100."""
        number = c_int()
        self._call("cublasGetVersion_v2", self._handle, byref(number))
        return version_of(number.value)

    def product(self, gemm: Gemm, compute: int) -> Callable[[Sequence[int]], None]:
        """A function that multiplies, given the addresses of A, B and C. alpha is 1 and beta 0."""
        first, second, result = (as_columns(gemm, gemm.operand(name)) for name in ("B", "A", "C"))
        one, zero = c_float(1.0), c_float(0.0)
        kind, to = gemm.dtype.cublas, gemm.out.cublas
        if result.transposed:  # C itself is column-major: C = A B, whose factors are read the other way round
            first, second = _turned(second), _turned(first)
        operations = tuple(OP_T if matrix.transposed else OP_N for matrix in (first, second))
        sizes = result.rows, result.columns, gemm.k

        def launch(pointers: Sequence[int]) -> None:
            a, b, c = (c_void_p(pointer) for pointer in pointers)
            left, right = (a, b) if result.transposed else (b, a)
            self._call(
                "cublasGemmEx",
                *(self._handle, *operations, *sizes, byref(one)),
                *(left, kind, first.leading, right, kind, second.leading, byref(zero)),
                *(c, to, result.leading, compute, GEMM_DEFAULT),
            )

        return launch

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._functions, name)(*arguments)
        if status:
            raise LaunchError(f"{name} of cuBLAS gave status {status}.")


def _turned(matrix: Matrix) -> Matrix:
    """The same numbers in memory, of which the other of matrix and transpose is multiplied."""
    return Matrix(matrix.rows, matrix.columns, matrix.leading, not matrix.transposed)


def version_of(number: int) -> str:
    """A version as libraries of CUDA tell it.

    >>> version_of(130205)
    '13.2.5'
    """
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
