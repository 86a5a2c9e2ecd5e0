"""The only generic traversals of statements and expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

from tilewright.ir import async_stmt
from tilewright.ir import stmt as statements
from tilewright.ir.async_stmt import SharedMatrix
from tilewright.ir.buffer import Ref
from tilewright.ir.expr import Apply, Binary, Cast, Const, Expr, Fma, Load, Lookup, RandomNumber, Select, Var
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
