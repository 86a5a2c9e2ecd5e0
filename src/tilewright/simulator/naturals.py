"""Quotients and remainders of integers are of numbers that are not negative: what is divided, where it may be one.

The language of kernels promises it (`ir.expr.Op`). Where an operand cannot be shown to keep the promise, each execution
is looked at. What C does not evaluate is left out: the side of a choice that is not chosen, what follows a condition
that does not hold, the index of a guarded access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.ir.expr import TRUE, ZERO, Binary, Expr, Op, Select, both
from tilewright.ir.stmt import Move, Stmt
from tilewright.ir.visit import exprs_of, sub_exprs
from tilewright.simulator.context import Context, where
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind, Site
from tilewright.simulator.index import Cells, Place, Predicate, Scope, is_natural, resolve
from tilewright.simulator.warps import Mask
from tilewright.simulator.warps import both as both_masks


def divided(stmt: Stmt) -> Iterator[tuple[Expr, Expr]]:
    """What a statement itself divides, each with the condition under which it does."""
    guard = stmt.guard if isinstance(stmt, Move) else None
    for expr in exprs_of(stmt):
        yield from _divided(expr, TRUE if guard is None or expr is guard else guard)


def _divided(expr: Expr, under: Expr) -> Iterator[tuple[Expr, Expr]]:
    match expr:
        case Select():
            yield from _divided(expr.condition, under)
            yield from _divided(expr.a, both(under, expr.condition))
            yield from _divided(expr.b, both(under, Binary(Op.EQ, expr.condition, ZERO)))
        case Binary(op=Op.LAND):
            yield from _divided(expr.a, under)
            yield from _divided(expr.b, both(under, expr.a))
        case _:
            if isinstance(expr, Binary) and expr.op in (Op.DIV, Op.MOD) and not expr.dtype.is_float:
                yield expr.a, under
                yield expr.b, under
            for part in sub_exprs(expr):
                yield from _divided(part, under)


@dataclass(slots=True)
class NaturalCheck:
    """Looks at what is divided, in the lanes that take part and where `condition` holds."""

    site: Site
    context: Context
    operand: Place
    condition: Predicate | None

    def __call__(self, convoy: Convoy) -> None:
        lanes, offset = self.operand.cell.of(convoy), self.operand.offset(convoy.slots)
        if lanes.low + offset >= 0:
            return
        mask = convoy.mask
        if self.condition is not None:
            chosen = self.condition(convoy)
            if chosen is False:
                return
            mask = both_masks(mask, chosen) if isinstance(chosen, Mask) else mask
        negative = lanes.values + offset < 0
        if mask is not None:
            negative &= mask.lanes
        if negative.any():
            least = int((lanes.values + offset)[negative].min())
            self.context.findings.report(
                Kind.NEGATIVE,
                f"{least} is divided, or divides.",
                where(self.site, convoy, negative),
                note="quotients and remainders are of integers that are not negative: C cuts towards zero, and "
                "what simplifies index arithmetic rounds down.",
                hint="divide only where it holds, or add a multiple of the divisor first.",
            )


def natural_checks(
    stmt: Stmt, place: Callable[[], Site], context: Context, cells: Cells, scope: Scope
) -> list[NaturalCheck]:
    """Checks of what a statement divides, where it may be negative. place: the statement, for a report."""
    found: dict[tuple[Expr, Expr], None] = {}
    for operand, condition in divided(stmt):
        resolved = resolve(operand, scope)
        if not is_natural(resolved):
            found[resolved, resolve(condition, scope)] = None
    return [
        NaturalCheck(place(), context, cells.place(operand), None if condition == TRUE else cells.predicate(condition))
        for operand, condition in found
    ]
