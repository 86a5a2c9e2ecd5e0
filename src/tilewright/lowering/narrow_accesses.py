"""Pass 2: where operands may be unaligned, vector accesses to global memory become single ones.

needs: global accesses with logical indices. leaves: no access that is wider than its alignment; an asynchronous copy of
2-byte elements, which has no narrow form, goes through registers. pinned before the guards, which guard what is there.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.buffer import Ref, Space
from tilewright.ir.expr import ZERO
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Body, Move, Stmt
from tilewright.ir.visit import rewrite
from tilewright.lowering.guard_edges import contiguous_at, single_elements
from tilewright.lowering.kernel_parts import value_buffer


def narrow_accesses(body: Body, program: Program) -> Body:
    """`body` with every access to global memory one element wide."""

    def change(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Move) or stmt.width == 1:
            return None
        for place in (stmt.src, stmt.dst):
            if place.buffer.space is Space.GLOBAL:
                single = single_elements(stmt, contiguous_at(program, place))
                too_narrow = stmt.asynchronous and place.buffer.dtype.bytes < MIN_ASYNC_BYTES
                return (replace(single, body=through_registers(single.body)) if too_narrow else single,)
        return None

    return rewrite(body, change)


MIN_ASYNC_BYTES = 4
"""The least that cp.async copies. Source: PTX ISA, cp.async."""


def through_registers(body: Body) -> Body:
    """Asynchronous copies of single elements as a load and a store."""
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Move) and stmt.asynchronous:
            here = Ref(value_buffer(stmt.origin, stmt.src.buffer.dtype, 1), (ZERO,))
            load = replace(stmt, dst=here, asynchronous=False)
            store = replace(stmt, src=here, asynchronous=False, guard=None)
            result += [Alloc(here.buffer), load, store]
        else:
            result.append(stmt)
    return tuple(result)
