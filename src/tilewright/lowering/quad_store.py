"""Finished sums on their way out in whole rows of fragments, for which the four lanes of a quad trade words.

A lane holds one word, two neighbours, of a row of each fragment, and its quad the row. Of four fragments each lane
takes the rows of one: 16 bytes to store at once, without shared memory and without a barrier.

    lane   holds                      stores
      0    a0 b0 c0 d0                a0 a1 a2 a3
      1    a1 b1 c1 d1      turned    b0 b1 b2 b3       a .. d: rows of four fragments, each of four words
      2    a2 b2 c2 d2                c0 c1 c2 c3
      3    a3 b3 c3 d3                d0 d1 d2 d3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.buffer import Ref
from tilewright.ir.expr import ZERO, Const, Expr, Load, Var
from tilewright.ir.program import Axis, Program
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Alloc, Body, For, Move, QuadTranspose
from tilewright.ir.tiles import FRAGMENT, traded_axis
from tilewright.layout.fragment import QUAD_LANES
from tilewright.lowering.coordinates import index_of, lane_of
from tilewright.lowering.kernel_parts import ELEMENT, global_place, value_buffer
from tilewright.lowering.part_store import Either
from tilewright.lowering.sums import Sums

Ended = Callable[[Ref, Ref, Expr, Expr | None], Body]
"""ended(value, place, sum, old): `alpha * sum + beta * old` and the epilogue of C[place] into the register `value`."""

_FOUR, _PIECE, _ROW = "four", "piece", "row"


@dataclass(frozen=True)
class QuadStore:
    """The statements of one thread that store its results in vectors of four words."""

    program: Program
    sums: Sums

    def body(self, either: Either, added_to: Callable[[Ref], Ref], ended: Ended) -> Body:
        """added_to: what beta multiplies."""
        return either(lambda reads_c: self._all(added_to if reads_c else None, ended))

    @cached_property
    def _traded(self) -> Axis:
        axis = traded_axis(self.program)
        assert axis is not None
        return axis

    def _all(self, added_to: Callable[[Ref], Ref] | None, ended: Ended) -> Body:
        """Four fragments after the other, and each of their rows that a lane has a part of."""
        fragment, traded = self.sums.fragment, self._traded
        assert fragment is not None
        body: Body = (For(_ROW, Const(fragment.registers // self._held), self._vector(added_to, ended), unroll=True),)
        body = (For(_FOUR, Const((traded.extent or 1) // QUAD_LANES), body, unroll=True),)
        for axis in reversed(self.program.sum_axes):
            if axis != traded:
                body = (For(axis.name, Const(axis.extent or 1), body, unroll=True),)
        return body

    @property
    def _held(self) -> int:
        """Neighbours that a lane holds."""
        return self.program.result_vector // QUAD_LANES

    def _vector(self, added_to: Callable[[Ref], Ref] | None, ended: Ended) -> Body:
        """One vector: a lane's words of a row of each of four fragments, traded for a row of one."""
        program, width, lane = self.program, self.program.result_vector, lane_of(self.program)
        value, old = (value_buffer(name, program.gemm.out, width) for name in ("C", "C_old"))
        first, last = (Ref(buffer, (ZERO,)) for buffer in (value, old))
        place = self._place(lane % QUAD_LANES, ZERO, whole=True)
        load: Body = ()
        if added_to is not None:  # what the quad reads in whole rows, its lanes trade back
            load = (Alloc(old), Move(last, added_to(place), width, origin="C"), QuadTranspose(last, "C"))
        piece, element = Var(_PIECE), Var(ELEMENT)
        at = piece * self._held + element
        register = Var(_ROW) * self._held + element
        index = [substitute(i, {self._traded.name: self._four + piece, FRAGMENT: register}) for i in self.sums.index]
        total = Load(self.sums.buffer, tuple(index))
        held = ended(
            Ref(value, (at,)),
            self._place(piece, element),
            total,
            None if added_to is None else Load(old, (at,)),
        )
        pieces = For(_PIECE, Const(QUAD_LANES), (For(ELEMENT, Const(self._held), held, unroll=True),), unroll=True)
        return (Alloc(value), *load, pieces, QuadTranspose(first, "C"), Move(place, first, width, origin="C"))

    @property
    def _four(self) -> Expr:
        return Var(_FOUR) * QUAD_LANES if (self._traded.extent or 1) > QUAD_LANES else ZERO

    def _place(self, piece: Expr, element: Expr, *, whole: bool = False) -> Ref:
        """Where an element lies in C that the lane holds; whole: where the row of a fragment begins."""
        program, fragment = self.program, self.sums.fragment
        assert fragment is not None
        at = dict(
            zip(
                program.instruction_axes,
                fragment.element(lane_of(program), Var(_ROW) * self._held + element),
                strict=False,
            )
        )
        digits = {axis.name: value for axis, value in at.items()}
        digits[self._traded.name] = self._four + piece
        if whole:
            along = program.gemm.operand("C").contiguous
            digits[next(axis.name for axis in at if axis.dim == along)] = ZERO
        row, column = (substitute(index_of(program, dim), digits) for dim in program.gemm.operand("C").dims)
        return global_place(program, "C", row, column)
