"""Which elements of a result a candidate's are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16
from tilewright.problem.gemm import Gemm, Order
from tilewright.problem.reference import Operands, reference, view
from tilewright.tuner.sample import RepeatedOperands, sample_of


def test_a_small_result_is_compared_whole() -> None:
    sample = sample_of(RepeatedOperands(Gemm(300, 200, 16)))
    np.testing.assert_array_equal(sample.rows, np.arange(300))
    np.testing.assert_array_equal(sample.columns, np.arange(200))


@pytest.mark.parametrize("shape", [(8192, 4096, 4), (4096, 8192, 200)])
def test_of_a_large_one_few_rows_and_columns_are_compared_and_each_tile_is_met(shape: tuple[int, int, int]) -> None:
    sample = sample_of(RepeatedOperands(Gemm(*shape)))
    assert sample.expected.shape == sample.bound.shape == (len(sample.rows), len(sample.columns))
    assert sample.expected.size <= 100_000
    for size, places in zip(shape, (sample.rows, sample.columns), strict=False):
        assert (places[0], places[-1]) == (0, size - 1)
        assert set(places // 64) == set(range(size // 64))


@pytest.mark.parametrize("shape", [(100, 8192, 28672), (1, 5120, 27648), (1, 1, 1_000_003), (4096, 4096, 4096)])
def test_the_reference_reads_little_of_any_problem(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the sum is: the first time of a search waits for it."""
    read: list[int] = []

    def lines(operands: RepeatedOperands, name: Any, places: Any) -> Any:
        read.append(len(places) * operands.gemm.k)
        return lines_of(operands, name, places)

    lines_of = RepeatedOperands.lines
    monkeypatch.setattr(RepeatedOperands, "lines", lines)
    sample_of(RepeatedOperands(Gemm(*shape, BF16, out=BF16)))
    assert len(read) == 2 and max(read) <= 16_100_000


def test_a_short_side_is_compared_whole() -> None:
    sample = sample_of(RepeatedOperands(Gemm(100, 8192, 4096)))
    assert len(sample.rows) == 100 and len(sample.columns) == 1000


@pytest.mark.parametrize("order", list(Order))
def test_lines_of_a_result_on_the_gpu_are_those_of_the_sample(order: Order) -> None:
    """The reference of each place is that of the whole product, and only lines of the sample are downloaded."""
    gemm = Gemm(1200, 1700, 40, BF16, a=Order.COL, b=Order.COL, c=order, out=BF16)
    made = RepeatedOperands(gemm)
    a, b, c = (np.resize(one.pattern, one.elements) for one in made.storages)
    sample, right = sample_of(made), reference(Operands(gemm, a, b, c))
    np.testing.assert_allclose(sample.expected, right[np.ix_(sample.rows, sample.columns)], rtol=1e-12, atol=1e-12)
    stored = c.copy()
    view(gemm, "C", stored)[...] = BF16.encode(right.astype(np.float32))
    asked: list[int] = []

    class Result:
        def download_parts(self, starts: list[int], length: int) -> Any:
            asked.extend(starts)
            return np.stack([stored[start : start + length] for start in starts])

    result: Any = Result()
    assert sample.verdict_of(result).ok and len(asked) in (len(sample.rows), len(sample.columns))
    view(gemm, "C", stored)[sample.rows[3], sample.columns[5]] = BF16.encode(np.full(1, 1000.0, np.float32))[0]
    assert sample.verdict_of(result).worst_at == (3, 5)
    asked.clear()
    assert sample.verdict_of(result, at_once=True).worst_at == (3, 5) and asked == [0]
