"""What an epilogue reads that a thread has in registers before it stores the first subtile.

Behind each store to shared memory the compiler loads anew what may have changed. So what has one element, and what
belongs to the rows of a thread, two of each fragment, is loaded once. Under swap-AB, where a thread finishes single
elements, what belongs to its columns is as well: else there is a latency for every 16 columns of a fragment, where no
other warpgroup multiplies meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Ref, Var
from tilewright.ir.finish import as_f32
from tilewright.ir.program import Axis
from tilewright.ir.stmt import Alloc, Body, For, Move
from tilewright.lowering.epilogue_vectors import EpilogueVectors
from tilewright.lowering.kernel_parts import beside, global_place
from tilewright.lowering.subtile_geometry import SubtileGeometry, digits_of
from tilewright.problem.values import Added, AddedName

_COLUMNS, _OWN_COLUMNS, _OWN_ROWS = 8, 2, 2
"""Of eight columns of a fragment of wgmma a lane has two, of its rows two as well."""

_FEW = 8
"""Registers for what belongs to rows."""

_MOST_HELD, _OTHER_REGISTERS = 48, 64
"""Registers of a thread for what it holds, and those beside that and its sums. Seen with NVRTC 13: with two consumers,
tiles of 208 x 128 that hold 56 spill."""

_PART = Var("held_part")


@dataclass(frozen=True)
class HeldVectors(SubtileGeometry):
    """What a warpgroup holds of what the epilogue of a tile of C reads."""

    vectors: EpilogueVectors

    @cached_property
    def buffers(self) -> Mapping[AddedName, Buffer]:
        """The registers, by the names of operands."""
        counts = {one: 1 for one in self.plan.outputs[0].reads if one.single}
        down = {one: self._count(one) for one in self.vectors.vectors if self._runs_down(one)}
        across = {one: self._count(one) for one in self.vectors.vectors if not self._runs_down(one)}
        few = sum(down.values()) <= _FEW
        counts |= down if few else {}
        counts |= across if few and self._has_room(sum((down | across).values())) else {}
        return {
            one.name: Buffer(f"{one.name}_held", Space.REGISTER, self.vectors.dtype(one), (count,))
            for one, count in counts.items()
        }

    def _has_room(self, held: int) -> bool:
        """Whether registers have room for what belongs to columns as well."""
        registers = None if self.program.specialized is None else self.program.specialized.registers
        if registers is None or not self.transposed or self.strided_digits:
            return False
        sums = self.sums.buffer.elements * (2 if self.sums.is_promoted else 1)
        return held <= _MOST_HELD and sums + held + _OTHER_REGISTERS <= registers[1]

    def _runs_down(self, operand: Added) -> bool:
        """Whether a vector runs along the rows of the instruction."""
        return operand.along == self.instruction_axes[0].dim

    @property
    def _digits_down(self) -> tuple[Axis, ...]:
        """The digits of fragments along the rows of the instruction."""
        return self.contiguous_digits if self.transposed else self.strided_digits

    def _count(self, operand: Added) -> int:
        if self._runs_down(operand):
            return prod(axis.extent or 1 for axis in self._digits_down) * _OWN_ROWS
        return self.fragment.columns // _COLUMNS * _OWN_COLUMNS

    def load(self) -> Body:
        """Shared memory, or global memory, -> registers."""
        body: Body = ()
        for operand in (one for one in self.plan.outputs[0].reads if one.name in self.buffers):
            held = self.buffers[operand.name]
            if operand.single:
                move = Move(Ref(held, (ZERO,)), beside(self.program, self._origin, operand.name, ZERO), origin="C")
                body = (*body, Alloc(held), move)
                continue
            down = self._runs_down(operand)
            step = 1 if down else _OWN_COLUMNS
            move = Move(Ref(held, (_PART * step,)), self._source(operand, down), step, origin="C")
            body = (*body, Alloc(held), For(_PART.name, Const(held.elements // step), (move,), unroll=True))
        return body

    def _source(self, operand: Added, down: bool) -> Ref:
        """Where the running part of a vector lies."""
        own = self.fragment.registers // (self.fragment.columns // _COLUMNS)  # of eight columns
        fragment, register = (_PART // _OWN_ROWS, _PART % _OWN_ROWS * _OWN_COLUMNS) if down else (ZERO, _PART * own)
        return self.vectors.place(operand, self.held_in_c(digits_of(fragment, self._digits_down), register), ZERO)

    @property
    def _origin(self) -> Ref:
        """Any place of C: what has one element is found there."""
        return global_place(self.program, "C", ZERO, ZERO)

    def kept(self, digits: Mapping[str, Expr], register: Expr) -> Mapping[AddedName, Expr]:
        """What belongs to a sum of a thread, by the digits of its fragment and the number of its register there."""
        own = self.fragment.registers // (self.fragment.columns // _COLUMNS)
        number: Expr = ZERO
        for axis in self._digits_down:
            number = number * (axis.extent or 1) + digits.get(axis.name, Var(axis.name))
        down = number * _OWN_ROWS + register // _OWN_COLUMNS % _OWN_ROWS
        across = register // own * _OWN_COLUMNS + register % _OWN_COLUMNS
        return {
            one.name: as_f32(
                Load(self.buffers[one.name], (ZERO if one.single else down if self._runs_down(one) else across,))
            )
            for one in self.plan.outputs[0].reads
            if one.name in self.buffers
        }
