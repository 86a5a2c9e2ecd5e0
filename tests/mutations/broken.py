"""Kernels broken on purpose, one statement at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tilewright.errors import SimulationError
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Binary, Expr, Op, Ref, both
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Body, If, Move, Stmt
from tilewright.ir.text import ExprText, stmt_text
from tilewright.ir.visit import Path, walk
from tilewright.ir.visit import edited as edited_body
from tilewright.problem import Operands
from tilewright.simulator import Run, simulate

Change = Callable[[Stmt], Body]


def edited(kernel: Kernel, path: Path, change: Change) -> Kernel:
    """The kernel with the one statement at `path` replaced."""
    return replace(kernel, body=edited_body(kernel.body, path, change))


def without(kernel: Kernel, path: Path) -> Kernel:
    """The kernel without the statement at `path`."""
    return edited(kernel, path, lambda stmt: ())


def run_of(kernel: Kernel, operands: Operands, *, schedule: str = "moments", **options: Any) -> Run | None:
    """The run of a kernel; None where it broke a rule, which ended it.

    schedule: waits noticed late and copies that land early find what lockstep misses. What is broken in addresses,
    guards or counts shows in every order: such tests say "lockstep", which is several times as fast.
    """
    try:
        return simulate(kernel, operands, listeners=(), schedule=schedule, **options)
    except SimulationError as error:
        if not error.place:  # not of the kernel: it cannot be simulated
            raise
        return None


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The parts that must all hold."""
    if isinstance(condition, Binary) and condition.op is Op.LAND:
        return (*conjuncts(condition.a), *conjuncts(condition.b))
    return (condition,)


def weaker(condition: Expr) -> Iterator[tuple[Expr, Expr | None]]:
    """Each part of a condition, and the condition without it; None where nothing is left."""
    parts = conjuncts(condition)
    for drop, part in enumerate(parts):
        left = both(*(other for at, other in enumerate(parts) if at != drop))
        yield part, left if len(parts) > 1 else None


def in_memory(move: Move) -> Ref:
    """The global or shared side of a load or store; the global one of a copy between the two."""
    return move.src if move.src.buffer.space is not Space.REGISTER else move.dst


def guards(kernel: Kernel) -> Iterator[tuple[Path, Move, Expr, Expr | None]]:
    """Every part of every guard: where, the access, the part, and the guard without it."""
    for path, stmt in walk(kernel.body):
        if isinstance(stmt, Move) and stmt.guard is not None:
            for part, left in weaker(stmt.guard):
                yield path, stmt, part, left


def needless_guards(kernel: Kernel, runs: list[Operands], is_noticed: Callable[[Kernel, Operands], bool]) -> list[str]:
    """Parts of guards that nobody misses.

    Guards beside each other are missed by the same runs: the one that noticed the last is asked first. Of the kernel
    itself it must notice nothing.
    """
    runs, right = list(runs), set[int]()

    def noticed(one: Kernel) -> bool:
        for number, operands in enumerate(runs):
            if is_noticed(one, operands):
                if id(operands) not in right:
                    assert not is_noticed(kernel, operands), "the whole kernel is right"
                    right.add(id(operands))
                runs.insert(0, runs.pop(number))
                return True
        return False

    needless = []
    for path, move, part, left in guards(kernel):
        broken = edited(kernel, path, lambda stmt, left=left: (replace(stmt, guard=left),))  # type: ignore[misc]
        if not noticed(broken):
            needless.append(f"{ExprText()(part)}   of   {stmt_text(move)}")
    return needless


def branches(kernel: Kernel) -> Iterator[tuple[Path, If]]:
    """The branches that choose between a vector access and single ones at the edge."""
    for path, stmt in walk(kernel.body):
        if isinstance(stmt, If) and stmt.otherwise and isinstance(stmt.then[0], Move):
            yield path, stmt
