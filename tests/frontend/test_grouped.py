"""`grouped_matmul`: products of different shapes in one launch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu
from test_matmul import assert_right, drawn, values

from tilewright.dtypes import BF16, F32, DType
from tilewright.errors import LaunchError
from tilewright.frontend import grouped_matmul
from tilewright.problem.epilogue import Activation

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
