"""Whole calls of `combine_rows` whose text runs on the CPU, and those of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu, on_gpu

from tilewright.dtypes import BF16, F32, DType
from tilewright.errors import LaunchError, ProblemError
from tilewright.frontend import combine_rows
from tilewright.frontend.libraries import DTypeError
from tilewright.frontend.shapes import ShapeError

RNG = np.random.default_rng(3)
ROWS = np.array([[3, 7], [0, -1], [9, 2], [5, 5], [4, 20]], np.int32)
WEIGHTS = RNG.standard_normal(ROWS.shape).astype(np.float32)


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def drawn(dtype: DType = F32, n: int = 40) -> Any:
    return dtype.encode(RNG.standard_normal((10, n)).astype(np.float32))


def expected(x: Any, rows: Any, weights: Any, dtype: DType) -> Any:
    source, found = dtype.decode(np.asarray(x)).astype(np.float64), np.zeros((len(rows), x.shape[1]))
    named = rows.reshape(len(rows), -1)
    for i, one in enumerate(named):
        for j, row in enumerate(one):
            if 0 <= row < len(x):
                found[i] += source[row] * (1 if weights is None else weights.reshape(named.shape)[i, j])
    return found


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_weighted_sums_and_gathered_rows(gpu: State, dtype: DType) -> None:
    x = drawn(dtype)
    for rows, weights in ((ROWS, WEIGHTS), (ROWS, None), (ROWS[:, 0], None), (ROWS[:, 1].copy(), WEIGHTS[:, 1].copy())):
        given = [on_gpu(x), on_gpu(rows), None if weights is None else on_gpu(weights)]
        gpu.launches.clear()
        found = combine_rows(*given)
        assert found.shape == (5, 40) and found.dtype == x.dtype and len(gpu.launches) == 1
        exact, apart = expected(x, rows, weights, dtype), 2e-2 if dtype is BF16 else 1e-5
        np.testing.assert_allclose(dtype.decode(np.asarray(found)), exact, rtol=apart, atol=1e-2)
        known = combine_rows(*given)
        np.testing.assert_array_equal(known, found)


def test_arrays_of_any_strides(gpu: State) -> None:
    x = drawn()
    exact = expected(x, ROWS, WEIGHTS, F32)
    apart = on_gpu(np.repeat(x, 2, 1))[:, ::2]
    below = on_gpu(np.concatenate([x, x], 1))[:, :40]
    columns, wide = on_gpu(np.asfortranarray(ROWS)), on_gpu(np.repeat(WEIGHTS, 2, 1))[:, ::2]
    for one in (apart, below, on_gpu(np.asfortranarray(x))):
        np.testing.assert_allclose(combine_rows(one, columns, wide), exact, rtol=1e-5, atol=1e-5)


def test_nothing_to_combine(gpu: State) -> None:
    x = on_gpu(drawn())
    assert combine_rows(x, on_gpu(ROWS[:0]), on_gpu(WEIGHTS[:0])).shape == (0, 40)
    assert not combine_rows(x[:0], on_gpu(ROWS)).any()
    assert combine_rows(x[:, :0], on_gpu(ROWS)).shape == (5, 0)


def test_a_new_kind_of_call_in_a_capture_is_refused(gpu: State) -> None:
    gpu.capturing = True
    with pytest.raises(LaunchError, match="no kernel of these sums of rows is loaded yet"):
        combine_rows(on_gpu(drawn()), on_gpu(ROWS))


def test_numpys_arrays() -> None:
    x = drawn()
    np.testing.assert_allclose(combine_rows(x, ROWS, WEIGHTS), expected(x, ROWS, WEIGHTS, F32), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(combine_rows(x, ROWS[:, 0]), x[ROWS[:, 0]])


WRONG: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "three dimensions": ((drawn(), ROWS[None]), ShapeError, r"give \(count,\) or \(count, terms\)"),
    "a batch": ((drawn()[None], ROWS), ShapeError, "a matrix has two dimensions"),
    "int64": ((drawn(), ROWS.astype(np.int64)), DTypeError, "rows are int32"),
    "a list": ((drawn(), [1]), ProblemError, "rows is a list"),
    "weights": ((drawn(), ROWS, WEIGHTS[:2]), ShapeError, "beside rows of"),
    "a list of weights": ((drawn(), ROWS, [0.5]), ProblemError, "weights is a list"),
    "many terms": ((drawn(), np.zeros((1, 2000), np.int32)), ShapeError, "has 2000 terms, not 1 to 1024"),
    "no terms": ((drawn(), ROWS[:, :0]), ShapeError, "has 0 terms"),
    "codes": ((drawn().astype(np.uint8), ROWS), DTypeError, "codes are gathered, not added"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked(gpu: State, name: str) -> None:
    given, error, said = WRONG[name]
    with pytest.raises(error, match=said):
        combine_rows(*(one if isinstance(one, list) else on_gpu(one) for one in given))
