"""cuBLASLt with its own algorithms: what its heuristic offers for a problem, each ready to be called.

Through ctypes: no binding of this library comes with the frameworks. Numbers and layouts are those of cublasLt.h,
cublas_api.h and library_types.h of CUDA 13.0; they have not changed since 11. The tests hold them to the headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from tilewright.bench.baseline import OP_T, Matrix, as_columns, compute_type, version_of
from tilewright.bench.baseline import library as found_library
from tilewright.dtypes import F32, DType
from tilewright.errors import LaunchError
from tilewright.problem.gemm import Gemm

WORKSPACE_BYTES = 64 << 20
MOST_ALGORITHMS = 32

DESC_TRANSA, DESC_TRANSB = 3, 4
PREF_MAX_WORKSPACE_BYTES = 1


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t"""

    _fields_ = (("data", c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algo", Algorithm),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    )


class CublasLt:
    """The library, and a handle of the current GPU. Raises LaunchError where it cannot be loaded."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or found_library("cublasLt")
        self._handle = c_void_p()
        self._call("cublasLtCreate", byref(self._handle))

    @property
    def version(self) -> str:
        """Such as 13.1.0."""
        return version_of(int(self._library.cublasLtGetVersion()))

    def multiplications(self, gemm: Gemm, workspace: int) -> list[Callable[[int, int, int, int], None]]:
        """One function for each algorithm: it takes the addresses of A, B and C, and the stream.

        alpha is 1 and beta 0. workspace: the address of WORKSPACE_BYTES. The first is what the heuristic likes best.
        """
        first, second, result = (as_columns(gemm, gemm.operand(name)) for name in ("B", "A", "C"))
        operation = self._operation(gemm, first.transposed, second.transposed)
        layouts = [self._layout(gemm.dtype, m) for m in (first, second)] + [self._layout(gemm.out, result)]
        found = self._algorithms(operation, layouts)
        return [self._multiplication(operation, layouts, one, workspace) for one in found]

    def _operation(self, gemm: Gemm, first_transposed: bool, second_transposed: bool) -> c_void_p:
        operation = c_void_p()
        compute = compute_type(gemm)
        self._call("cublasLtMatmulDescCreate", byref(operation), compute, F32.cublas)
        for attribute, transposed in ((DESC_TRANSA, first_transposed), (DESC_TRANSB, second_transposed)):
            if transposed:
                value = c_uint32(OP_T)
                self._call(
                    "cublasLtMatmulDescSetAttribute", operation, attribute, byref(value), c_size_t(ctypes.sizeof(value))
                )
        return operation

    def _layout(self, dtype: DType, matrix: Matrix) -> c_void_p:
        layout = c_void_p()
        sizes = c_uint64(matrix.rows), c_uint64(matrix.columns), c_int64(matrix.leading)
        self._call("cublasLtMatrixLayoutCreate", byref(layout), dtype.cublas, *sizes)
        return layout

    def _algorithms(self, operation: c_void_p, layouts: list[c_void_p]) -> list[HeuristicResult]:
        preference, most = c_void_p(), c_uint64(WORKSPACE_BYTES)
        self._call("cublasLtMatmulPreferenceCreate", byref(preference))
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            PREF_MAX_WORKSPACE_BYTES,
            byref(most),
            c_size_t(ctypes.sizeof(most)),
        )
        found, count = (HeuristicResult * MOST_ALGORITHMS)(), c_int()
        first, second, result = layouts
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle,
            operation,
            *(first, second, result, result),
            preference,
            MOST_ALGORITHMS,
            found,
            byref(count),
        )
        return [one for one in found[: count.value] if one.state == 0]

    def _multiplication(
        self, operation: c_void_p, layouts: list[c_void_p], found: HeuristicResult, workspace: int
    ) -> Callable[[int, int, int, int], None]:
        first, second, result = layouts
        one, zero = c_float(1.0), c_float(0.0)
        matmul, handle, algorithm = self._library.cublasLtMatmul, self._handle, byref(found.algo)
        size = c_size_t(found.workspaceSize)

        def multiply(a: int, b: int, c: int, stream: int) -> None:
            status = matmul(
                *(handle, operation, byref(one), c_void_p(b), first, c_void_p(a), second, byref(zero)),
                *(c_void_p(c), result, c_void_p(c), result, algorithm, c_void_p(workspace), size, c_void_p(stream)),
            )
            if status:
                raise LaunchError(f"cublasLtMatmul gave status {status}.")

        multiply.__dict__["kept"] = (found, one, zero)  # the library reads them when it is called
        return multiply

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise LaunchError(f"{name} of cuBLASLt gave status {status}.")
