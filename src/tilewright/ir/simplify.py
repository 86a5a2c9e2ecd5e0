"""Index arithmetic in its simplest form.

Every integer expression becomes a sum of `coefficient * atom` plus a constant, where an atom is a variable or a
product, quotient or remainder that cannot be taken apart. The rules, each an identity on integers (floor division):

    (d*q + r) / d  ->  q            if 0 <= r < d
    (d*q + r) / d  ->  q + r / d
    (d*q + r) % d  ->  r % d, and r where 0 <= r < d
    (g*x) / (g*d)  ->  x / d        (g*x) % (g*d)  ->  g * (x % d)
    (x / a) / b    ->  x / (a*b)
    d*(x / d) + x % d  ->  x
    a < b          ->  true or false where the ranges say so

C truncates where Python floors, so only what is known to be at least 0 is left before a division.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tilewright.ir.expr import Binary, Const, Expr, Lookup, Op, Select, Var, binary, lookup
from tilewright.ir.ranges import Bounds, interval
from tilewright.ir.visit import rebuild, sub_exprs

Linear = tuple[dict[Expr, int], int]
"""Atoms with their coefficients, and the constant."""


def simplify(expr: Expr, bounds: Bounds | None = None) -> Expr:
    """The simplest form of an expression; float arithmetic is left as it stands.

    >>> from tilewright.ir.ranges import Interval
    >>> from tilewright.ir.text import ExprText
    >>> thread, step = Var("thread"), Var("step")
    >>> bounds = {"thread": Interval(0, 255), "step": Interval(0, 3)}
    >>> ExprText()(simplify((step * 256 + thread) // 8, bounds))
    'step * 32 + thread / 8'
    >>> ExprText()(simplify((step * 256 + thread) % 8, bounds))
    'thread % 8'
    """
    known: Bounds = {} if bounds is None else bounds
    match expr:
        case Const() | Var():
            return expr
        case Lookup():
            return lookup(expr.table, simplify(expr.index, known))
        case Select():
            return _select(expr, known)
        case Binary() if not (expr.dtype.is_float or expr.a.dtype.is_float):
            return _comparison(expr, known) if expr.op.is_comparison else _rebuild(_linear(expr, known))
        case _:
            return rebuild(expr, tuple(simplify(part, known) for part in sub_exprs(expr)))


def _select(expr: Select, bounds: Bounds) -> Expr:
    condition = simplify(expr.condition, bounds)
    a, b = simplify(expr.a, bounds), simplify(expr.b, bounds)
    if isinstance(condition, Const):
        return a if condition.value else b
    return Select(condition, a, b)


def _comparison(expr: Binary, bounds: Bounds) -> Expr:
    a, b = simplify(expr.a, bounds), simplify(expr.b, bounds)
    if expr.op in (Op.LT, Op.LE, Op.GE):
        left, right = interval(a, bounds), interval(b, bounds)
        if expr.op is Op.GE:
            left, right = right, left
        strict = 1 if expr.op is Op.LT else 0
        if left.high is not None and right.low is not None and left.high + strict <= right.low:
            return binary(Op.LE, 0, 0)
        if left.low is not None and right.high is not None and left.low + strict > right.high:
            return binary(Op.LE, 1, 0)
    return binary(expr.op, a, b)


def _linear(expr: Expr, bounds: Bounds) -> Linear:
    match expr:
        case Const():
            return {}, int(expr.value)
        case Binary(op=Op.ADD):
            return _sum(_linear(expr.a, bounds), _linear(expr.b, bounds), 1)
        case Binary(op=Op.SUB):
            return _sum(_linear(expr.a, bounds), _linear(expr.b, bounds), -1)
        case Binary(op=Op.MUL):
            return _product(expr, bounds)
        case Binary(op=Op.DIV, b=Const(value=by)) if int(by) > 0:
            return _quotient(_linear(expr.a, bounds), int(by), bounds)
        case Binary(op=Op.MOD, b=Const(value=by)) if int(by) > 0:
            return _remainder(_linear(expr.a, bounds), int(by), bounds)
        case Binary():
            return _atom(binary(expr.op, simplify(expr.a, bounds), simplify(expr.b, bounds)))
        case _:
            return _atom(simplify(expr, bounds))


def _atom(expr: Expr) -> Linear:
    return ({}, int(expr.value)) if isinstance(expr, Const) else ({expr: 1}, 0)


def _sum(a: Linear, b: Linear, sign: int) -> Linear:
    atoms = dict(a[0])
    for atom, coefficient in b[0].items():
        atoms[atom] = atoms.get(atom, 0) + sign * coefficient
    return {atom: c for atom, c in atoms.items() if c != 0}, a[1] + sign * b[1]


def _product(expr: Binary, bounds: Bounds) -> Linear:
    left, right = _linear(expr.a, bounds), _linear(expr.b, bounds)
    for scaled, factor in ((left, right), (right, left)):
        if not factor[0]:
            return {atom: c * factor[1] for atom, c in scaled[0].items() if factor[1]}, scaled[1] * factor[1]
    return {Binary(Op.MUL, _rebuild(left), _rebuild(right)): 1}, 0


def _divide(value: Linear, by: int, bounds: Bounds) -> tuple[Linear, Linear]:
    """`value = by * quotient + rest`, with what is divisible term by term in the quotient.

    All of it is rest where what is left might be negative, though the value is not.
    """
    atoms, constant = value
    quotient = {atom: c // by for atom, c in atoms.items() if c % by == 0}
    rest = {atom: c for atom, c in atoms.items() if c % by != 0}, constant % by
    low = interval(_assemble(rest), bounds).low
    if low is None or low < 0:
        return ({}, 0), value
    return (quotient, constant // by), rest


def _fits(value: Linear, by: int, bounds: Bounds) -> bool:
    found = interval(_assemble(value), bounds)
    return found.low is not None and found.high is not None and found.low >= 0 and found.high < by


def _quotient(value: Linear, by: int, bounds: Bounds) -> Linear:
    whole, rest = _divide(value, by, bounds)
    if _fits(rest, by, bounds):
        return whole
    common = gcd(by, *rest[0].values())
    if common > 1:  # the part of the constant below the common factor cannot carry
        rest = ({atom: c // common for atom, c in rest[0].items()}, rest[1] // common)
        by //= common
    inner = _rebuild(rest)
    if by == 1:
        return _sum(whole, rest, 1)
    if isinstance(inner, Binary) and inner.op is Op.DIV and isinstance(inner.b, Const):
        by *= int(inner.b.value)
        inner = inner.a
    return _sum(whole, ({Binary(Op.DIV, inner, Const(by)): 1}, 0), 1)


def _remainder(value: Linear, by: int, bounds: Bounds) -> Linear:
    _, rest = _divide(value, by, bounds)
    if _fits(rest, by, bounds):
        return rest
    common = gcd(by, *rest[0].values())
    low = rest[1] % common  # stays below the common factor, outside of the remainder
    inner = ({atom: c // common for atom, c in rest[0].items()}, rest[1] // common)
    if by == common:
        return {}, low
    return {Binary(Op.MOD, _rebuild(inner), Const(by // common)): common}, low


def _rejoin(value: Linear) -> Linear:
    """`d*(x / d) + x % d -> x`, for whatever multiple of both stands in the sum."""
    atoms = dict(value[0])
    for atom, coefficient in value[0].items():
        if not (isinstance(atom, Binary) and atom.op is Op.MOD and isinstance(atom.b, Const)):
            continue
        by = int(atom.b.value)
        quotient = Binary(Op.DIV, atom.a, atom.b)
        if atoms.get(quotient) == coefficient * by:
            del atoms[quotient], atoms[atom]
            return _rejoin(_sum((atoms, value[1]), _scaled(atom.a, coefficient), 1))
    return value


def _scaled(expr: Expr, factor: int) -> Linear:
    atoms, constant = _linear(expr, {})
    return {atom: c * factor for atom, c in atoms.items()}, constant * factor


def _assemble(value: Linear) -> Expr:
    result: Expr | None = None
    for atom, coefficient in value[0].items():
        term = binary(Op.MUL, atom, coefficient)
        result = term if result is None else binary(Op.ADD, result, term)
    if result is None:
        return Const(value[1])
    return binary(Op.ADD, result, value[1])


def _rebuild(value: Linear) -> Expr:
    return _assemble(_rejoin(value))


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression with variables replaced by expressions."""
    if isinstance(expr, Var):
        return values.get(expr.name, expr)
    parts = tuple(substitute(part, values) for part in sub_exprs(expr))
    return rebuild(expr, parts)
