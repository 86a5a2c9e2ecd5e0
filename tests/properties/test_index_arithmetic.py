"""Index arithmetic: `simplify` never changes a value, `interval` always contains it, on every point of small ranges.

Division and remainder are only defined for values of at least 0, where C and Python agree, so a rewrite must not bring
a negative one before them either: the simulator would floor what the GPU truncates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.strategies import budget
from tilewright.dtypes import I64
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Op, Select, Var, binary
from tilewright.ir.ranges import Interval, interval
from tilewright.ir.text import ExprText
from tilewright.ir.visit import simplify, substitute

RANGES = {"x": 7, "y": 5, "z": 4, "w": 3}
BOUNDS = {name: Interval(0, count - 1) for name, count in RANGES.items()}
HALF_KNOWN = {"x": Interval(0, None), "y": Interval(0, 4), "z": Interval(), "w": Interval(None, 2)}
POINTS: dict[str, Any] = dict(zip(RANGES, np.indices(tuple(RANGES.values())).reshape(len(RANGES), -1), strict=True))

EVALUATE: dict[Op, Any] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.SHL: np.left_shift,
    Op.SHR: np.right_shift,
    Op.AND: np.bitwise_and,
    Op.XOR: np.bitwise_xor,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.GE: np.greater_equal,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.LAND: np.logical_and,
    Op.LOR: np.logical_or,
}


SHIFTS = (Op.SHL, Op.SHR)


class Undefined(Exception):
    """A negative value, a divisor below 1, or a number too large, where C and Python part."""


def value_of(expr: Expr) -> Any:
    """The expression at every point, int64; raises Undefined where it has no value."""
    match expr:
        case Const():
            return np.int64(expr.value)
        case Var():
            return POINTS[expr.name]
        case Cast():
            return value_of(expr.value)
        case Select():
            return np.where(value_of(expr.condition), value_of(expr.a), value_of(expr.b))
        case Binary():
            a, b = value_of(expr.a), value_of(expr.b)
            if expr.op in (Op.DIV, Op.MOD):
                if np.min(a) < 0 or np.min(b) < 1:
                    raise Undefined
                return a // b if expr.op is Op.DIV else a % b
            if expr.op in (Op.SHL, Op.SHR, Op.AND, Op.XOR) and (np.min(a) < 0 or np.min(b) < 0):
                raise Undefined
            if expr.op in SHIFTS and np.max(b) > 16:
                raise Undefined
            value = np.asarray(EVALUATE[expr.op](a, b)).astype(np.int64)
            if np.max(np.abs(value)) > 2**40:  # far from overflow, also after a multiplication by a small number
                raise Undefined
            return value
    raise AssertionError(expr)


Plan = str | int | tuple[str, "Plan", "Plan"]
"""A variable, a constant, or an operator and what it takes."""

OPERATORS = {op.text: op for op in (*EVALUATE, Op.DIV, Op.MOD) if not op.is_comparison}
COMPARISONS = {op.text: op for op in (Op.LT, Op.LE, Op.GE, Op.EQ, Op.NE)}


def expression(plan: Plan) -> Expr:
    """The expression of a plan: `+` as lowering writes it (folded), `raw +` as it stands, `? <` a choice."""
    if isinstance(plan, str):
        return Var(plan)
    if isinstance(plan, int):
        return Const(plan)
    kind, a, b = plan[0], expression(plan[1]), expression(plan[2])
    if kind == "i64":
        return Cast(I64, a)
    if kind.startswith("? "):
        return Select(binary(COMPARISONS[kind[2:]], a, b), a, b)
    op = OPERATORS[kind.removeprefix("raw ")]
    if isinstance(b, Const):
        b = Const(b.value % 4) if op in SHIFTS else Const(b.value % 12 + 1) if op in (Op.DIV, Op.MOD) else b
    return Binary(op, a, b) if kind.startswith("raw ") else binary(op, a, b)


KINDS = (*OPERATORS, *(f"raw {kind}" for kind in OPERATORS), *(f"? {kind}" for kind in COMPARISONS), "/", "%", "i64")
LEAVES = st.one_of(st.sampled_from(tuple(RANGES)), st.integers(0, 40))
EXPRESSIONS = st.recursive(LEAVES, lambda plans: st.tuples(st.sampled_from(KINDS), plans, plans), max_leaves=10).map(
    expression
)


def affine(draw: st.DrawFn) -> Expr:
    """A sum of products as tiles make them: coefficients that share factors, a quotient or a remainder around it."""
    total: Expr = Const(draw(st.integers(0, 40)))
    for name in RANGES:
        total = total + Var(name) * draw(st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12, 24)))
    return total


@st.composite
def digits(draw: st.DrawFn) -> Expr:
    """Digits of sums, and sums of such digits again."""
    inner = affine(draw)
    for _ in range(draw(st.integers(1, 3))):
        op, by = draw(st.sampled_from((Op.DIV, Op.MOD))), draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 24)))
        inner = binary(op, inner, by)
        if draw(st.booleans()):
            inner = inner * draw(st.sampled_from((1, 2, 4, 8))) + affine(draw)
    return inner


def defined(expr: Expr) -> Any:
    """The value at every point; the example is dropped where it has none."""
    try:
        return value_of(expr)
    except Undefined:
        assume(False)


@given(st.one_of(EXPRESSIONS, digits()), st.sampled_from((BOUNDS, HALF_KNOWN, {})))
@settings(max_examples=budget(400))
@example(Binary(Op.DIV, Var("x") * 8 - Var("y") + 8, Const(8)), BOUNDS)
@example(Binary(Op.MOD, Var("x") * 8 - Var("y") + 8, Const(8)), BOUNDS)
@example(Binary(Op.DIV, Var("x") - 6 + 12, Const(4)), {})
def test_simplify_is_an_identity(expr: Expr, bounds: dict[str, Interval]) -> None:
    before = defined(expr)
    simple = simplify(expr, bounds)
    try:
        after = value_of(simple)
    except Undefined:
        pytest.fail(f"{ExprText()(expr)}  ->  {ExprText()(simple)} divides a negative value")
    np.testing.assert_array_equal(
        np.broadcast_to(after, POINTS["x"].shape), np.broadcast_to(before, POINTS["x"].shape), ExprText()(simple)
    )


@given(st.one_of(EXPRESSIONS, digits()), st.sampled_from((BOUNDS, HALF_KNOWN)))
@settings(max_examples=budget(200))
def test_simplify_comes_to_rest(expr: Expr, bounds: dict[str, Interval]) -> None:
    """Simple stays simple: the value of a second simplification is that of the first, and it grows no longer."""
    defined(expr)
    once = simplify(expr, bounds)
    twice = simplify(once, bounds)
    assert len(ExprText()(twice)) <= len(ExprText()(once))


@given(st.one_of(EXPRESSIONS, digits()), st.sampled_from((BOUNDS, HALF_KNOWN)))
@settings(max_examples=budget(400))
def test_an_interval_contains_every_value(expr: Expr, bounds: dict[str, Interval]) -> None:
    values = defined(expr)
    found = interval(expr, bounds)
    assert found.low is None or found.low <= np.min(values)
    assert found.high is None or np.max(values) <= found.high


@given(EXPRESSIONS, EXPRESSIONS)
@settings(max_examples=budget(100))
def test_substitution_is_evaluation(expr: Expr, value: Expr) -> None:
    defined(expr)
    inside = defined(value)
    assume(np.min(inside) >= 0)
    replaced = substitute(expr, {"x": value})
    before = dict(POINTS)
    try:
        expected_of_value = defined(replaced)
        POINTS["x"] = np.broadcast_to(inside, before["x"].shape)
        expected = defined(expr)
    finally:
        POINTS.update(before)
    np.testing.assert_array_equal(
        np.broadcast_to(expected_of_value, before["x"].shape), np.broadcast_to(expected, before["x"].shape)
    )


@given(EXPRESSIONS)
@settings(max_examples=budget(100))
def test_the_text_of_an_expression_means_the_expression(expr: Expr) -> None:
    """Brackets stand where they must: the text, read as Python, has the same value."""
    values = defined(expr)
    text = ExprText()(expr).replace("/", "//").replace("&&", "and").replace("||", "or")
    if "?" in text or "i64" in text:  # no Python
        return
    for point in range(0, len(POINTS["x"]), 17):
        names = {name: int(column[point]) for name, column in POINTS.items()}
        expected = int(np.broadcast_to(values, POINTS["x"].shape)[point])
        assert int(eval(text, {"min": min, "max": max}, names)) == expected, text


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        ((Var("x") * 8 + Var("w")) // 8, "x"),
        ((Var("x") * 8 + Var("w")) % 8, "w"),
        ((Var("x") * 8 + Var("t")) // 8, "x + t / 8"),
        (Var("t") // 4 // 2, "t / 8"),
        (Var("t") * 4 % 12, "t % 3 * 4"),
        (Var("t") // 8 * 8 + Var("t") % 8, "t"),
        ((Var("t") // 8 * 8 + Var("t") % 8) * 4, "t * 4"),
        (Var("x") - Var("x"), "0"),
        (binary(Op.LT, Var("w"), 3), "1"),
        (binary(Op.GE, Var("w"), 3), "0"),
        (Var("t") * 0 + ZERO, "0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_simplify_finds(expr: Expr, simple: str) -> None:
    assert ExprText()(simplify(expr, BOUNDS | {"t": Interval(0, 255)})) == simple
