"""Scales of blocks, which multiply the sum of a group of k when it is promoted.

    scales of the group -> registers        # loaded when the MMAs of the group are about to start
    sum += sum_group * scale_a * scale_b

A thread holds two rows of a fragment and many columns, or one number for each 128 of either: the scales of its rows,
and those of its columns, are registers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.dtypes import F32
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Var, binary
from tilewright.ir.stmt import Alloc, Body, For, Let, Move
from tilewright.ir.tiles import FRAGMENT
from tilewright.layout.fragment import Fragment, FragmentDigit, Holder
from tilewright.lowering.coordinates import index_of, lane_of
from tilewright.lowering.located import base_of, end_of, matrix_of, origin_of
from tilewright.lowering.sums import Sums
from tilewright.problem.block_scales import NAMES, BlockScaleName, BlockScales, step_names

_NUMBER = "scale_number"


@dataclass(frozen=True, slots=True)
class Side:
    """The scales that a thread holds along the rows (0) or the columns (1) of its fragments."""

    sums: Sums
    scales: BlockScales
    index: Literal[0, 1]

    @property
    def fragment(self) -> Fragment:
        assert self.sums.fragment is not None
        return self.sums.fragment

    @property
    def dim(self) -> Literal["m", "n"]:
        dim = self.sums.program.instruction_axes[self.index].dim
        assert dim != "k"
        return dim

    @property
    def name(self) -> BlockScaleName:
        return NAMES[0] if self.dim == "m" else NAMES[1]

    @property
    def extent(self) -> int:
        """Rows or columns of a fragment."""
        return self.fragment.rows if self.index == 0 else self.fragment.columns

    @property
    def block(self) -> int:
        """Rows or columns that share a scale."""
        return self.scales.side(self.name)

    @property
    def count(self) -> int:
        """Scales for a fragment of a thread."""
        if self.block > 1:
            return max(1, self.extent // self.block)
        count = 1
        for digit in self._digits:
            count *= digit.extent
        return count

    @property
    def _digits(self) -> tuple[FragmentDigit, ...]:
        return tuple(d for d in self.fragment.digits if d.holder is Holder.REGISTER and d.index == self.index)

    @property
    def _tiles(self) -> tuple[str, ...]:
        """Digits of the tile along which fragments have scales of their own."""
        return tuple(axis.name for axis in self.sums.program.sum_axes if axis.dim == self.dim)

    @property
    def buffer(self) -> Buffer:
        extents = tuple(axis.extent or 1 for axis in self.sums.program.sum_axes if axis.dim == self.dim)
        shape, names = (*extents, self.count), (*self._tiles, _NUMBER)
        return Buffer(f"{self.name}_held", Space.REGISTER, F32, shape, names)

    def scale(self, register: Expr) -> Expr:
        """The scale of the element in a register of the running fragment."""
        return Load(self.buffer, (*(Var(name) for name in self._tiles), self._number_of(register)))

    def _number_of(self, register: Expr) -> Expr:
        """Which of its scales a thread needs for an element."""
        if self.block > 1:
            if self.count == 1:
                return ZERO
            place: Expr = self.fragment.element(ZERO, register)[self.index]
            return binary(Op.DIV, place, self.block)
        number: Expr = ZERO
        below = 1
        for digit in self._digits:
            number = number + register // digit.step % digit.extent * below
            below *= digit.extent
        return number

    def _place_of(self, number: Expr) -> Expr:
        """The row or column of the fragment to which a scale belongs, or the first of its block."""
        if self.block > 1:
            return number * self.block
        register: Expr = ZERO
        below = 1
        for digit in self._digits:
            register = register + number // below % digit.extent * digit.step
            below *= digit.extent
        place: Expr = self.fragment.element(lane_of(self.sums.program), register)[self.index]
        return place

    def load(self, block_of_k: Expr) -> Body:
        """The scales of a block of k into registers; 0 beyond the matrix."""
        program, dim = self.sums.program, self.dim
        axis = program.instruction_axes[self.index]
        at = index_of(program, dim) + origin_of(program, dim)
        block = at if self.block == 1 else binary(Op.DIV, at, self.block)
        along, deep = (Var(step) for step in step_names(self.name))
        offset = block * along + block_of_k * deep
        bases = (base_of(program, self.name, number) for number in matrix_of(program, self.name))
        source = Ref(Buffer(self.name, Space.GLOBAL, F32, ()), (*bases, offset))
        held = Ref(self.buffer, (*(Var(name) for name in self._tiles), Var(_NUMBER)))
        inside = binary(Op.LT, at, end_of(program, dim))
        body: Body = (Let(axis.name, self._place_of(Var(_NUMBER))), Move(held, source, 1, inside, origin=self.name))
        body = (For(_NUMBER, Const(self.count), body, unroll=True),)
        for other in reversed(program.sum_axes):
            if other.dim == dim:
                body = (For(other.name, Const(other.extent or 1), body, unroll=True),)
        return (Alloc(self.buffer), *body)


def sides(sums: Sums) -> tuple[Side, Side] | None:
    """The scales of rows and of columns, where the promotion of a sum has any."""
    promotion = sums.accumulator.promotion
    if promotion is None or promotion.scales is None:
        return None
    return Side(sums, promotion.scales, 0), Side(sums, promotion.scales, 1)


def load_scales(sums: Sums, iteration: Expr) -> Body:
    """The scales of the group of k that an iteration sums; nothing where there are none."""
    found = sides(sums)
    if found is None:
        return ()
    origin = origin_of(sums.program, "k")
    block = iteration if origin == ZERO else iteration + binary(Op.DIV, origin, found[0].scales.depth)
    return tuple(stmt for side in found for stmt in side.load(block))


def scale_of_running(sums: Sums) -> Expr | None:
    """What the running register of a group is multiplied by; None for nothing."""
    found = sides(sums)
    if found is None:
        return None
    rows, columns = (side.scale(Var(FRAGMENT)) for side in found)
    return Binary(Op.MUL, rows, columns)


def check_block_scales(sums: Sums) -> None:
    """Raise LoweringError where the blocks of columns are not those of the fragments."""
    found = sides(sums)
    if found is None:
        return
    for side in found:
        if side.block > 1 and side.extent % side.block and side.block % side.extent:
            raise LoweringError(
                f"Scales of {side.block} {side.dim} do not divide a tile of {side.extent}, nor it them.",
                hint=f"use an instruction of {side.block} columns, or a divisor or multiple of it.",
            )
