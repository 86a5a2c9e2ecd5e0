"""Functions of the epilogue with several results: matrices, and folds of rows and columns, in whole calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu, on_gpu

from tests.planning.simulated import run_plan, simulated_dispatcher
from tilewright.dtypes import BF16, E4M3, F16, F32, Array, DType
from tilewright.errors import ProblemError
from tilewright.frontend import matmul, ops
from tilewright.frontend.libraries import View
from tilewright.frontend.options import options_asked
from tilewright.frontend.requests import Views, checked, requests_of
from tilewright.frontend.shapes import ShapeError
from tilewright.frontend.tracing import ask
from tilewright.planning.folding import in_groups
from tilewright.planning.plan import Place
from tilewright.problem import check, make_operands
from tilewright.problem.gemm import Gemm
from tilewright.problem.philox import uniform


def normed(acc: Any, residual: Any) -> Any:
    total = acc + residual
    return {"sum": total, "squares": ops.row_sum_of_squares(total), "twice": 2.0 * acc}


def every_fold(acc: Any, residual: Any) -> Any:
    x = ops.silu(acc) + residual
    return x, ops.row_sum(x), ops.row_max(x), ops.column_sum_of_squares(x), ops.column_max(acc), ops.amax(x)


# -- plans, on the simulator -------------------------------------------------------------------------------------------


def request_of(shape: tuple[int, int, int], dtype: DType, function: Any, out_dtype: Any = None) -> Any:
    m, n, k = shape

    def view(*extents: int) -> View:
        strides = tuple(math.prod(extents[axis + 1 :]) for axis in range(len(extents)))
        return View(1 << 20, extents, strides, dtype, 0)

    traced, numbers, _ = ask(function, {"residual": np.empty(0)})
    options = options_asked(1.0, None, out_dtype, "default", None, False, None, False, traced, numbers)
    views = Views(view(m, k), view(k, n), operands=(view(m, n),))
    (piece,) = requests_of(views, *checked(views, options), options)
    return piece.request


def stored_result(gemm: Gemm, name: str, flat: Array) -> Array:
    operand = gemm.operand(name)
    if operand.fold is None:
        return operand.dtype.decode(flat).reshape(gemm.m, gemm.n)
    shape = (1, 1) if operand.fold.whole else (gemm.m, 1) if operand.contiguous == "m" else (1, gemm.n)
    return flat.reshape(shape)


@pytest.mark.cross_section("shape", "device", every=3)
@pytest.mark.parametrize("device", ["H200", "A100"])
@pytest.mark.parametrize("function", [normed, every_fold])
@pytest.mark.parametrize(("shape", "dtype"), [((70, 88, 24), BF16), ((65, 33, 17), F32), ((3, 700, 40), F16)])
def test_plans_of_every_kind(shape: tuple[int, int, int], dtype: DType, function: Any, device: str) -> None:
    dispatcher = simulated_dispatcher(device)
    request = request_of(shape, dtype, function, (None, None, "f32") if function is normed else None)
    gemm = request.gemm
    operands = make_operands(gemm)
    names = [one.name for one in (*gemm.epilogue.named, *gemm.epilogue.written)]
    arrays = {Place.A: operands.a.copy(), Place.B: operands.b.copy(), Place.OUT: operands.c.copy()}
    for number, name in enumerate(names):
        operand, length = gemm.operand(name), gemm.storage_elements(name)
        if operand.fold is not None:
            length = 1 if operand.fold.whole else gemm.size(operand.contiguous)
        given = operands.storage(name).copy() if name == "residual_operand" else np.zeros(length, operand.dtype.numpy)
        arrays[Place.OPERAND + number] = given
    run_plan(dispatcher.plan(request), arrays)
    places = {"C": int(Place.OUT)} | {name: Place.OPERAND + number for number, name in enumerate(names)}
    for name in gemm.results:
        verdict = check(operands, stored_result(gemm, name, arrays[places[name]]), result=name)
        assert verdict.ok, (name, verdict.message)


def test_the_folds_of_a_plan_are_in_the_groups_of_its_kernel() -> None:
    dispatcher = simulated_dispatcher("H200")
    request = request_of((256, 4096, 64), BF16, every_fold)
    config = next(one for one in dispatcher._ranked(request) if not getattr(one.kernel, "swap_ab", False))
    folds = [one.fold for one in in_groups(request.gemm, config).epilogue.written if one.fold is not None]
    m, n, _ = config.kernel.tile
    assert {one.group for one in folds if not one.whole} == ({8, 64} if n % 64 == 0 else {8}) and config.split_k == 1
    assert [(one.group, one.of_tiles[0]) for one in folds if one.whole] == [(n, m)]


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


def drawn(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def expected_of(function: Any, a: Any, b: Any, residual: Any) -> Any:
    return function(np.asarray(a, np.float64) @ np.asarray(b, np.float64), np.asarray(residual, np.float64))


def assert_close(found: Any, expected: Any, shape: tuple[int, ...] | None = None) -> None:
    assert shape is None or found.shape == shape
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.cross_section("lead", every=2)
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("lead", [(5,), (2, 3), (1,)])
def test_calls_on_a_gpu(lead: tuple[int, ...]) -> None:
    a, b, residual = drawn(*lead, 7), drawn(7, 9), drawn(*lead, 9)
    given = {"residual": on_gpu(residual)}
    for _ in range(2):  # the second call is known
        found = matmul(on_gpu(a), on_gpu(b), epilogue=normed, operands=given)
        expected = expected_of(normed, a, b, residual)
        assert list(found) == ["sum", "squares", "twice"]
        assert_close(found["sum"], expected["sum"], (*lead, 9))
        assert_close(found["squares"], expected["squares"], (*lead, 1))
        assert_close(found["twice"], expected["twice"], (*lead, 9))
        folds = matmul(on_gpu(a), on_gpu(b), epilogue=every_fold, operands=given)
        for one, other in zip(folds, expected_of(every_fold, a, b, residual), strict=True):
            assert_close(one, other, other.shape)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("lead", [(5,), (2, 3), (1,)])
def test_rotary_embedding(lead: tuple[int, ...]) -> None:
    a, b, cos, sin = drawn(*lead, 300), drawn(300, 10), drawn(*lead, 10), drawn(*lead, 10)
    given = {"cos": on_gpu(cos), "sin": on_gpu(sin)}
    found = matmul(on_gpu(a), on_gpu(b), epilogue=ops.rotary, operands=given)
    assert_close(found, ops.rotary(np.matmul(a.astype(float), b), cos, sin), (*lead, 10))
    into = on_gpu(np.empty((10, *lead[::-1]), np.float32)).T
    if len(lead) == 1:  # columns that are contiguous, of which the kernel has rows
        matmul(on_gpu(a), on_gpu(b), epilogue=ops.rotary, operands=given, out=into)
        assert_close(into, np.asarray(found))
    with pytest.raises(ShapeError, match="odd number of columns"):
        matmul(on_gpu(a), on_gpu(b[:, :9].copy()), epilogue=ops.rotated_pair)


def dropped(acc: Any, seed: Any) -> Any:
    return ops.dropout(acc, 0.25, seed, 3)


@pytest.mark.usefixtures("gpu")
def test_dropout_by_place_and_seed() -> None:
    a, b = drawn(2, 3, 300), drawn(300, 10)
    plain = np.matmul(a.astype(float), b) / 0.75
    calls = [matmul(on_gpu(a), on_gpu(b), epilogue=dropped, operands={"seed": seed}) for seed in (5, 5, 6)]
    for seed, found in zip((5, 5, 6), calls, strict=True):
        kept = uniform(seed, 3, np.arange(6)[:, None], np.arange(10)).reshape(2, 3, 10) >= 0.25
        assert_close(found, np.where(kept, plain, 0.0))
        assert_close(ops.dropout(plain * 0.75, 0.25, seed, 3), np.where(kept, plain, 0.0))
    into = on_gpu(np.empty((10, 6), np.float32)).T
    matmul(on_gpu(a.reshape(6, 300)), on_gpu(b), epilogue=dropped, operands={"seed": 5}, out=into)
    assert_close(into, np.asarray(calls[0]).reshape(6, 10))
    with pytest.raises(ShapeError, match="not counted"):
        matmul(on_gpu(a), on_gpu(drawn(2, 300, 10)), epilogue=dropped, operands={"seed": 5})
    for seed in (-1, 0.5, 2**24):
        with pytest.raises(ProblemError, match="is a seed or an offset"):
            matmul(on_gpu(a), on_gpu(b), epilogue=dropped, operands={"seed": seed})
    with pytest.raises(ProblemError, match="not a whole number"):
        matmul(on_gpu(a), on_gpu(b), epilogue=lambda acc: ops.dropout(acc, 0.5, 2**24))
    with pytest.raises(ProblemError, match="not a probability"):
        matmul(on_gpu(a), on_gpu(b), epilogue=lambda acc: ops.dropout(acc, 1.0, 1))


@pytest.mark.usefixtures("gpu")
def test_results_of_batches() -> None:
    a, b, residual = drawn(3, 4, 7), drawn(3, 7, 5), drawn(3, 4, 5)

    def two(acc: Any, residual: Any) -> Any:
        return acc - residual, acc * residual

    found = matmul(on_gpu(a), on_gpu(b), epilogue=two, operands={"residual": on_gpu(residual)})
    for one, other in zip(found, expected_of(two, a, b, residual), strict=True):
        assert_close(one, other, (3, 4, 5))
    with pytest.raises(ShapeError, match="not one matrix"):
        matmul(on_gpu(a), on_gpu(b), epilogue=every_fold, operands={"residual": on_gpu(residual)})


@pytest.mark.filterwarnings("ignore:.*computes with NumPy")
def test_numpy_on_the_host() -> None:
    a, b, residual = drawn(2, 5, 7), drawn(7, 3), drawn(2, 5, 3)
    found = matmul(a, b, epilogue=every_fold, operands={"residual": residual}, out_dtype="f32")
    for one, other in zip(found, expected_of(every_fold, a, b, residual), strict=True):
        assert_close(one, other, other.shape)
    half = matmul(a, b, epilogue=normed, operands={"residual": residual}, out_dtype={"twice": "f16"})
    assert half["twice"].dtype == np.float16 and half["sum"].dtype == np.float32
    (alone,) = matmul(a, b, epilogue=lambda acc: (acc + 1.0,))
    assert_close(alone, a @ b + 1.0)
    named = matmul(a, b, epilogue=lambda acc: {"it": acc + 1.0})
    assert_close(named["it"], a @ b + 1.0)


@pytest.mark.filterwarnings("ignore:.*computes with NumPy")
def test_codes_with_scales_of_blocks_on_the_host() -> None:
    a, b = drawn(6, 7), drawn(7, 300)

    def both(acc: Any) -> Any:
        return ops.quantized(acc), acc, ops.row_max(acc)

    (codes, scales), plain, largest = matmul(a, b, epilogue=both)
    assert codes.dtype == np.uint8 and scales.shape == (6, 3) and largest.shape == (6, 1)
    numbers, known = ops.quantized(plain)
    np.testing.assert_allclose(scales, known, rtol=1e-6)
    np.testing.assert_allclose(E4M3.decode(codes), numbers, rtol=0.13)
    with pytest.raises(ProblemError, match="not the first result"):
        matmul(a, b, epilogue=lambda acc: (acc, ops.quantized(acc)))
    with pytest.raises(ProblemError, match="computes with codes"):
        matmul(a, b, epilogue=lambda acc: ops.exp(ops.quantized(acc)))


@pytest.mark.filterwarnings("ignore:.*computes with NumPy")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": np.empty((4, 4), np.float32)}, "2 results, and `out` is one array"),
        ({"out_dtype": ("f32", "f32", "f32")}, "3 formats, and the call 2 results"),
        ({"out_dtype": {"x": "f32"}}, "a format of 'x'"),
        ({"precision": "bf16x9"}, "multiplies pieces of operands, and the epilogue has 2 results"),
    ],
)
def test_what_cannot_be_asked(options: Any, words: str) -> None:
    a = np.ones((4, 4), np.float32)
    with pytest.raises(ProblemError, match=words):
        matmul(a, a, epilogue=lambda acc: (acc, 2.0 * acc), **options)


def test_vectors_have_no_rows_to_fold() -> None:
    with pytest.raises(ShapeError, match="no rows and columns to fold"):
        matmul(np.ones(4, np.float32), np.ones((4, 4), np.float32), epilogue=lambda acc: (acc, ops.row_sum(acc)))
