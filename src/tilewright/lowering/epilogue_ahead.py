"""Matrices that an epilogue reads, in registers some chunks before the chunk of a subtile that needs them.

    the first four chunks   loads of each
    chunk 0                 finished, put into the stage;  loads of chunk 4
    chunk 1                 finished, put into the stage;  loads of chunk 5
    ...                     whatever subtile and fragment they are of

Behind each store to shared memory the compiler loads nothing early that may have changed. A load where its value is
needed would be a latency of memory for each 16 columns; so these are under way together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilewright.dtypes import DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.register_budgets import MAX_REGISTERS, register_budgets
from tilewright.ir.stmt import Alloc, Body, For, If, Move
from tilewright.ir.visit import substitute
from tilewright.lowering.kernel_parts import beside, running_element
from tilewright.lowering.subtile_geometry import SubtileGeometry
from tilewright.problem.values import AddedName
from tilewright.units import ceil_div

_MOST_CHUNKS = 4
"""That are loaded ahead."""

_MOST_REGISTERS = 16
"""Of a thread for what is loaded ahead: with 32 more kernels spill (NVRTC 13.5)."""

_OTHER_REGISTERS = 64
"""Of a thread, beside its sums and what it loads ahead. Source: as of `epilogue_held`."""

_REGISTER_BYTES = 4
_AHEAD, _STEP = "ahead", Var("step_ahead")


@dataclass(frozen=True)
class MatricesAhead(SubtileGeometry):
    """The registers of a thread for what it loads ahead, and the loads. names: of the matrices; loops: variables and
    extents of those over chunks, outermost first; registers: of a thread that a chunk of sums has; held: the digits of
    the running chunk's fragment, and the chunk's first register there."""

    names: tuple[AddedName, ...]
    loops: tuple[tuple[Var, int], ...]
    registers: int
    held: tuple[dict[str, Expr], Expr]

    @cached_property
    def _matrices(self) -> Mapping[AddedName, DType]:
        return {name: self.program.gemm.operand(name).dtype for name in self.names}

    @cached_property
    def chunks(self) -> int:
        """That are loaded ahead; 0 where nothing is, as there are no registers."""
        whole = 1 if self._width > 1 else _REGISTER_BYTES  # an element that comes alone has a register of its own
        each = sum(
            ceil_div(self.registers * max(dtype.bytes, whole), _REGISTER_BYTES) for dtype in self._matrices.values()
        )
        return min(min(self._room, _MOST_REGISTERS) // each, _MOST_CHUNKS, self._count) if each else 0

    @property
    def _room(self) -> int:
        """Registers of a thread for what is loaded ahead."""
        most = MAX_REGISTERS if self.program.specialized is None else register_budgets(self.program)[1]
        sums = self.sums.buffer.elements * (2 if self.sums.is_promoted else 1)
        return max(most - sums - _OTHER_REGISTERS, 0)

    def _buffer(self, name: AddedName) -> Buffer:
        return Buffer(f"{name}_ahead", Space.REGISTER, self._matrices[name], (self.chunks, self.registers))

    @property
    def _width(self) -> int:
        """Neighbours of a row that one load takes."""
        return 1 if self.transposed else self.fragment.neighbours(1)

    @property
    def _count(self) -> int:
        """Of chunks."""
        return prod(extent for _, extent in self.loops)

    @property
    def _chunk_number(self) -> Expr:
        """Of the running chunk."""
        number: Expr = ZERO
        for loop, extent in self.loops:
            number = number * extent + loop
        return number

    def begin(self) -> Body:
        """Before the first chunk."""
        if not self.chunks:
            return ()
        loads = For(_STEP.name, Const(self.chunks), self._loads(_STEP), unroll=True)
        return (*(Alloc(self._buffer(name)) for name in self._matrices), loads)

    def go_on(self) -> Body:
        """Behind a chunk: the loads of the one that takes its registers."""
        if not 0 < self.chunks < self._count:
            return ()
        number = self._chunk_number + self.chunks
        return (If(binary(Op.LT, number, self._count), self._loads(number)),)

    def _loads(self, number: Expr) -> Body:
        """Of the chunk with a number."""
        digits, first = self.held
        register = Var(_AHEAD) * self._width
        place, values = self.held_in_c(digits, first + register), self._values(number)
        moves = tuple(
            Move(
                Ref(self._buffer(name), (number % self.chunks, register)),
                self._at(beside(self.program, place, name), values),
                self._width,
                origin="C",
            )
            for name in self._matrices
        )
        return (For(_AHEAD, Const(self.registers // self._width), moves, unroll=True),)

    def _values(self, number: Expr) -> dict[str, Expr]:
        """Of the variables of loops, for the chunk with a number."""
        found: dict[str, Expr] = {}
        for loop, extent in reversed(self.loops):
            found[loop.name] = number if loop == self.loops[0][0] else number % extent
            number = number // extent
        return found

    @staticmethod
    def _at(place: Ref, values: Mapping[str, Expr]) -> Ref:
        return Ref(place.buffer, tuple(substitute(one, values) for one in place.index))

    def loaded(self, register: Expr, width: int) -> Mapping[AddedName, Expr]:
        """What belongs to a sum of the running chunk, by its number there; with several, to each of them."""
        element = running_element(width)
        return {
            name: Load(self._buffer(name), (self._chunk_number % self.chunks, register + element))
            for name in (self._matrices if self.chunks else ())
        }
