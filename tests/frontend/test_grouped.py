"""`grouped_matmul`: products of different shapes in one launch."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import CpuArrays, State, cpu_gpu
from test_matmul import assert_right, drawn, values

from tilewright.dtypes import BF16, F32, DType
from tilewright.errors import LaunchError
from tilewright.frontend import grouped_matmul
from tilewright.planning.assembly import Request
from tilewright.planning.dispatch import Dispatcher
from tilewright.problem.functions import Activation

SHAPES = [(70, 65, 33), (1, 40, 50), (130, 20, 64), (0, 30, 20), (64, 64, 0), (33, 1, 17)]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


@pytest.mark.parametrize("orders", ["NN", "NT"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_products_of_many_shapes_are_one_launch(gpu: State, dtype: DType, orders: str) -> None:
    a = [drawn(m, k, dtype=dtype, order=orders[0]) for m, _, k in SHAPES]
    b = [drawn(k, n, dtype=dtype, order=orders[1]) for _, n, k in SHAPES]
    for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
        assert_right(result, x, y, dtype=dtype)
    assert len(gpu.launches) <= 1 + (orders != "NN")  # the order of an empty matrix is unobservable


def test_each_product_has_its_bias(gpu: State) -> None:
    a, b, bias = [drawn(20, 30), drawn(40, 50)], [drawn(30, 24), drawn(50, 16)], [drawn(24), drawn(16)]
    results = grouped_matmul(a, b, bias=bias, activation="relu", alpha=0.5)
    for result, x, y, z in zip(results, a, b, bias, strict=True):
        assert_right(result, x, y, alpha=0.5, added=values(z, F32), activation=Activation.RELU)
    assert len(gpu.launches) == 1


def test_operands_in_other_orders_are_a_launch_of_their_own(gpu: State) -> None:
    a = [drawn(20, 30), drawn(20, 30, order="T"), drawn(40, 30)[:, ::2]]
    b = [drawn(30, 24), drawn(30, 24), drawn(15, 24)]
    for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
        assert_right(result, x, y)
    assert len(gpu.launches) == 2


def test_new_shapes_of_a_class_compile_nothing(gpu: State) -> None:
    for seed in range(4):
        sizes = [(31 + seed, 65, 33), (17, 129 + seed, 35)]
        a, b = [drawn(m, k) for m, _, k in sizes], [drawn(k, n) for _, n, k in sizes]
        for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
            assert_right(result, x, y)
    assert len(gpu.compiled) == 1


def test_in_a_capture_nothing_is_compiled_or_copied(gpu: State) -> None:
    a, b = [drawn(20, 30)], [drawn(30, 24)]
    gpu.capturing = True
    with pytest.raises(LaunchError, match="recording a CUDA graph"):
        grouped_matmul(a, b)
    assert not gpu.compiled and not gpu.launches


def test_no_products_are_no_launch(gpu: State) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert grouped_matmul([], []) == []
        (empty,) = grouped_matmul([drawn(0, 5)], [drawn(5, 3)])
    assert np.shape(empty) == (0, 3) and not gpu.launches


def test_nothing_travels_to_the_gpu_but_the_arguments_of_the_launch(
    gpu: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(CpuArrays, "upload")
    for capturing in (False, True):  # the second time with other arrays
        gpu.capturing = capturing
        a, b = [drawn(20, 30), drawn(7, 50)], [drawn(30, 24), drawn(50, 9)]
        for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
            assert_right(result, x, y)


def test_more_products_than_arguments_have_room_for_are_several_launches(gpu: State) -> None:
    a, b = [drawn(8, 16) for _ in range(130)], [drawn(16, 8) for _ in range(130)]
    for result, x, y in zip(grouped_matmul(a, b), a, b, strict=True):
        assert_right(result, x, y)
    assert len(gpu.launches) == 3 and len(gpu.compiled) == 1


def test_products_that_are_faster_alone_are_a_launch_each(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatcher, "is_better_alone", lambda self, requests: True)
    a, b, bias = [drawn(40, 30), drawn(0, 30), drawn(64, 50)], [drawn(30, 24)] * 2 + [drawn(50, 9)], [drawn(24)] * 3
    bias[2] = drawn(9)
    for _ in range(2):
        for result, x, y, z in zip(grouped_matmul(a, b, bias=bias), a, b, bias, strict=True):
            assert_right(result, x, y, added=values(z, F32))
    assert len(gpu.launches) == 4


class ByNumPy:
    """In the place of a plan of groups: what its launch would do."""

    def __init__(self, request: Request) -> None:
        self.request, self.runs = request, 0

    def run(self, stream: int, addresses: tuple[int, ...]) -> None:
        gemm, groups = self.request.gemm, self.request.groups
        assert groups is not None and gemm.dtype is F32

        def array(place: int, *shape: int, dtype: type = np.float32) -> Any:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            memory = (ctypes.c_char * size).from_address(addresses[place])
            return np.frombuffer(memory, dtype).reshape(shape)

        ends = array(6, groups.count, dtype=np.int32)
        a, c = array(0, gemm.m, gemm.lda)[:, : gemm.k], array(2, gemm.m, gemm.ldc)
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            b = array(1, number * groups.step + gemm.k * gemm.n)[number * groups.step :].reshape(gemm.k, gemm.n)
            c[start:end] = gemm.alpha * (a[start:end] @ b)
        self.runs += 1


def test_rows_of_one_matrix_are_the_groups_of_one_launch(gpu: State, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[ByNumPy] = []
    monkeypatch.setattr(Dispatcher, "reads_groups_by_tma", lambda self, request: True)
    monkeypatch.setattr(Dispatcher, "ragged", lambda self, request: plans.append(ByNumPy(request)) or plans[-1])
    sizes = [5, 0, 1, 30, 0]
    for _ in range(2):
        tokens, weights = drawn(sum(sizes), 20)[:, :16], drawn(len(sizes), 2, 16, 8)
        a = np.split(tokens, np.cumsum(sizes)[:-1])
        for result, x, y in zip(grouped_matmul(a, list(weights[:, 1]), alpha=0.5), a, weights[:, 1], strict=True):
            assert_right(result, x, y, alpha=0.5)
    assert [plan.runs for plan in plans] == [2] and not gpu.launches
    b = [drawn(16, 8) for _ in sizes]  # these lie anywhere
    for result, x, y in zip(grouped_matmul(a, b, alpha=0.5), a, b, strict=True):
        assert_right(result, x, y, alpha=0.5)
    assert plans[0].runs == 2 and len(gpu.launches) == 1
