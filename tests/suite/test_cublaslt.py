"""The ctypes binding of cuBLASLt: the right product in every order, by a library that multiplies with NumPy."""

from __future__ import annotations

import ctypes
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.bench import baseline
from tilewright.bench.baseline import Cublas
from tilewright.dtypes import BF16, TF32
from tilewright.errors import LaunchError
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import view
from tilewright.suite import cublaslt
from tilewright.suite.cublaslt import CublasLt


class NumpyLt:
    """What cuBLASLt promises of matrices column-major, for f32. Handles are numbers of what was created."""

    def __init__(self, *, offers: int = 3) -> None:
        self.things: list[Any] = [None]
        self.offers = offers

    def new(self, place: Any, thing: Any) -> int:
        self.things.append(thing)
        place._obj.value = len(self.things) - 1
        return 0

    def cublasLtGetVersion(self) -> int:
        return 130205

    def cublasLtCreate(self, place: Any) -> int:
        return self.new(place, "handle")

    def cublasLtMatmulPreferenceCreate(self, place: Any) -> int:
        return self.new(place, {})

    def cublasLtMatmulPreferenceSetAttribute(self, which: Any, attribute: int, value: Any, size: Any) -> int:
        self.things[which.value][attribute] = (value._obj.value, size.value)
        return 0

    def cublasLtMatmulDescCreate(self, place: Any, compute: int, scale: int) -> int:
        return self.new(place, {"compute": compute, "scale": scale})

    def cublasLtMatmulDescSetAttribute(self, which: Any, attribute: int, value: Any, size: Any) -> int:
        self.things[which.value][attribute] = value._obj.value
        return 0

    def cublasLtMatrixLayoutCreate(self, place: Any, kind: int, rows: Any, columns: Any, leading: Any) -> int:
        return self.new(place, (rows.value, columns.value, leading.value))

    def cublasLtMatmulAlgoGetHeuristic(self, *given: Any) -> int:
        found, count = given[-2:]
        for number in range(self.offers):
            found[number].algo.data[0] = number
            found[number].state = 15 if number == 1 else 0  # the second is not supported
        count._obj.value = self.offers
        return 0

    def cublasLtMatmul(
        self, handle: Any, operation: Any, alpha: Any, a: Any, la: Any, b: Any, lb: Any, *rest: Any
    ) -> int:
        beta, _, _, d, ld, *_ = rest
        asked = self.things[operation.value]
        first = self.matrix(a, la, bool(asked.get(cublaslt.DESC_TRANSA)))
        second = self.matrix(b, lb, bool(asked.get(cublaslt.DESC_TRANSB)))
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        self.matrix(d, ld, False)[...] = first @ second
        return 0

    def matrix(self, address: Any, layout: Any, transposed: bool) -> Any:
        rows, columns, leading = self.things[layout.value]
        memory = np.ctypeslib.as_array((ctypes.c_float * (leading * columns)).from_address(address.value))
        found = memory.reshape(columns, leading)[:, :rows].T
        return found.T if transposed else found


@pytest.mark.parametrize("a_order", Order)
@pytest.mark.parametrize("b_order", Order)
def test_the_product_is_right_in_every_order(a_order: Order, b_order: Order) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7), np.float32), rng.standard_normal((7, 3), np.float32)
    stored_a, stored_b = (
        np.ascontiguousarray(matrix if order is Order.ROW else matrix.T)
        for matrix, order in ((a, a_order), (b, b_order))
    )
    c = np.zeros((5, 3), np.float32)
    multiply = CublasLt(NumpyLt()).multiplications(Gemm(5, 3, 7, a=a_order, b=b_order), 0)[0]
    multiply(stored_a.ctypes.data, stored_b.ctypes.data, c.ctypes.data, 0)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


