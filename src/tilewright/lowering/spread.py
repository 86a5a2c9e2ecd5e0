"""Where in a turn of a loop the copies for a later turn are started: shared out over its inner steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.expr import Const, Expr, Op, Var, binary
from tilewright.ir.program import Pipelined
from tilewright.ir.stmt import Assign, Body, For, If, MultiplyTiles, RoundPair, Stmt
from tilewright.ir.visit import walk
from tilewright.lowering.kernel_parts import at, if_any
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class Outer:
    """The loop around all products of an inner step: its variable, and how many turns of the schedule's own loop over
    outer fragments one of its turns holds."""

    var: str = ""
    turns: int = 1


NO_LOOP = Outer()
"""One instruction is all that a step multiplies, or nobody asks."""


def spread_over(inner: str, stmt: Stmt, copies: Body) -> Stmt:
    """The loop `inner` with a part of the copies started in each of its iterations; any other statement as it is.

    They are started behind the loads, which the products wait for, and in front of the products, which hide both.
    """
    if not isinstance(stmt, For) or stmt.var != inner or not isinstance(stmt.extent, Const):
        return stmt
    count = int(stmt.extent.value)
    parts = tuple(part for copy in copies for part in _part(copy, Var(inner), count))
    products = next((i for i, s in enumerate(stmt.body) if _multiplies(s)), len(stmt.body))
    return replace(stmt, body=(*stmt.body[:products], *parts, *stmt.body[products:]), unroll=True)


def dealt_over(ring: Pipelined, outer: Outer, stmt: Stmt, copies: Body) -> Stmt:
    """The loop `ring.spread` with the copies dealt out over its iterations in their order, as many in each.

    They are started in the midst of the products, behind `ring.behind` turns of their outer loop: loads of fragments
    and copies wait for the same unit, and the loads, which are needed sooner, come first.
    """
    if not isinstance(stmt, For) or stmt.var != ring.spread or not isinstance(stmt.extent, Const):
        return stmt
    turns = int(stmt.extent.value)
    each = ceil_div(sum(_steps(copy) for copy in copies), turns)
    parts: list[Stmt] = []
    for turn in range(turns):
        parts += if_any(binary(Op.EQ, Var(stmt.var), turn), _between(copies, turn * each, turn * each + each))
    here = If(binary(Op.EQ, Var(outer.var), ring.behind // outer.turns), tuple(parts))

    # Loads and roundings of fragments may count them by the same name; the products come last.
    number = max(i for i, inner in enumerate(stmt.body) if isinstance(inner, For) and inner.var == outer.var)
    products = stmt.body[number]
    assert isinstance(products, For)
    products = replace(products, body=(here, *products.body))
    return replace(stmt, body=(*stmt.body[:number], products, *stmt.body[number + 1 :]), unroll=True)


def _steps(copy: Stmt) -> int:
    """Copies that a thread makes in a statement."""
    return int(copy.extent.value) if isinstance(copy, For) and isinstance(copy.extent, Const) else 1


def _between(copies: Body, first: int, last: int) -> Body:
    """Of all that copies make, those from number `first` to before number `last`."""
    found: list[Stmt] = []
    for copy in copies:
        steps = _steps(copy)
        low, high = max(first, 0), min(last, steps)
        if low < high:
            if isinstance(copy, For) and high - low < steps:
                copy = replace(copy, extent=Const(high - low), body=at(copy.body, **{copy.var: Var(copy.var) + low}))
            found.append(copy)
        first, last = first - steps, last - steps
    return tuple(found)


def _multiplies(stmt: Stmt) -> bool:
    return any(isinstance(s, (Assign, RoundPair, MultiplyTiles)) for _, s in walk((stmt,)))


def _part(copy: Stmt, turn: Expr, count: int) -> Body:
    """Of a copy in several steps, those of one turn of `count`; a copy in one step belongs to the first turn."""
    if not isinstance(copy, For) or not isinstance(copy.extent, Const):
        return (If(binary(Op.EQ, turn, 0), (copy,)),)
    steps = int(copy.extent.value)
    each = ceil_div(steps, count)
    number = turn * each + Var(copy.var)
    body = at(copy.body, **{copy.var: number})
    if each * count > steps:
        body = if_any(binary(Op.LT, number, steps), body)
    return (replace(copy, extent=Const(each), body=body),)
