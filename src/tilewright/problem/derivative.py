"""Derivatives of the expressions that epilogues are made of, as expressions."""

from __future__ import annotations

import math
from typing import assert_never

from tilewright.problem.functions import Activation, Elementary, Function, Operation
from tilewright.problem.values import (
    Accumulated,
    Applied,
    Combined,
    Constant,
    Drawn,
    Element,
    Factor,
    PlusBetaTimes,
    Rotated,
    Rounded,
    TimesAlpha,
    Value,
    Where,
    rotations_of,
)

ZERO, ONE = Constant.of(0.0), Constant.of(1.0)


def gradient(value: Value, by: Accumulated | Element, seed: Value) -> Value:
    """The derivative by a leaf times `seed`, the gradient of the value. Rotations of pairs go back."""
    total = times(derivative(value, by), seed)
    for rotation in dict.fromkeys(rotations_of(value)):
        through = times(derivative(value, rotation), seed)
        if through != ZERO:
            back = Applied(Elementary.NEGATIVE, Rotated(through))
            total = plus(total, gradient(rotation.value, by, back))
    return total


def derivative(value: Value, by: Accumulated | Element | Rotated) -> Value:
    """That of a function by one of its leaves, or by a rotation, which is as good as a leaf.

    A comparison has none: of a choice, that of what is chosen. Where a minimum's or a maximum's values are equal, that
    of the first. Rounding is passed through, as PyTorch does.

    >>> from tilewright.problem.values import Formula, evaluate
    >>> x = Accumulated()
    >>> evaluate(derivative(Combined(Operation.TIMES, x, x), x), Formula(("x",)))
    'x + x'
    """
    match value:
        case Accumulated() | Element() | Rotated():
            return ONE if value == by else ZERO
        case Constant() | Factor() | Drawn():
            return ZERO
        case Combined():
            return _of_operation(value, derivative(value.a, by), derivative(value.b, by))
        case Applied():
            return times(_slope(value.function, value.value), derivative(value.value, by))
        case Where():
            return _where(value.condition, derivative(value.a, by), derivative(value.b, by))
        case Rounded() | TimesAlpha() | PlusBetaTimes():
            return derivative(value.value, by)
    assert_never(value)


def times(a: Value, b: Value) -> Value:
    """`a * b`, without what is 0 or 1 anyhow."""
    if ZERO in (a, b):
        return ZERO
    return b if a == ONE else a if b == ONE else Combined(Operation.TIMES, a, b)


def plus(a: Value, b: Value) -> Value:
    return b if a == ZERO else a if b == ZERO else Combined(Operation.PLUS, a, b)


def _minus(a: Value, b: Value) -> Value:
    if b == ZERO:
        return a
    return Applied(Elementary.NEGATIVE, b) if a == ZERO else Combined(Operation.MINUS, a, b)


def _over(a: Value, b: Value) -> Value:
    return ZERO if a == ZERO else Combined(Operation.OVER, a, b)


def _where(condition: Value, a: Value, b: Value) -> Value:
    return a if a == b else Where(condition, a, b)


def _of_operation(value: Combined, of_a: Value, of_b: Value) -> Value:
    a, b = value.a, value.b
    match value.operation:
        case Operation.PLUS:
            return plus(of_a, of_b)
        case Operation.MINUS:
            return _minus(of_a, of_b)
        case Operation.TIMES:
            return plus(times(of_a, b), times(a, of_b))
        case Operation.OVER:
            return _minus(_over(of_a, b), _over(times(a, of_b), Combined(Operation.TIMES, b, b)))
        case Operation.MINIMUM:
            return _where(Combined(Operation.AT_MOST, a, b), of_a, of_b)
        case Operation.MAXIMUM:
            return _where(Combined(Operation.AT_MOST, b, a), of_a, of_b)
        case _:
            return ZERO


def _slope(function: Function, x: Value) -> Value:
    """The derivative of a function at x."""
    here = Applied(function, x)
    match function:
        case Activation.RELU:
            return Where(Combined(Operation.LESS, ZERO, x), ONE, ZERO)
        case Activation.SILU:
            share = Applied(Elementary.SIGMOID, x)
            return times(share, plus(ONE, times(x, _minus(ONE, share))))
        case Activation.GELU:
            below = plus(Constant.of(0.5), times(Constant.of(0.5), Applied(Elementary.ERF, _scaled(x, 0.5**0.5))))
            density = Applied(Elementary.EXP, times(_scaled(x, -0.5), x))
            return plus(below, times(x, _scaled(density, (2 * math.pi) ** -0.5)))
        case Activation.GELU_TANH:
            return _slope_of_gelu_tanh(x)
        case Elementary.NEGATIVE:
            return Constant.of(-1.0)
        case Elementary.ABSOLUTE:
            below = Where(Combined(Operation.LESS, x, ZERO), Constant.of(-1.0), ZERO)
            return Where(Combined(Operation.LESS, ZERO, x), ONE, below)
        case Elementary.EXP:
            return here
        case Elementary.LOG:
            return _over(ONE, x)
        case Elementary.SQRT:
            return _over(Constant.of(0.5), here)
        case Elementary.TANH:
            return _minus(ONE, times(here, here))
        case Elementary.ERF:
            return _scaled(Applied(Elementary.EXP, Applied(Elementary.NEGATIVE, times(x, x))), 2 / math.sqrt(math.pi))
        case Elementary.SIGMOID:
            return times(here, _minus(ONE, here))
    assert_never(function)


def _slope_of_gelu_tanh(x: Value) -> Value:
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    square = times(x, x)
    inner = times(_scaled(x, root), plus(ONE, _scaled(square, cubic)))
    bent = Applied(Elementary.TANH, inner)
    steepness = _scaled(plus(ONE, _scaled(square, 3 * cubic)), 0.5 * root)
    below = plus(Constant.of(0.5), _scaled(bent, 0.5))
    return plus(below, times(times(x, _minus(ONE, times(bent, bent))), steepness))


def _scaled(value: Value, factor: float) -> Value:
    return times(Constant.of(factor), value)
