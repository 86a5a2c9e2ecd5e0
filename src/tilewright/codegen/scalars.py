"""Where a register that holds one number is declared: with its first value, if that stands in the same body.

float a; ... a = A[i];     ->     ... const float a = A[i];
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.expr import is_scalar
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Load
from tilewright.ir.stmt import Alloc, Assign, Body, Move, Stmt
from tilewright.ir.visit import exprs_of, walk, walk_expr, written


@dataclass(frozen=True, slots=True)
class Declarations:
    """moved: the `Alloc`s of a body that are not printed where they stand. first: the statement, by its index,
    that declares a buffer, and whether nothing writes it afterwards."""

    moved: frozenset[int]
    first: dict[int, tuple[Buffer, bool]]


def declarations(body: Body) -> Declarations:
    """Which statements of `body` declare the scalar they write."""
    moved: set[int] = set()
    first: dict[int, tuple[Buffer, bool]] = {}
    for index, stmt in enumerate(body):
        if not isinstance(stmt, Alloc) or not is_scalar(stmt.buffer):
            continue
        users = [i for i in range(index + 1, len(body)) if _mentions(body[i], stmt.buffer)]
        if users and _sets(body[users[0]], stmt.buffer) and not _reads(body[users[0]], stmt.buffer):
            moved.add(index)
            later = walk(body[users[0] + 1 :])
            first[users[0]] = (stmt.buffer, not any(_writes(s, stmt.buffer) for _, s in later))
    return Declarations(frozenset(moved), first)


def _mentions(stmt: Stmt, buffer: Buffer) -> bool:
    return any(_writes(inner, buffer) or _reads(inner, buffer) for _, inner in walk((stmt,)))


def _sets(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement can declare a scalar."""
    return isinstance(stmt, (Assign, Move)) and stmt.dst.buffer == buffer


def _writes(stmt: Stmt, buffer: Buffer) -> bool:
    return any(place.buffer == buffer for place in written(stmt))


def _reads(stmt: Stmt, buffer: Buffer) -> bool:
    if isinstance(stmt, Move) and stmt.src.buffer == buffer:
        return True
    return any(isinstance(part, Load) and part.buffer == buffer for expr in exprs_of(stmt) for part in walk_expr(expr))