class NumpyBlas:
    """What cuBLAS promises of matrices column-major, for f32. calls: the names of its functions."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> int:
            self.calls.append(name)
            return 0

        return call

    def cublasGetVersion_v2(self, handle: Any, place: Any) -> int:
        place._obj.value = 130205
        return 0

    def cublasGemmEx(self, handle: Any, first_op: int, second_op: int, m: int, n: int, k: int, *rest: Any) -> int:
        alpha, a, _, lda, b, _, ldb, beta, c, _, ldc, compute, _ = rest
        assert (alpha._obj.value, beta._obj.value, compute) == (1.0, 0.0, baseline.COMPUTE_32F)
        first = self.matrix(a, (m, k), lda, bool(first_op))
        second = self.matrix(b, (k, n), ldb, bool(second_op))
        self.matrix(c, (m, n), ldc, False)[...] = first @ second
        return 0

    def matrix(self, address: Any, shape: tuple[int, int], leading: int, transposed: bool) -> Any:
        rows, columns = shape[::-1] if transposed else shape
        memory = np.ctypeslib.as_array((ctypes.c_float * (leading * columns)).from_address(address.value))
        found = memory.reshape(columns, leading)[:, :rows].T
        return found.T if transposed else found


class Workspace:
    pointer, nbytes = 4096, 32 << 20


@pytest.mark.parametrize("orders", [*product(Order, repeat=3)], ids=str)
def test_the_peer_multiplies_in_every_order(orders: tuple[Order, Order, Order]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7), np.float32), rng.standard_normal((7, 3), np.float32)
    stored_a, stored_b = (
        np.ascontiguousarray(one if order is Order.ROW else one.T) for one, order in zip((a, b), orders, strict=False)
    )
    c = np.zeros(15, np.float32)
    gemm = Gemm(5, 3, 7, a=orders[0], b=orders[1], c=orders[2])
    library, workspace = NumpyBlas(), Workspace()
    handle = Cublas(library, 0, workspace)  # type: ignore[arg-type]
    handle.product(gemm, baseline.compute_type(gemm))([one.ctypes.data for one in (stored_a, stored_b, c)])
    np.testing.assert_allclose(view(gemm, "C", c), a @ b, rtol=1e-5)
    # A new stream takes the workspace away.
    assert library.calls.index("cublasSetStream_v2") < library.calls.index("cublasSetWorkspace_v2")
    assert handle.version == "13.2.5"


def test_the_peer_rounds_nothing_but_what_was_asked_for() -> None:
    assert baseline.compute_type(Gemm(8, 8, 8)) == baseline.compute_type(Gemm(8, 8, 8, BF16)) == baseline.COMPUTE_32F
    assert baseline.compute_type(Gemm(8, 8, 8, product=TF32)) == baseline.COMPUTE_32F_FAST_TF32


def test_algorithms_that_are_not_supported_are_left_out() -> None:
    assert len(CublasLt(NumpyLt(offers=4)).multiplications(Gemm(8, 8, 8), 0)) == 3


def test_the_version_is_told_as_people_write_it() -> None:
    assert CublasLt(NumpyLt()).version == "13.2.5"


def test_a_failure_names_the_function_and_its_status() -> None:
    library = NumpyLt()
    library.cublasLtCreate = lambda place: 1  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="cublasLtCreate of cuBLASLt gave status 1"):
        CublasLt(library)


def headers() -> Path:
    from cuda import pathfinder

    found = pathfinder.find_nvidia_header_directory("cublas")
    if found is None:
        pytest.skip("the headers of cuBLAS are not installed")
    return Path(found)


def test_numbers_are_those_of_the_headers() -> None:
    text = "".join((headers() / name).read_text() for name in ("cublasLt.h", "cublas_api.h"))
    numbers = {
        "CUBLAS_COMPUTE_32F": baseline.COMPUTE_32F,
        "CUBLAS_COMPUTE_32F_FAST_TF32": baseline.COMPUTE_32F_FAST_TF32,
        "CUBLAS_OP_N": baseline.OP_N,
        "CUBLAS_OP_T": baseline.OP_T,
        "CUBLAS_GEMM_DEFAULT": baseline.GEMM_DEFAULT,
        "CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION": baseline.MATH_DISALLOW_REDUCED_PRECISION_REDUCTION,
        "CUBLASLT_MATMUL_DESC_TRANSA": cublaslt.DESC_TRANSA,
        "CUBLASLT_MATMUL_DESC_TRANSB": cublaslt.DESC_TRANSB,
        "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": cublaslt.PREF_MAX_WORKSPACE_BYTES,
    }
    told = {name: int(found[1]) for name in numbers if (found := re.search(rf"\b{name}\s*=\s*(-?\d+)", text))}
    assert told == numbers


def test_a_result_of_the_heuristic_has_the_size_of_the_headers() -> None:
    assert ctypes.sizeof(cublaslt.HeuristicResult) == 8 * 8 + 8 + 4 + 4 + 4 * 4
