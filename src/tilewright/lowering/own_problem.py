"""Pass 7, where asked: one launch computes many problems, and blocks along z have one each.

    copy of a box of A   ->   copy of a box of the matrix of A that is this block's

needs: the finished body of one problem, which reads no blockIdx.z. leaves: the same body; tensor maps are of stacks of
matrices. Pointers, and sizes read from a table, are set in front of the body (`Kernel.many`), so that offsets stay as
short as those of one problem. pinned last: nothing else depends on it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import PrefetchMap, TmaLoad, TmaStore
from tilewright.ir.kernel import Many, step_of
from tilewright.ir.program import Level, Program
from tilewright.ir.stmt import Body, Stmt
from tilewright.ir.visit import rewrite, walk


def own_problem(body: Body, program: Program, many: Many, *, parts: bool = False) -> Body:
    """`body` for one of many problems. Raises LoweringError where blocks along z have other work, or tiles of several
    problems would meet."""
    _check(body, program, many, parts)

    def change(stmt: Stmt) -> Body:
        if isinstance(stmt, (TmaLoad, PrefetchMap)):
            return (replace(stmt, map=replace(stmt.map, step=step_of(stmt.map.operand))),)
        return (stmt,)

    return rewrite(body, change)


def _check(body: Body, program: Program, many: Many, parts: bool) -> None:
    if parts or program.at_level(Level.GRID_Z) is not None:
        raise LoweringError(
            "Blocks along z cannot have a problem each: they share out one problem already.",
            hint="sum all of k in one block, and bind no loop to grid.z.",
        )
    if program.persistent:
        raise LoweringError(
            "Cannot compute many problems with blocks that walk over the tiles of one.",
            hint="leave Persist() out: problems are blocks along z.",
        )
    statements = [stmt for _, stmt in walk(body)]
    if any(isinstance(stmt, TmaStore) for stmt in statements):
        raise LoweringError(
            "The copy engine cannot store the results of many problems: its map of C knows one matrix.",
            hint='store C from registers: leave Transfer("C", Route.TMA) out.',
        )
    clustered = program.clustered is not None and program.clustered.size > 1
    if clustered or (many is Many.LISTED and any(isinstance(stmt, TmaLoad) for stmt in statements)):
        raise LoweringError(
            "Many problems cannot be read by clusters of blocks, nor a list of them by the copy engine.",
            note="a map is made for one size, and all blocks of a cluster share their tiles.",
            hint="use a schedule that copies through registers or cp.async.",
        )
