"""Pass 5: logical indices become element offsets, and index arithmetic takes its simplest form.

needs: global accesses with logical indices. leaves: one offset per global access, 64 bits wide unless the variant
promises that 31 are enough; every integer expression simplified. pinned after everything that speaks of rows and
columns.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.dtypes import I32, I64
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Op, Ref, Var
from tilewright.ir.program import Program
from tilewright.ir.ranges import Interval, interval
from tilewright.ir.stmt import Body, For, If, Let, Move, Stmt
from tilewright.ir.visit import map_exprs, rewrite, simplify, substitute
from tilewright.lowering.coordinates import base_of, bounds_of
from tilewright.lowering.kernel_parts import is_matrix


def flatten_indices(body: Body, program: Program, *, near: bool) -> Body:
    """`body` with offsets for global accesses and simple index arithmetic."""
    return _simplified(tuple(_flat(stmt, program, near) for stmt in body), bounds_of(program))


def _flat(stmt: Stmt, program: Program, near: bool) -> Stmt:
    match stmt:
        case For():
            return replace(stmt, body=tuple(_flat(s, program, near) for s in stmt.body))
        case If():
            then, otherwise = (tuple(_flat(s, program, near) for s in b) for b in (stmt.then, stmt.otherwise))
            return replace(stmt, then=then, otherwise=otherwise)
        case Move():
            return replace(stmt, dst=_offset(stmt.dst, program, near), src=_offset(stmt.src, program, near))
        case _:
            return stmt


def _offset(place: Ref, program: Program, near: bool) -> Ref:
    buffer = place.buffer
    if not is_matrix(place):
        return place
    operand = program.gemm.operand(buffer.name)
    index = dict(zip(operand.dims, place.index[:2], strict=True))
    bases = (base_of(program, operand.name, number) for number in place.index[2:])
    if operand.is_vector:  # all its lines are one
        at = ZERO if operand.is_single else index[operand.contiguous]
        return Ref(Buffer(buffer.name, Space.GLOBAL, buffer.dtype, ()), (*bases, at))
    strided = index[operand.strided]
    leading = Var(operand.leading, I32 if near else I64)
    row = Binary(Op.MUL, strided if near else Cast(I64, strided), leading)
    return Ref(Buffer(buffer.name, Space.GLOBAL, buffer.dtype, ()), (*bases, row + index[operand.contiguous]))


def _simplified(body: Body, bounds: dict[str, Interval]) -> Body:
    """Each expression simplified with what the enclosing loops and names say of its variables."""
    result: list[Stmt] = []
    for stmt in body:
        plain = map_exprs(stmt, lambda expr, known=dict(bounds): simplify(expr, known))  # type: ignore[misc]
        match plain:
            case Let():
                bounds = {**bounds, plain.name: interval(plain.value, bounds)}
            case For():
                count = plain.extent
                last = int(count.value) - 1 if isinstance(count, Const) else None
                plain = replace(plain, body=_simplified(plain.body, {**bounds, plain.var: Interval(0, last)}))
            case If():
                if isinstance(plain.condition, Const):
                    taken = plain.then if plain.condition.value else plain.otherwise
                    result += _simplified(_without_names(taken), bounds)
                    continue
                then, otherwise = _simplified(plain.then, bounds), _simplified(plain.otherwise, bounds)
                plain = replace(plain, then=then, otherwise=otherwise)
            case Move() if _always(plain.guard):
                plain = replace(plain, guard=None)
            case _:
                pass
        result.append(plain)
    return tuple(result)


def _without_names(body: Body) -> Body:
    """`body` with each `Let` written out where its name is read, so that it can stand in a scope that has the name."""
    values: dict[str, Expr] = {}
    result: list[Stmt] = []
    for stmt in body:
        (plain,) = rewrite((stmt,), lambda s: (map_exprs(s, lambda expr: substitute(expr, values)),))
        if isinstance(plain, Let):
            values[plain.name] = plain.value
        else:
            result.append(plain)
    return tuple(result)


def _always(guard: Expr | None) -> bool:
    return isinstance(guard, Const) and bool(guard.value)
