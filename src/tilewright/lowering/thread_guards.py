"""Pass 6: a guard of a copy compares what is a thread's own with what is left of the matrix.

    for step: copy A[m_block * 128 + step * 16 + thread / 8] where m_block * 128 + step * 16 + thread / 8 < M
->  for step: copy A[m_block * 128 + step * 16 + thread / 8] where thread / 8 < M - m_block * 128 - step * 16

All copies of a thread then compare one register with numbers that all threads share, in registers of the warp. Else
ptxas keeps a row for each of them: of two tiles of 128 x 8, 32 registers of 128 threads.

needs: simple expressions. leaves: the same values of guards. pinned after `flatten_indices`, which would join the
terms again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Binary, Expr, Op, binary, both
from tilewright.ir.program import Program
from tilewright.ir.ranges import Bounds
from tilewright.ir.stmt import Body, For, If, Let, Move, Stmt
from tilewright.ir.visit import simplify, substitute, sum_of, terms_of, variables
from tilewright.lowering.coordinates import bounds_of

_THREAD = frozenset({"threadIdx.x", "threadIdx.y", "threadIdx.z"})


def thread_guards(body: Body, program: Program) -> Body:
    """`body` with such guards of the copies whose tiles ask for them."""
    tiles = {one.name for one in program.staged if one.distribution and one.distribution.thread_guards}
    return _Apart(frozenset(tiles), bounds_of(program)).body(body, {}, _THREAD) if tiles else body


@dataclass(frozen=True, slots=True)
class _Apart:
    """tiles: whose copies are guarded so. mixed: names whose values are in part a thread's own, by these values. own:
    names of those that are in whole."""

    tiles: frozenset[str]
    bounds: Bounds

    def body(self, body: Body, mixed: Mapping[str, Expr], own: frozenset[str]) -> Body:
        found: list[Stmt] = []
        for stmt in body:
            match stmt:
                case Let():
                    value = substitute(stmt.value, dict(mixed))
                    told, mine = variables(value), own
                    own, mixed = own - {stmt.name}, {name: of for name, of in mixed.items() if name != stmt.name}
                    if told and told <= mine:
                        own |= {stmt.name}
                    elif told & mine:
                        mixed[stmt.name] = value
                    found.append(stmt)
                case For():
                    found.append(replace(stmt, body=self.body(stmt.body, mixed, own)))
                case If():
                    then, otherwise = (self.body(of, mixed, own) for of in (stmt.then, stmt.otherwise))
                    found.append(replace(stmt, then=then, otherwise=otherwise))
                case Move() if stmt.origin in self.tiles and stmt.src.buffer.space is Space.GLOBAL and stmt.guard:
                    found.append(replace(stmt, guard=self.guard(stmt.guard, mixed, own)))
                case _:
                    found.append(stmt)
        return tuple(found)

    def guard(self, guard: Expr, mixed: Mapping[str, Expr], own: frozenset[str]) -> Expr:
        """The same condition, with a thread's own terms on the left, and on the right what all threads share."""
        if not isinstance(guard, Binary):
            return guard
        if guard.op is Op.LAND:
            return both(*(self.guard(part, mixed, own) for part in (guard.a, guard.b)))
        if guard.op is not Op.LT or variables(guard.b) & (own | {*mixed}):
            return guard
        terms = terms_of(simplify(substitute(guard.a, dict(mixed)), self.bounds))
        mine = [term for term in terms if variables(term) & own]
        shared = [term for term in terms if term not in mine]
        if not mine or not shared or any(variables(term) - own for term in mine):
            return guard
        left = simplify(binary(Op.SUB, guard.b, sum_of(shared)), self.bounds)
        return binary(Op.LT, sum_of(mine), left)
