"""Interval facts about integer expressions: the least and greatest value, where they are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add, floordiv, mul, sub

from tilewright.ir.expr import Binary, Const, Expr, Lookup, Op, Var


@dataclass(frozen=True, slots=True)
class Interval:
    """`low <= value <= high`; None is unbounded."""

    low: int | None = None
    high: int | None = None


Bounds = Mapping[str, Interval]
"""What is known of each variable."""

UNKNOWN = Interval()
NATURAL = Interval(0, None)


def interval(expr: Expr, bounds: Bounds) -> Interval:
    """The range of an integer expression.

    >>> x = Var("x")
    >>> interval(x * 4 + 3, {"x": Interval(0, 7)})
    Interval(low=3, high=31)
    """
    match expr:
        case Const():
            return Interval(int(expr.value), int(expr.value))
        case Var():
            return bounds.get(expr.name, UNKNOWN)
        case Binary():
            return _binary(expr, interval(expr.a, bounds), interval(expr.b, bounds))
        case Lookup():
            return Interval(min(expr.table), max(expr.table))
        case _:
            return UNKNOWN


def _binary(expr: Binary, a: Interval, b: Interval) -> Interval:
    match expr.op:
        case Op.ADD:
            return Interval(_bound(add, a.low, b.low), _bound(add, a.high, b.high))
        case Op.SUB:
            return Interval(_bound(sub, a.low, b.high), _bound(sub, a.high, b.low))
        case Op.MUL if a.low is not None and b.low is not None and a.low >= 0 and b.low >= 0:
            return Interval(a.low * b.low, _bound(mul, a.high, b.high))
        case Op.MUL if b.low is not None and b.low == b.high and b.low < 0:
            return Interval(_bound(mul, a.high, b.low), _bound(mul, a.low, b.low))
        case Op.DIV if b.low is not None and b.low == b.high and b.low > 0:
            return Interval(_bound(floordiv, a.low, b.low), _bound(floordiv, a.high, b.low))
        case Op.MOD if b.high is not None and b.low is not None and b.low > 0:
            small = a.low is not None and a.high is not None and a.low >= 0 and a.high < b.low
            return a if small else Interval(0, b.high - 1)
        case Op.AND if b.low is not None and b.high is not None and b.low >= 0:
            return Interval(0, b.high)
        case Op.XOR if a.low is not None and a.low >= 0 and a.high is not None and b.high is not None:
            return Interval(0, (1 << max(a.high, b.high).bit_length()) - 1)
        case Op.SHR if b.low is not None and b.low == b.high:
            return Interval(_bound(floordiv, a.low, 1 << b.low), _bound(floordiv, a.high, 1 << b.low))
        case op if op.is_comparison:
            return Interval(0, 1)
        case _:
            return UNKNOWN


def _bound(function: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else function(a, b)
