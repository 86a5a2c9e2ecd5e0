"""The only generic traversals of statements and expressions.

Index arithmetic is brought into its simplest form: every integer expression becomes a sum of `coefficient * atom` plus
a constant, where an atom is a variable or a product, quotient or remainder that cannot be taken apart. The rules, each
an identity on integers (floor division):

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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd
from operator import is_
from typing import Any

from tilewright.ir import async_stmt
from tilewright.ir import stmt as statements
from tilewright.ir.async_stmt import SharedMatrix
from tilewright.ir.expr import (
    ZERO,
    Apply,
    Binary,
    Cast,
    Const,
    Expr,
    Fma,
    Load,
    Lookup,
    Op,
    RandomNumber,
    Ref,
    Select,
    Var,
    binary,
    lookup,
)
from tilewright.ir.ranges import Bounds, interval
from tilewright.ir.stmt import Body, Carried, For, If, Stmt

Path = tuple[int, ...]
"""Where a statement stands: the index in each enclosing body; the two branches of an `If` count as 0 and 1."""


def bodies(stmt: Stmt) -> tuple[tuple[Path, Body], ...]:
    """The bodies inside a statement, each with the path from the statement to it."""
    match stmt:
        case For():
            return (((), stmt.body),)
        case If():
            return (((0,), stmt.then), ((1,), stmt.otherwise))
        case _:
            return ()


def walk(body: Body, path: Path = ()) -> Iterator[tuple[Path, Stmt]]:
    """Every statement with its path, outermost first, in order of the text."""
    for index, stmt in enumerate(body):
        here = (*path, index)
        yield here, stmt
        for inner, nested in bodies(stmt):
            yield from walk(nested, (*here, *inner))


def rewrite(body: Body, change: Callable[[Stmt], Body | None]) -> Body:
    """`body` with each statement replaced, innermost first, by what `change` returns; None keeps it."""
    result: list[Stmt] = []
    for stmt in body:
        match stmt:
            case For():
                stmt = replace(stmt, body=rewrite(stmt.body, change))
            case If():
                stmt = replace(stmt, then=rewrite(stmt.then, change), otherwise=rewrite(stmt.otherwise, change))
            case _:
                pass
        changed = change(stmt)
        result.extend((stmt,) if changed is None else changed)
    return tuple(result)


def edited(body: Body, path: Path, change: Callable[[Stmt], Body]) -> Body:
    """`body` with the one statement at `path` replaced by what `change` makes of it."""
    index, rest = path[0], path[1:]
    stmt = body[index]
    if not rest:
        new = change(stmt)
    elif isinstance(stmt, If):
        if rest[0] == 0:
            new = (replace(stmt, then=edited(stmt.then, rest[1:], change)),)
        else:
            new = (replace(stmt, otherwise=edited(stmt.otherwise, rest[1:], change)),)
    else:
        assert isinstance(stmt, For)
        new = (replace(stmt, body=edited(stmt.body, rest, change)),)
    return (*body[:index], *new, *body[index + 1 :])


@dataclass(frozen=True, slots=True)
class _Parts:
    """The fields of a statement that hold expressions or places; of the places, those that it writes, and those that it
    reads as such."""

    held: tuple[str, ...]
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


_DST_SRC = _Parts(("dst", "src"), ("dst",), ("src",))
_PLACE = _Parts(("place",))
_PARTS: Mapping[type, _Parts] = {
    statements.Let: _Parts(("value",)),
    statements.For: _Parts(("extent", "carried")),
    statements.If: _Parts(("condition",)),
    statements.Move: _Parts(("dst", "src", "guard", "valid"), ("dst",), ("src",)),
    statements.Assign: _Parts(("dst", "value"), ("dst",)),
    statements.LoadMatrices: _DST_SRC,
    statements.LoadFragment: _DST_SRC,
    statements.StoreFragment: _DST_SRC,
    statements.UnpackCodes: _DST_SRC,
    statements.MultiplyTiles: _Parts(("d", "a", "b"), ("d",), ("a", "b")),
    statements.RoundPair: _Parts(("first", "second"), ("first", "second")),
    statements.QuadTranspose: _Parts(("place",), ("place",)),
    statements.ShuffleAdd: _Parts(("place", "other"), ("place",), ("other",)),
    async_stmt.StoreMatrices: _DST_SRC,
    async_stmt.Wgmma: _Parts(("d", "a", "b", "fresh"), ("d",), ("a", "b")),
    async_stmt.WgmmaWait: _Parts(("sums",)),
    async_stmt.InitBarrier: _PLACE,
    async_stmt.ExpectBytes: _PLACE,
    async_stmt.ArriveBarrier: _Parts(("place", "rank")),
    async_stmt.WaitBarrier: _Parts(("place", "parity")),
    async_stmt.SignalFlag: _Parts(("place", "value"), ("place",)),
    async_stmt.WaitFlag: _Parts(("place", "value")),
    async_stmt.TmaLoad: _Parts(("dst", "signal", "at", "mask"), ("dst",)),
    async_stmt.StoreAsync: _Parts(("dst", "src", "signal", "rank"), ("dst",), ("src",)),
    async_stmt.TmaPrefetch: _Parts(("at",)),
    async_stmt.BulkPrefetch: _Parts(("place",)),
    async_stmt.L2Prefetch: _Parts(("place", "guard")),
    async_stmt.TmaStore: _Parts(("src", "at"), (), ("src",)),
    async_stmt.TeamBarrier: _Parts(("number",)),
}
_NOTHING = _Parts(())


def map_exprs(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `change` applied to each of its expressions (not to those of nested bodies)."""

    def changed(part: Any) -> Any:
        match part:
            case None:
                return None
            case tuple():
                found = tuple([changed(one) for one in part])
                return part if all(map(is_, found, part)) else found
            case Ref():
                index = changed(part.index)
                return part if index is part.index else Ref(part.buffer, index)
            case SharedMatrix():
                return replace(part, place=changed(part.place))
            case Carried():
                return Carried(part.name, change(part.start), change(part.next))
            case _:
                return change(part)

    parts = {name: getattr(stmt, name) for name in _PARTS.get(type(stmt), _NOTHING).held}
    other = {name: new for name, part in parts.items() if (new := changed(part)) is not part}
    return replace(stmt, **other) if other else stmt


