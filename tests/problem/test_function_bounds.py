"""Error bounds of functions of the epilogue: they hold for f32 arithmetic, and are not much larger than its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import BF16, F16, F32
from tilewright.frontend import ops
from tilewright.frontend.symbols import Symbol, applied
from tilewright.problem import Epilogue, Gemm, check, make_operands, reference
from tilewright.problem.derivative import derivative
from tilewright.problem.functions import Activation, Elementary
from tilewright.problem.tolerance import error_bound
from tilewright.problem.values import Accumulated, Added, Element, Exact, evaluate

ACC, GATE = Symbol(Accumulated()), Symbol(Element(Added("gate", None, F32)))
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda acc, gate: ops.exp(acc * 0.1),
    "quotient": lambda acc, gate: acc / (1.5 + gate * gate),
    "tanh": lambda acc, gate: ops.tanh(acc) * gate,
    "erf": lambda acc, gate: ops.erf(acc) - gate,
    "sigmoid": lambda acc, gate: ops.sigmoid(acc + gate),
    "root": lambda acc, gate: ops.sqrt(abs(acc) + 1.0),
    "log": lambda acc, gate: ops.log(acc * acc + 1.0),
    "power": lambda acc, gate: acc**3 + gate**-2 * 1e-6,
    "choice": lambda acc, gate: ops.where((acc > gate) | (acc < -1.0), acc, ops.minimum(gate, 0.5)),
    "rounded": lambda acc, gate: ops.cast(acc, "bf16") + ops.cast(gate, "f16"),
    "gelu": lambda acc, gate: ops.gelu(acc) + ops.gelu_tanh(gate) + ops.silu(acc) + ops.relu(gate),
}


def gemm_of(function: Callable[[Any, Any], Any]) -> Gemm:
    return Gemm(24, 40, 48, epilogue=Epilogue(function=function(ACC, GATE).value))


def in_f32(gemm: Gemm, operands: Any, function: Callable[[Any, Any], Any]) -> Any:
    """The function in NumPy's f32, or nearly so: functions of `ops` are rounded from float64."""
    total = np.zeros((gemm.m, gemm.n), np.float32)
    a, b = operands.matrix("A"), operands.matrix("B")
    for k in range(gemm.k):
        total += a[:, k : k + 1] * b[k]
    gate = operands.matrix("gate") if gemm.added else np.zeros_like(total)
    return np.asarray(function(total, gate), np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32_arithmetic_is_within_the_bound_and_a_hundredth_is_not(name: str) -> None:
    gemm = gemm_of(FUNCTIONS[name])
    operands = make_operands(gemm)
    computed, bound = in_f32(gemm, operands, FUNCTIONS[name]), error_bound(operands)
    assert check(operands, computed).ok and np.isfinite(bound).mean() > 0.9
    if name not in ("rounded", "choice"):  # whose results may be exact
        wrong = computed + np.float32(1e-2) * (1 + np.abs(computed))
        assert not check(operands, wrong).ok


def test_there_is_no_bound_where_f32_overflows_or_a_divisor_may_be_zero() -> None:
    for function in (lambda acc, gate: ops.exp(acc * 100.0), lambda acc, gate: 1.0 / (acc * 1e-7 - acc * 1e-7)):
        operands = make_operands(gemm_of(function))
        assert np.isinf(error_bound(operands)).any()


def test_infinities_and_nan_stand_where_they_are() -> None:
    gemm = gemm_of(lambda acc, gate: ops.exp(gate) + acc)
    operands = make_operands(gemm)
    operands.matrix("gate")[0, :3] = [-np.inf, np.inf, np.nan]
    expected = reference(operands)
    assert np.isfinite(expected[0, 0]) and expected[0, 1] == np.inf and np.isnan(expected[0, 2])
    computed = expected.astype(np.float32)
    assert check(operands, computed).ok
    computed[0, 1] = 7.0
    assert not check(operands, computed).ok


def test_a_branch_that_errors_may_decide_allows_both_ways() -> None:
    gemm = Gemm(1, 1, 64, BF16, out=F16, epilogue=Epilogue(function=ops.where(ACC > ACC * 1.0, 1.0, 0.0).value))
    assert error_bound(make_operands(gemm))[0, 0] >= 1.0


@pytest.mark.parametrize("function", [*Activation, *Elementary], ids=str)
def test_derivatives_are_those_of_differences(function: Any) -> None:
    value = applied(function, ACC).value
    x = np.array([0.3, 0.7, 1.9]) if function in (Elementary.LOG, Elementary.SQRT) else np.array([-1.7, -0.4, 0.3, 2.1])
    step = 1e-5
    expected = (function.of(x + step) - function.of(x - step)) / (2 * step)
    found = evaluate(derivative(value, Accumulated()), Exact((x,), 1.0, 0.0, lambda name: x))
    np.testing.assert_allclose(np.broadcast_to(found, x.shape), expected, rtol=1e-6, atol=1e-7)
