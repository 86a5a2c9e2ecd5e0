"""The ctypes binding of cuBLASLt: the right product in every order, by a library that multiplies with NumPy."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import LaunchError
from tilewright.problem.gemm import Gemm, Order
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
        "CUBLAS_COMPUTE_32F": cublaslt.COMPUTE_32F,
        "CUBLAS_COMPUTE_32F_FAST_TF32": cublaslt.COMPUTE_32F_FAST_TF32,
        "CUBLAS_OP_T": cublaslt.OP_T,
        "CUBLASLT_MATMUL_DESC_TRANSA": cublaslt.DESC_TRANSA,
        "CUBLASLT_MATMUL_DESC_TRANSB": cublaslt.DESC_TRANSB,
        "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": cublaslt.PREF_MAX_WORKSPACE_BYTES,
    }
    told = {name: int(found[1]) for name in numbers if (found := re.search(rf"\b{name}\s*=\s*(\d+)", text))}
    assert told == numbers


def test_a_result_of_the_heuristic_has_the_size_of_the_headers() -> None:
    assert ctypes.sizeof(cublaslt.HeuristicResult) == 8 * 8 + 8 + 4 + 4 + 4 * 4
