"""Functions of the epilogue: traced, bound to operands, and run by plans on the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.planning.simulated import computed, simulated_dispatcher
from tilewright.dtypes import BF16, F16, F32, DType
from tilewright.errors import ProblemError
from tilewright.frontend import ops
from tilewright.frontend.libraries import View
from tilewright.frontend.options import options_asked
from tilewright.frontend.requests import Piece, Views, checked, requests_of
from tilewright.frontend.tracing import ask
from tilewright.problem import check, make_operands


def gated(acc: Any, gate: Any, shift: Any, row: Any, rate: Any) -> Any:
    return ops.where(acc > shift, acc * ops.sigmoid(gate), -1.0) * rate + row


def pieces(shape: tuple[int, int, int], dtype: DType, function: Any, **given: Any) -> tuple[Piece, ...]:
    """The requests of a call. given: numbers, or the shape and the format of an array."""
    m, n, k = shape

    def view(*extents: int, of: DType = dtype) -> View:
        strides = tuple(math.prod(extents[axis + 1 :]) for axis in range(len(extents)))
        return View(1 << 20, extents, strides, of, 0)

    traced, numbers, arrays = ask(function, given)
    options = options_asked(1.0, None, None, "default", None, False, None, False, traced, numbers)
    views = Views(view(m, k), view(k, n), operands=tuple(view(*one[0], of=one[1]) for one in arrays))
    return requests_of(views, *checked(views, options), options)


@pytest.mark.cross_section("shape", "device", every=2)
@pytest.mark.parametrize("device", ["H200", "A100"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((67, 72, 40), BF16), ((65, 33, 17), F32), ((1, 96, 64), BF16), ((3, 2048, 40), F32), ((48, 40, 4096), F16)],
)
def test_plans_of_every_kind(shape: tuple[int, int, int], dtype: DType, device: str) -> None:
    m, n, _ = shape
    given = {"gate": ((m, n), dtype), "shift": ((n,), F32), "row": ((m, 1), BF16), "rate": 0.5}
    (piece,) = pieces(shape, dtype, gated, **given)
    operands = make_operands(piece.request.gemm)
    dispatcher = simulated_dispatcher(device)
    gemm = piece.request.gemm
    assert gemm.numbers == (0.5,) and len(gemm.added) == 3
    result = gemm.out.decode(computed(dispatcher, piece.request, operands)).reshape(m, gemm.ldc)[:, :n]
    verdict = check(operands, result)
    assert verdict.ok, verdict.message


def test_split_k_ends_with_the_function() -> None:
    (piece,) = pieces((64, 64, 8192), BF16, gated, gate=((64, 64), BF16), shift=((1,), F32), row=((64, 1), F32), rate=2)
    dispatcher = simulated_dispatcher("A100")
    assert len(dispatcher.plan(piece.request).steps) == 2


def test_a_function_is_traced_once_and_equal_ones_are_one() -> None:
    calls = []

    def function(acc: Any, gate: Any) -> Any:
        calls.append(acc)
        return acc * gate

    first, second = (ask(function, {"gate": np.ones(3)})[0] for _ in range(2))
    assert first is second and len(calls) == 1
    assert ask(lambda acc, gate: acc * gate, {"gate": np.ones(3)})[0] is first
    assert ask(lambda acc, gate: gate * acc, {"gate": np.ones(3)})[0] is not first


def test_a_function_that_closes_over_another_number_is_another_function() -> None:
    rate = 2.0

    def function(acc: Any) -> Any:
        return acc * rate

    first = ask(function, None)[0]
    rate = 3.0
    second = ask(function, None)[0]
    rate = 2.0
    assert first is ask(function, None)[0] and first is not second


def test_a_zero_is_not_a_negative_zero() -> None:
    one, other = (ask(lambda acc, z=z: acc + z, None)[0] for z in (0.0, -0.0))
    assert one is not other


def test_operands_that_are_not_read_are_left_out() -> None:
    traced, numbers, arrays = ask(lambda acc, x, y, s: acc + y, {"x": np.ones(2), "y": np.zeros(2), "s": 1.0})
    assert traced.names == ("y",) and numbers == () and arrays[0].sum() == 0


def branches(acc: Any) -> Any:
    return acc if acc > 0 else 0.0


def calls_numpy(acc: Any) -> Any:
    return np.exp(acc)


def calls_math(acc: Any) -> Any:
    return math.exp(acc)


def sums(acc: Any) -> Any:
    return acc.sum()


def closes_over(acc: Any) -> Any:
    return acc * np.ones(3)


def adds_a_truth(acc: Any) -> Any:
    return acc + (acc > 0)


def large_power(acc: Any) -> Any:
    return acc**20


def without_end(acc: Any) -> Any:
    for _ in range(12):
        acc = acc * acc + 1
    return acc


def computes_with_a_fold(acc: Any) -> Any:
    return acc * ops.row_sum(acc)


def folds_a_fold(acc: Any) -> Any:
    return acc, abs(ops.row_max(acc))


def chooses_by_a_number(acc: Any) -> Any:
    return ops.where(acc, 1, 0)


@pytest.mark.parametrize(
    ("function", "words", "line"),
    [
        (branches, "branches", "return acc if acc > 0 else 0.0"),
        (calls_numpy, "ufunc", "return np.exp(acc)"),
        (calls_math, "takes a number", "return math.exp(acc)"),
        (sums, "no attribute 'sum'", "return acc.sum()"),
        (closes_over, "computes with an ndarray", "return acc * np.ones(3)"),
        (adds_a_truth, "with a truth", "return acc + (acc > 0)"),
        (large_power, "power of 20", "return acc**20"),
        (without_end, "more than 400 operations", "acc = acc * acc + 1"),
        (chooses_by_a_number, "not a comparison", "return ops.where(acc, 1, 0)"),
        (lambda acc: (), "no result", "(lambda acc: ()"),
        (lambda acc: (acc, None), "no result", "(lambda acc: (acc, None)"),
        (lambda acc: ops.row_sum(acc), "a fold first", "(lambda acc: ops.row_sum(acc)"),
        (computes_with_a_fold, "computes with a fold", "return acc * ops.row_sum(acc)"),
        (folds_a_fold, "computes with a fold", "return acc, abs(ops.row_max(acc))"),
        (lambda acc: None, "no result", "(lambda acc: None"),
        (lambda acc: acc > 0, "a truth", "(lambda acc: acc > 0"),
        (lambda acc, other: acc, "cannot be called with the sum: missing", "(lambda acc, other: acc"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_line(function: Callable[..., Any], words: str, line: str) -> None:
    with pytest.raises(ProblemError) as caught:
        ask(function, None)
    assert words in caught.value.headline
    assert line in caught.value.place and "test_functions.py:" in caught.value.place


@pytest.mark.parametrize(
    ("operands", "words"),
    [
        ({"gate": np.ones((3, 3), np.float32)}, "does not broadcast"),
        ({"gate": np.ones((4, 1), np.float32)}, "does not broadcast"),
        ({"gate": 1e39}, "does not fit in an f32"),
        ({"a b": 1.0}, "not a name"),
        (7, "not a dictionary"),
    ],
)
def test_operands_that_do_not_fit(operands: Any, words: str) -> None:
    a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    with pytest.raises(ProblemError, match=words):
        tw.matmul(a, b, epilogue=lambda acc, **given: acc + sum(given.values()), operands=operands)


def test_calls_that_ask_two_things() -> None:
    a = np.ones((2, 2), np.float32)
    with pytest.raises(ProblemError, match="no epilogue that reads them"):
        tw.matmul(a, a, operands={"x": 1.0})
    with pytest.raises(ProblemError, match="an epilogue and activation"):
        tw.matmul(a, a, epilogue=lambda acc: acc, activation="relu")


@pytest.mark.filterwarnings("ignore:.*computes with NumPy")
def test_numpy_on_the_host() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 7), (7, 3), (5, 3)))
    gate, row = rng.standard_normal((2, 5, 3)).astype(np.float16), rng.standard_normal((5, 1)).astype(np.float32)
    found = tw.matmul(
        a, b, c=c, epilogue=gated, operands={"gate": gate, "row": row, "shift": np.float32(0.1), "rate": 2}
    )
    np.testing.assert_allclose(found, gated(a.astype(float) @ b + c, gate, 0.1, row, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*computes with NumPy")
def test_vectors_on_the_host() -> None:
    a, x, scale = np.ones((4, 3), np.float32), np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)
    found = tw.matmul(a, x, epilogue=lambda acc, scale: acc * scale, operands={"scale": scale})
    np.testing.assert_array_equal(found, 3 * scale)


def test_functions_of_numbers_are_those_of_numpy() -> None:
    x = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(ops.gelu(x), 0.5 * x * (1 + ops.erf(x / math.sqrt(2))))
    np.testing.assert_allclose(ops.silu(x), x * ops.sigmoid(x))
    assert float(ops.cast(1 + 2.0**-9, "bf16")) == 1.0
    assert ops.maximum(1, 2) == 2 and ops.where(True, 1, 2) == 1
    with pytest.raises(TypeError):
        ops.cast(1.0, "int8")