def sub_exprs(expr: Expr) -> tuple[Expr, ...]:
    """The operands of an expression."""
    match expr:
        case Binary():  # most expressions first
            return (expr.a, expr.b)
        case Var() | Const():
            return ()
        case Load():
            return expr.index
        case Select():
            return (expr.condition, expr.a, expr.b)
        case Cast() | Apply():
            return (expr.value,)
        case Fma():
            return (expr.a, expr.b, expr.c)
        case Lookup():
            return (expr.index,)
        case RandomNumber():
            return (expr.seed, expr.offset, expr.row, expr.first, expr.element)


def rebuild(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The same node over other operands (no folding)."""
    match expr:
        case Binary():
            return Binary(expr.op, parts[0], parts[1])
        case Select():
            return Select(parts[0], parts[1], parts[2])
        case Cast():
            return Cast(expr.dtype, parts[0])
        case Apply():
            return Apply(expr.function, parts[0])
        case Fma():
            return Fma(parts[0], parts[1], parts[2])
        case Lookup():
            return Lookup(expr.table, parts[0])
        case RandomNumber():
            return RandomNumber(*parts)
        case Load():
            return Load(expr.buffer, parts)
        case _:
            return expr


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """The expression and every expression inside it, each before its operands."""
    left = [expr]
    while left:
        part = left.pop()
        yield part
        left += sub_exprs(part)[::-1]


def variables(expr: Expr) -> set[str]:
    """The names an expression reads."""
    names, left = set(), [expr]
    while left:  # as `walk_expr`, without its pauses: most of the time of a verification is spent here
        part = left.pop()
        if isinstance(part, Var):
            names.add(part.name)
        else:
            left += sub_exprs(part)
    return names


def exprs_of(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions a statement holds itself (not those of nested bodies, nor how what a loop carries goes on)."""
    found: list[Expr] = []
    for name in _PARTS.get(type(stmt), _NOTHING).held:
        part = getattr(stmt, name)
        match part:
            case None:
                pass
            case Ref():
                found += part.index
            case SharedMatrix():
                found += part.place.index
            case tuple():
                found += [one.start if isinstance(one, Carried) else one for one in part]
            case _:
                found.append(part)
    return tuple(found)


def written(stmt: Stmt) -> tuple[Ref, ...]:
    """The places a statement writes itself (not those of nested bodies)."""
    return _places(stmt, _PARTS.get(type(stmt), _NOTHING).writes)


def moved_from(stmt: Stmt) -> tuple[Ref, ...]:
    """The places a statement reads as such; what its expressions load is in `exprs_of`."""
    return _places(stmt, _PARTS.get(type(stmt), _NOTHING).reads)


def _places(stmt: Stmt, names: tuple[str, ...]) -> tuple[Ref, ...]:
    parts = [part for name in names if (part := getattr(stmt, name)) is not None]
    return tuple(part.place if isinstance(part, SharedMatrix) else part for part in parts)


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


def terms_of(expr: Expr) -> list[Expr]:
    """The terms of a sum, products of sums multiplied out."""
    match expr:
        case Binary(op=Op.ADD):
            return [*terms_of(expr.a), *terms_of(expr.b)]
        case Binary(op=Op.MUL):
            left, right = terms_of(expr.a), terms_of(expr.b)
            if len(left) > 1 or len(right) > 1:
                return [a * b for a in left for b in right]
            return [expr]
        case _:
            return [expr]


def sum_of(terms: list[Expr]) -> Expr:
    """The sum of some terms, 0 of none."""
    total: Expr = ZERO
    for term in terms:
        total = total + term
    return total
