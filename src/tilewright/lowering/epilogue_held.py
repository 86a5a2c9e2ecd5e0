"""Vectors of an epilogue that a thread has in registers before it stores the first subtile, under swap-AB.

There C's contiguous dimension runs along the rows of the instruction, so a thread finishes single elements, and needs
what it has of each vector again and again, behind stores to shared memory that loads from there do not pass: a latency
for every 16 columns of a fragment, where no other warpgroup multiplies meanwhile. So all of it is read at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Var
from tilewright.ir.finish import as_f32
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Alloc, Body, For, Move
from tilewright.lowering.coordinates import index_of
from tilewright.lowering.epilogue_vectors import EpilogueVectors
from tilewright.lowering.kernel_parts import global_place
from tilewright.lowering.subtile_geometry import LANE, SubtileGeometry
from tilewright.problem.values import Added, AddedName

_COLUMNS, _OWN_COLUMNS, _OWN_ROWS = 8, 2, 2
"""Of eight columns of a fragment of wgmma a lane has two, of its rows two as well."""

_MOST_HELD, _OTHER_REGISTERS = 48, 64
"""Registers of a thread for what it holds, and those beside that and its sums. Seen with NVRTC 13: with two consumers,
tiles of 208 x 128 that hold 56 spill."""

_PART = Var("held_part")


@dataclass(frozen=True)
class HeldVectors(SubtileGeometry):
    """What a warpgroup holds of the vectors of a tile of C."""

    vectors: EpilogueVectors

    @cached_property
    def buffers(self) -> Mapping[AddedName, Buffer]:
        """The registers, by the names of operands: all that pass through shared memory, or none."""
        registers = None if self.program.specialized is None else self.program.specialized.registers
        if not self.vectors.vectors or registers is None or not self.transposed or self.strided_digits:
            return {}
        counts = {operand: self._count(operand) for operand in self.vectors.vectors}
        held, sums = sum(counts.values()), self.sums.buffer.elements * (2 if self.sums.is_promoted else 1)
        if held > _MOST_HELD or sums + held + _OTHER_REGISTERS > registers[1]:
            return {}
        return {
            operand.name: Buffer(f"{operand.name}_held", Space.REGISTER, self.vectors.dtype(operand), (count,))
            for operand, count in counts.items()
        }

    def _runs_down(self, operand: Added) -> bool:
        """Whether a vector runs along the rows of the instruction."""
        return operand.along == self.program.gemm.operand("C").contiguous

    def _count(self, operand: Added) -> int:
        if self._runs_down(operand):
            return self.sums.buffer.elements // self.fragment.registers * _OWN_ROWS
        return self.fragment.columns // _COLUMNS * _OWN_COLUMNS

    def load(self) -> Body:
        """Shared memory -> registers."""
        body: Body = ()
        for operand in self.vectors.vectors:
            held = self.buffers.get(operand.name)
            if held is None:
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
        rows, columns = self.instruction_axes
        row, column = self.fragment.element(LANE, register)
        spot = {**self.split(fragment), rows.name: row, columns.name: column}
        place = [substitute(index_of(self.program, dim), spot) for dim in self.program.gemm.operand("C").dims]
        return self.vectors.place(operand, global_place(self.program, "C", place[0], place[1]), ZERO)

    def kept(self, register: Expr) -> Mapping[AddedName, Expr]:
        """What belongs to a sum of a thread, by the number of its register, those of one fragment after the other."""
        own = self.fragment.registers // (self.fragment.columns // _COLUMNS)
        in_fragment = register % self.fragment.registers
        down = register // self.fragment.registers * _OWN_ROWS + in_fragment // _OWN_COLUMNS % _OWN_ROWS
        across = in_fragment // own * _OWN_COLUMNS + in_fragment % _OWN_COLUMNS
        return {
            operand.name: as_f32(Load(self.buffers[operand.name], (down if self._runs_down(operand) else across,)))
            for operand in self.vectors.vectors
            if operand.name in self.buffers
        }
