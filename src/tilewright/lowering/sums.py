"""The running sum in registers: its buffers, and bodies repeated for each result, or each vector of results.

A result of a thread is numbered by the digits that the thread counts itself. Where a matrix instruction runs the inner
tile, each such number stands for a whole fragment; which element a lane's register holds follows from the fragment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from tilewright.ir.accumulators import Accumulator
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Ref, Var, real
from tilewright.ir.program import Axis, Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let
from tilewright.ir.tiles import FRAGMENT, fragment_of, joined, result_span
from tilewright.ir.visit import substitute
from tilewright.layout.fragment import Fragment
from tilewright.lowering.coordinates import lane_of
from tilewright.lowering.kernel_parts import every, in_pair, over_vectors

ACCUMULATOR = "accumulator"
"""What the first extent of the buffer counts, where C is made of several sums."""


@dataclass(frozen=True)
class Sums:
    """The running sum of a program that keeps one in registers."""

    program: Program
    accumulator: Accumulator
    outside: frozenset[str] = frozenset()
    """Digits that loops around count: those of a part of the result, where it leaves in parts."""

    @property
    def name(self) -> str:
        return self.accumulator.name

    @cached_property
    def fragment(self) -> Fragment | None:
        return fragment_of(self.program, "C")

    @cached_property
    def buffer(self) -> Buffer:
        """What the epilogue reads."""
        axes = self.program.sum_axes
        shape = tuple(axis.extent or 1 for axis in axes)
        names = tuple(axis.name for axis in axes)
        if self.fragment is not None:
            shape, names = (*shape, self.fragment.registers), (*names, FRAGMENT)
        if self.accumulator.count > 1:
            at = self._place_of_number(len(shape))
            shape = (*shape[:at], self.accumulator.count, *shape[at:])
            names = (*names[:at], ACCUMULATOR, *names[at:])
        return Buffer(self.name, Space.REGISTER, self.accumulator.result_dtype, shape or (1,), names)

    @cached_property
    def group(self) -> Buffer:
        """What products are added to: `buffer`, or the sum of a group of k that is promoted to it."""
        promotion = self.accumulator.promotion
        if promotion is None:
            return self.buffer
        note = f"{promotion.every} of k, then added to {self.name}"
        shape = self.buffer.shape
        if promotion.parts:
            axes = zip(self.buffer.axes, shape, strict=True)
            shape = tuple(1 if name in promotion.parts else extent for name, extent in axes)
        return replace(self.buffer, name=self.accumulator.group, dtype=self.accumulator.dtype, shape=shape, note=note)

    def in_group(self, index: tuple[Expr, ...]) -> Ref:
        """The register of `group` that belongs to one of `buffer`: parts that are summed in turn share theirs."""
        parts = () if self.accumulator.promotion is None else self.accumulator.promotion.parts
        if not parts:
            return Ref(self.group, index)
        return Ref(self.group, tuple(ZERO if n in parts else i for n, i in zip(self.buffer.axes, index, strict=True)))

    @property
    def of_part(self) -> Sums:
        """Those of the running part, where parts are summed in turn."""
        promotion = self.accumulator.promotion
        return self if promotion is None else replace(self, outside=self.outside | frozenset(promotion.parts))

    @property
    def is_promoted(self) -> bool:
        return self.accumulator.promotion is not None

    def zeroed(self, *buffers: Buffer) -> Body:
        """These buffers set to zero, element by element; no statement for no buffer."""
        sets = tuple(Assign(Ref(one, self.index), real(0, one.dtype), origin=self.name) for one in buffers)
        return self.over_registers(sets) if sets else ()

    @property
    def declared(self) -> Body:
        """The registers, which hold nothing yet."""
        return tuple(Alloc(buffer) for buffer in dict.fromkeys((self.buffer, self.group)))

    @property
    def index(self) -> tuple[Expr, ...]:
        """The running result of the running accumulator."""
        return self._of(Var(ACCUMULATOR), self._running)

    def index_of(self, number: int) -> tuple[Expr, ...]:
        """The running result of one accumulator."""
        return self._of(Const(number), self._running)

    def tile_of(self, number: int) -> tuple[Expr, ...]:
        """Where the running fragment of one accumulator begins."""
        return self._of(Const(number), self._tile)

    def results_at(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The finished sums of one element; index: of it within an accumulator."""
        return tuple(Load(self.buffer, self._of(Const(n), index)) for n in range(self.accumulator.count))

    def results(self, values: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """The finished sums of the running element, with these values of some digits."""
        return self.results_at(tuple(substitute(one, dict(values)) for one in self._running))

    def _of(self, number: Expr, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if self.accumulator.count == 1:
            return index
        at = self._place_of_number(len(index))
        return (*index[:at], number, *index[at:])

    def _place_of_number(self, digits: int) -> int:
        """Which extent of the buffer counts accumulators, beside so many others: the first; or the last but one, so
        that the fragments of all that an instruction sums together lie one behind the other."""
        return digits - 1 if joined(self.program) else 0

    @property
    def _running(self) -> tuple[Expr, ...]:
        digits = tuple(Var(axis.name) for axis in self.program.sum_axes)
        return digits or (ZERO,) if self.fragment is None else (*digits, Var(FRAGMENT))

    @property
    def _tile(self) -> tuple[Expr, ...]:
        return (*(Var(axis.name) for axis in self.program.sum_axes), ZERO)

    @property
    def first(self) -> Ref:
        """The first register of what products are added to."""
        return Ref(self.group, (ZERO,) * len(self.group.shape))

    def packed(self, first: Expr, element: Expr, width: int) -> tuple[Expr, ...]:
        """The index of the register that an element of a vector of so many from register `first` on is made of."""
        return self.numbered(first + self.in_vector(element, width))

    def in_vector(self, element: Expr, width: int) -> Expr:
        """Which of so many registers an element of a vector is made of that leaves in an order of our own."""
        return in_pair(element) if self.fragment is None and width % 2 == 0 else element

    def numbered(self, number: Expr) -> tuple[Expr, ...]:
        """The index of the register of this number, of all accumulators, one after the other."""
        index, number = self._digits_of(number)
        return self._of(number % self.accumulator.count, index)

    def _digits_of(self, number: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """The index within an accumulator of the register of this number, and what is left of the number."""
        shape = list(self.buffer.shape)
        if self.accumulator.count > 1:
            del shape[self._place_of_number(len(shape) - 1)]
        index: list[Expr] = []
        for extent in reversed(shape):
            index.insert(0, number % extent)
            number = number // extent
        return tuple(index), number

    def named(self, number: Expr) -> Body:
        """`Let`s of the digits of the result whose register has this number within an accumulator."""
        index, _ = self._digits_of(number)
        lets = tuple(Let(axis.name, value) for axis, value in zip(self.program.sum_axes, index, strict=False))
        if self.fragment is None:
            return lets
        return (*lets, Let(FRAGMENT, index[-1]), *_held_at(self.program, self.fragment))

    @property
    def side_by_side(self) -> int:
        """Neighbours along C's contiguous dimension that are in registers which follow each other, as far as they are
        stored together."""
        most = self.program.result_vector
        if self.fragment is not None:
            return most if self._apart == 1 else 1
        run, contiguous = 1, self.program.gemm.operand("C").contiguous
        for axis in reversed(self.program.sum_axes):
            if axis.dim != contiguous or axis.stride != run:
                break
            run *= axis.extent or 1
        return gcd(run, most)

    def index_at(self, element: Expr) -> tuple[Expr, ...]:
        """The result that is `element` further along a vector, within an accumulator."""
        if self.fragment is not None:
            return (*self._tile[:-1], Var(FRAGMENT) + element * self._apart)
        return self._element_index(element) or (ZERO,)

    def over_registers(self, body: Body) -> Body:
        """`body` for each element of the buffer, of every accumulator, wherever in the tile it may be."""
        if self.fragment is not None:
            body = (For(FRAGMENT, Const(self.fragment.registers), body, unroll=True),)
        body, count = self.over_tiles(body), self.accumulator.count
        return body if count == 1 else (For(ACCUMULATOR, Const(count), body, unroll=True),)

    def over_tiles(self, body: Body) -> Body:
        """`body` for each of the digits that a thread counts itself."""
        return over_vectors(self._counted, result_span(self.program), 1, body)

    def over_results(self, body: Body, width: int = 1) -> Body:
        """`body` for each vector of `width` results, the digits of the vector's first element in place of the axes.

        The longer of two loops is the outer one: what the inner one repeats, ptxas keeps in registers from one turn of
        the outer loop to the next, and for 96 columns at once there are none left.
        """
        if self.fragment is None:
            return over_vectors(self._counted, result_span(self.program), width, body)
        registers, held = self.fragment.registers, _held_at(self.program, self.fragment)
        if registers // width > prod(axis.extent or 1 for axis in self._counted):
            return every(FRAGMENT, registers, width, (*held, *self.over_tiles(body)), self._apart)
        return self.over_tiles(every(FRAGMENT, registers, width, (*held, *body), self._apart))

    @property
    def _apart(self) -> int:
        """How many registers of a fragment lie between neighbours along C's contiguous dimension."""
        assert self.fragment is not None
        along = [axis.dim for axis in self.program.instruction_axes].index(self.program.gemm.operand("C").contiguous)
        return self.fragment.apart(along)

    @property
    def _counted(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.program.sum_axes if axis.name not in self.outside)

    def _element_index(self, element: Expr) -> tuple[Expr, ...]:
        digits: dict[str, Expr] = {axis.name: Var(axis.name) for axis in self.program.sum_axes}
        below = 1
        covered = result_span(self.program).covered(self.program.result_vector)
        for axis, values in covered:
            digit = element // below
            digits[axis.name] = digits[axis.name] + (digit if axis is covered[-1][0] else digit % values)
            below *= values
        return tuple(digits.values())


def _held_at(program: Program, fragment: Fragment) -> Body:
    """The digits of m and n that the running register of the running lane holds."""
    row_axis, column_axis, _ = program.instruction_axes
    row, column = fragment.element(lane_of(program), Var(FRAGMENT))
    return Let(row_axis.name, row), Let(column_axis.name, column)
