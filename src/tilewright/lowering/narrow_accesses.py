"""Pass 2: where operands may be unaligned, vector accesses to global memory become single ones.

needs: global accesses with logical indices. leaves: no access that is wider than its alignment. pinned before the
guards, which guard what is there.
"""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program
from tilewright.ir.stmt import Body, Move, Stmt
from tilewright.ir.visit import rewrite
from tilewright.lowering.guard_edges import contiguous_at, single_elements


def narrow_accesses(body: Body, program: Program) -> Body:
    """`body` with every access to global memory one element wide."""

    def change(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Move) or stmt.width == 1:
            return None
        for place in (stmt.src, stmt.dst):
            if place.buffer.space is Space.GLOBAL:
                return (single_elements(stmt, contiguous_at(program, place)),)
        return None

    return rewrite(body, change)
