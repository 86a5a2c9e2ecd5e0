"""Calls with a function as their epilogue, on a GPU that is the CPU: addresses of one launch and of several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu, on_gpu

from tilewright.frontend import linear_gated, matmul, ops


@pytest.fixture(autouse=True)
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def drawn(*shape: int) -> Any:
    return on_gpu(np.random.default_rng(shape).standard_normal(shape, np.float32))


def joined(acc: Any, gate: Any, row: Any, one: Any, rate: Any) -> Any:
    return ops.silu(acc) * gate + row * rate - one


@pytest.mark.parametrize(
    ("left", "right"),
    [((5, 7), (7, 9)), ((1, 300), (300, 90)), ((2, 40, 16), (16, 12)), ((3, 5, 7), (3, 7, 9)), ((4, 6000), (6000, 8))],
)
def test_operands_of_every_kind(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = drawn(*left), drawn(*right)
    shape = np.matmul(np.asarray(a), np.asarray(b)).shape
    gate, row, one = drawn(*shape), drawn(shape[-2], 1), drawn(1)
    given = {"gate": gate, "row": row, "one": one, "rate": 0.5}
    expected = joined(*(np.asarray(x, np.float64) for x in (np.asarray(a, np.float64) @ b, gate, row, one)), 0.5)
    for _ in range(2):  # the second call is known
        found = matmul(a, b, epilogue=joined, operands=given)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3, atol=1e-3)


def test_an_operand_is_read_before_it_is_written() -> None:
    a, b, gate = drawn(6, 8), drawn(8, 10), drawn(6, 10)
    expected = np.asarray(a) @ np.asarray(b) * np.asarray(gate)[::-1]
    matmul(a, b, out=gate, epilogue=lambda acc, gate: acc * gate, operands={"gate": gate[::-1]})
    np.testing.assert_allclose(np.asarray(gate), expected, rtol=1e-4, atol=1e-5)


def test_operands_that_no_kernel_reads_as_they_lie() -> None:
    a, b = drawn(6, 8), drawn(8, 10)
    gate, scale = drawn(10, 6).T, drawn(20)[::2]
    found = matmul(a, b, epilogue=lambda acc, gate, scale: acc * gate + scale, operands={"gate": gate, "scale": scale})
    expected = np.asarray(a) @ np.asarray(b) * np.asarray(gate) + np.asarray(scale)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_a_known_call_with_another_number_is_another_result() -> None:
    a, b = drawn(4, 4), drawn(4, 4)

    def times(acc: Any, rate: Any) -> Any:
        return acc * rate

    one, two = (np.asarray(matmul(a, b, epilogue=times, operands={"rate": rate})) for rate in (1.0, 2.0))
    np.testing.assert_array_equal(2 * one, two)


@pytest.mark.parametrize("shape", [(5, 7, 9), (1, 300, 90), (40, 64, 72)])
def test_gated_layers(shape: tuple[int, int, int], gpu: State) -> None:
    m, k, n = shape
    x, gate, up = drawn(m, k), drawn(n, k), drawn(n + 1, k)[1:]
    before = np.asarray(x, np.float64) @ np.asarray(gate).T
    expected = before / (1 + np.exp(-before)) * (np.asarray(x, np.float64) @ np.asarray(up).T)
    found = linear_gated(x, gate, up)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3, atol=1e-3)
    into = on_gpu(np.empty((n, m), np.float32)).T
    np.testing.assert_allclose(np.asarray(linear_gated(x, gate, up, out=into)), expected, rtol=1e-3, atol=1e-3)
