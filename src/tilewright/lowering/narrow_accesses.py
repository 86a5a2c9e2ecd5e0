"""Pass 2: where operands may be less than 16-byte aligned, accesses to global memory become as narrow as they must.

needs: global accesses with logical indices. leaves: no access that is wider than its alignment, but those that are
aligned whatever their operand is; an asynchronous copy of 2-byte elements, which has no narrow form, goes through
registers. pinned before the guards, which guard what is there.

Copies that a schedule shares out in wide chunks are shared out anew before that (`narrowed_copies`), so that
neighbouring threads still touch neighbouring memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Ref
from tilewright.ir.kernel import Variant
from tilewright.ir.program import Program, Route, Staged
from tilewright.ir.stmt import Alloc, Body, Move, Stmt
from tilewright.ir.visit import rewrite
from tilewright.lowering.guard_edges import contiguous_at, narrower
from tilewright.lowering.kernel_parts import is_matrix, value_buffer
from tilewright.problem.gemm import FACTORS


def narrowed_copies(program: Program, variant: Variant) -> Program:
    """The program whose asynchronous copies, and stores of the result, are in chunks no wider than the alignment.

    What cp.async cannot copy, rows that begin at any element of 2 bytes, goes through registers, two elements at a
    time, in two loads and one store. Where they are on their way in registers, fragments are loaded when they are
    needed, not a step ahead. Narrow asynchronous copies are started at once, not spread over an inner loop, where their
    offsets would take registers.
    """
    program = _narrowed_result(program, variant.aligned_bytes("C"))
    copies = [s for s in program.staged if s.route is Route.ASYNC and s.distribution is not None]
    each = ((staged, _narrowed_copy(program, staged, variant.aligned_bytes(staged.operand))) for staged in copies)
    narrowed = [new for old, new in each if new != old]
    if not narrowed:
        return program
    program = _with_tiles(program, narrowed)
    if any(staged.prefetched for staged in narrowed):
        fragments = [staged for staged in program.staged if staged.space is Space.REGISTER]
        program = _with_tiles(program, [replace(staged, prefetched=False) for staged in fragments])
    if program.pipelined is not None:
        program = replace(program, pipelined=replace(program.pipelined, interleave=""))
    return _plain(program)


def _plain(program: Program) -> Program:
    """The program without what only copies of whole chunks allow: where they start, and persistent blocks."""
    tiles = (
        replace(
            staged,
            in_place=False,
            distribution=staged.distribution and replace(staged.distribution, row_threads=0),
        )
        for staged in program.staged
    )
    program = _with_tiles(program, tuple(tiles))
    if program.pipelined is not None:
        program = replace(program, pipelined=replace(program.pipelined, issue_distance=0))
    keeps = program.specialized is not None or program.adds_in_order or program.problems.has_groups
    return program if keeps else replace(program, persistent=False)


def _narrowed_copy(program: Program, staged: Staged, alignment_bytes: int) -> Staged:
    """A tile whose copy is asynchronous, in chunks of the alignment; through registers, where those are too small."""
    assert staged.distribution is not None
    element_bytes = program.gemm.operand(staged.operand).dtype.bytes
    moved_bytes = max(alignment_bytes, element_bytes)
    is_asynchronous = moved_bytes >= MIN_ASYNC_BYTES
    width = moved_bytes // element_bytes if is_asynchronous else TOGETHER
    if staged.distribution.vector <= width:
        return staged
    staged = replace(staged, distribution=replace(staged.distribution, vector=width))
    if is_asynchronous:
        return staged
    return replace(staged, route=Route.REGISTERS, prefetched=program.pipelined is not None)


def _with_tiles(program: Program, tiles: Iterable[Staged]) -> Program:
    """The program with these tiles in place of those of their names."""
    for staged in tiles:
        program = program.with_tile(staged)
    return program


def _narrowed_result(program: Program, alignment_bytes: int) -> Program:
    """The program whose threads store neighbours of the result, each as much as it may at once."""
    width = max(alignment_bytes // program.gemm.out.bytes, 1)
    for staged in program.staged:
        if staged.operand != "C":
            continue
        if staged.distribution is not None and staged.distribution.vector > width:
            program = program.with_tile(replace(staged, distribution=replace(staged.distribution, vector=width)))
        if staged.finished and staged.vector > width:
            program = program.with_tile(replace(staged, vector=1))
    return program


def narrow_accesses(body: Body, program: Program, variant: Variant) -> Body:
    """`body` with no access to global memory wider than the alignment of its operand, or one element."""

    def change(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Move) or stmt.settled:
            return None
        for place in (stmt.src, stmt.dst):
            if is_matrix(place):
                # What is read beside C begins at as many elements as C does, of whatever format.
                own = place.buffer.dtype.bytes
                size = own if place.buffer.name in FACTORS else max(own, program.gemm.out.bytes)
                width = max(variant.aligned_bytes(place.buffer.name) // size, 1)
                if stmt.width <= width:
                    return None
                single = narrower(stmt, contiguous_at(program, place), width)
                too_narrow = stmt.asynchronous and width * place.buffer.dtype.bytes < MIN_ASYNC_BYTES
                return (replace(single, body=through_registers(single.body)) if too_narrow else single,)
        return None

    return rewrite(body, change)


MIN_ASYNC_BYTES = 4
"""The least that cp.async copies. Source: PTX ISA, cp.async."""

TOGETHER = 2
"""Elements of 2 bytes that go through registers together: so many loads, one store."""


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
