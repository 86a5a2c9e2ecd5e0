"""The only generic traversals of statements and expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.ir.async_stmt import (
    ArriveBarrier,
    ExpectBytes,
    InitBarrier,
    SignalFlag,
    StoreAsync,
    StoreMatrices,
    TeamBarrier,
    TmaLoad,
    TmaPrefetch,
    TmaStore,
    WaitBarrier,
    WaitFlag,
    Wgmma,
    WgmmaWait,
)
from tilewright.ir.buffer import Ref
from tilewright.ir.expr import Apply, Binary, Cast, Const, Expr, Fma, Load, Lookup, RandomNumber, Select, Var
from tilewright.ir.stmt import (
    Assign,
    Body,
    Carried,
    For,
    If,
    Let,
    LoadFragment,
    LoadMatrices,
    Move,
    MultiplyTiles,
    QuadTranspose,
    RoundPair,
    ShuffleAdd,
    Stmt,
    StoreFragment,
    UnpackCodes,
)

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


def map_exprs(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `change` applied to each of its expressions (not to those of nested bodies)."""

    def ref(place: Ref) -> Ref:
        return Ref(place.buffer, tuple(change(i) for i in place.index))

    match stmt:
        case Let():
            return replace(stmt, value=change(stmt.value))
        case For():
            carried = tuple(Carried(c.name, change(c.start), change(c.next)) for c in stmt.carried)
            return replace(stmt, extent=change(stmt.extent), carried=carried)
        case If():
            return replace(stmt, condition=change(stmt.condition))
        case Move():
            guard, valid = (None if e is None else change(e) for e in (stmt.guard, stmt.valid))
            return replace(stmt, dst=ref(stmt.dst), src=ref(stmt.src), guard=guard, valid=valid)
        case Assign():
            return replace(stmt, dst=ref(stmt.dst), value=change(stmt.value))
        case LoadMatrices() | LoadFragment() | StoreFragment() | StoreMatrices() | UnpackCodes():
            return replace(stmt, dst=ref(stmt.dst), src=ref(stmt.src))
        case MultiplyTiles():
            return replace(stmt, d=ref(stmt.d), a=ref(stmt.a), b=ref(stmt.b))
        case RoundPair():
            return replace(stmt, first=ref(stmt.first), second=ref(stmt.second))
        case QuadTranspose() | ShuffleAdd():
            return replace(stmt, place=ref(stmt.place))
        case Wgmma():
            a = ref(stmt.a) if isinstance(stmt.a, Ref) else replace(stmt.a, place=ref(stmt.a.place))
            b = replace(stmt.b, place=ref(stmt.b.place))
            return replace(stmt, d=ref(stmt.d), a=a, b=b, fresh=None if stmt.fresh is None else change(stmt.fresh))
        case InitBarrier() | ExpectBytes():
            return replace(stmt, place=ref(stmt.place))
        case ArriveBarrier():
            return replace(stmt, place=ref(stmt.place), rank=None if stmt.rank is None else change(stmt.rank))
        case WaitBarrier():
            return replace(stmt, place=ref(stmt.place), parity=change(stmt.parity))
        case SignalFlag() | WaitFlag():
            return replace(stmt, place=ref(stmt.place), value=change(stmt.value))
        case TmaLoad():
            at = tuple(change(part) for part in stmt.at)
            mask = None if stmt.mask is None else change(stmt.mask)
            return replace(stmt, dst=ref(stmt.dst), at=at, signal=ref(stmt.signal), mask=mask)
        case StoreAsync():
            signal, rank = ref(stmt.signal), change(stmt.rank)
            return replace(stmt, dst=ref(stmt.dst), src=ref(stmt.src), signal=signal, rank=rank)
        case TmaPrefetch():
            return replace(stmt, at=tuple(change(part) for part in stmt.at))
        case TmaStore():
            return replace(stmt, src=ref(stmt.src), at=tuple(change(part) for part in stmt.at))
        case TeamBarrier():
            return replace(stmt, number=change(stmt.number))
        case WgmmaWait(sums=Ref() as sums):
            return replace(stmt, sums=ref(sums))
        case _:
            return stmt


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
    """The expressions a statement holds itself (not those of nested bodies)."""
    match stmt:
        case Let():
            return (stmt.value,)
        case For():
            return (stmt.extent, *(c.start for c in stmt.carried))
        case If():
            return (stmt.condition,)
        case Move():
            conditions = tuple(e for e in (stmt.guard, stmt.valid) if e is not None)
            return (*stmt.dst.index, *stmt.src.index, *conditions)
        case Assign():
            return (*stmt.dst.index, stmt.value)
        case LoadMatrices() | LoadFragment() | StoreFragment() | StoreMatrices() | UnpackCodes():
            return (*stmt.dst.index, *stmt.src.index)
        case MultiplyTiles():
            return (*stmt.d.index, *stmt.a.index, *stmt.b.index)
        case RoundPair():
            return (*stmt.first.index, *stmt.second.index)
        case QuadTranspose() | ShuffleAdd():
            return stmt.place.index
        case Wgmma():
            fresh = () if stmt.fresh is None else (stmt.fresh,)
            return (*stmt.d.index, *stmt.a_place.index, *stmt.b.place.index, *fresh)
        case InitBarrier() | ExpectBytes():
            return stmt.place.index
        case ArriveBarrier():
            return (*stmt.place.index, *(() if stmt.rank is None else (stmt.rank,)))
        case WaitBarrier():
            return (*stmt.place.index, stmt.parity)
        case SignalFlag() | WaitFlag():
            return (*stmt.place.index, stmt.value)
        case TmaLoad():
            mask_of = () if stmt.mask is None else (stmt.mask,)
            return (*stmt.dst.index, *stmt.signal.index, *stmt.at, *mask_of)
        case StoreAsync():
            return (*stmt.dst.index, *stmt.src.index, *stmt.signal.index, stmt.rank)
        case TmaPrefetch():
            return stmt.at
        case TmaStore():
            return (*stmt.src.index, *stmt.at)
        case TeamBarrier():
            return (stmt.number,)
        case _:
            return ()


def written(stmt: Stmt) -> tuple[Ref, ...]:
    """The places a statement writes itself (not those of nested bodies)."""
    match stmt:
        case Move() | Assign() | LoadMatrices() | LoadFragment() | StoreFragment() | StoreMatrices():
            return (stmt.dst,)
        case TmaLoad() | StoreAsync() | UnpackCodes():
            return (stmt.dst,)
        case SignalFlag():
            return (stmt.place,)
        case MultiplyTiles() | Wgmma():
            return (stmt.d,)
        case RoundPair():
            return (stmt.first, stmt.second)
        case QuadTranspose() | ShuffleAdd():
            return (stmt.place,)
        case _:
            return ()


def moved_from(stmt: Stmt) -> tuple[Ref, ...]:
    """The places a statement reads as such; what its expressions load is in `exprs_of`."""
    match stmt:
        case Move() | LoadMatrices() | LoadFragment() | StoreFragment() | StoreMatrices() | TmaStore() | StoreAsync():
            return (stmt.src,)
        case UnpackCodes():
            return (stmt.src,)
        case MultiplyTiles():
            return (stmt.a, stmt.b)
        case Wgmma():
            return (stmt.a_place, stmt.b.place)
        case _:
            return ()
