"""Pass 4: barriers, as few as order every hazard between threads in shared memory.

needs: explicit statements, no barriers. leaves: between any two accesses of different threads to the same shared
buffer, one of which writes, a barrier on every path. pinned after the guards, so that a barrier is never placed where
only some threads come.

A barrier is placed as late as it can be, right before the first statement that touches what an earlier one left open;
on a straight line that is the fewest. A loop is walked twice, the second time with what its own end left open, which
finds the barrier that its next iteration needs. A branch that all threads of a block take alike is walked as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const, Ref
from tilewright.ir.stmt import Barrier, Body, For, If, Let, Stmt
from tilewright.ir.verify import OF_THREADS, varies
from tilewright.ir.visit import moved_from, walk, written


@dataclass(frozen=True, slots=True)
class Open:
    """Shared buffers written, and read, since the last barrier."""

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def __or__(self, other: Open) -> Open:
        return Open(self.written | other.written, self.read | other.read)

    def clash(self, later: Open) -> tuple[str, ...]:
        """The buffers for which `later` must wait, in order of name."""
        waits = (self.written & (later.read | later.written)) | (self.read & later.written)
        return tuple(sorted(waits))


def touches(stmt: Stmt) -> Open:
    """What a statement, with all inside it, does to shared memory whose accesses nobody else orders."""
    writes: set[str] = set()
    reads: set[str] = set()
    for _, inner in walk((stmt,)):
        writes |= {place.buffer.name for place in written(inner) if _shared(place)}
        reads |= {place.buffer.name for place in moved_from(inner) if _shared(place)}
    return Open(frozenset(writes), frozenset(reads))


def _shared(place: Ref) -> bool:
    return place.buffer.space is Space.SHARED and place.buffer.handoff is None


def place_barriers(body: Body) -> Body:
    """`body` with the barriers it needs. Buffers with a handoff are ordered by whoever emitted their accesses."""
    varying = OF_THREADS
    for _, stmt in walk(body):
        if isinstance(stmt, Let) and varies(stmt.value, varying):
            varying |= {stmt.name}
    placed, _ = _place(body, Open(), varying)
    return placed


def _place(body: Body, left_open: Open, varying: frozenset[str]) -> tuple[Body, Open]:
    """varying: the names whose values differ between the threads of a block."""
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, If) and _mixes(touches(stmt)) and not varies(stmt.condition, varying):
            then, after_then = _place(stmt.then, left_open, varying)
            otherwise, after_otherwise = _place(stmt.otherwise, left_open, varying)
            result.append(replace(stmt, then=then, otherwise=otherwise))
            left_open = after_then | after_otherwise
            continue
        if isinstance(stmt, For) and _needs_barrier_inside(stmt, varying):
            # A barrier inside the loop; the loop is entered with what came before and with what its end leaves.
            _, at_end = _place(stmt.body, left_open, varying)
            inner, at_end = _place(stmt.body, left_open | at_end, varying)
            result.append(replace(stmt, body=inner))
            # A loop that may have no iterations (k = 0) may not come to its barrier.
            left_open = at_end if isinstance(stmt.extent, Const) else left_open | at_end
            continue
        if isinstance(stmt, Barrier):
            result.append(stmt)
            left_open = Open()
            continue
        needs = touches(stmt)
        clash = left_open.clash(needs)
        if clash:
            result.append(Barrier(_why(clash, left_open)))
            left_open = Open()
        result.append(stmt)
        left_open = left_open | needs
    return tuple(result), left_open


def _needs_barrier_inside(loop: For, varying: frozenset[str]) -> bool:
    """Whether threads meet inside the loop: it both writes and reads one buffer, over more than one statement."""
    branches = (stmt for stmt in loop.body if isinstance(stmt, If) and varies(stmt.condition, varying))
    if any(_mixes(touches(stmt)) for stmt in branches):
        return False
    return _mixes(touches(loop))


def _mixes(what: Open) -> bool:
    return bool(what.written & what.read)


def _why(clash: tuple[str, ...], left_open: Open) -> str:
    names = " and ".join(clash)
    complete = any(name in left_open.written for name in clash)
    return f"{names} complete" if complete else f"{names} read by all: may be overwritten"
