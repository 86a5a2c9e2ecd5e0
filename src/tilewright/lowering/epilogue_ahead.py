"""Matrices that an epilogue reads, in registers some chunks before the chunk of a subtile that needs them.

    the first chunks      loads of each
    chunk 0               finished, put into the stage;  loads of chunk 4
    chunk 1               finished, put into the stage;  loads of chunk 5
    ...

Behind each store to shared memory the compiler loads nothing early that may have changed. A load where its value is
needed would be a latency of memory for each 16 columns; so these are under way together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.dtypes import DType
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Op, Var, binary
from tilewright.ir.register_budgets import MAX_REGISTERS, register_budgets
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Alloc, Body, For, If, Move
from tilewright.lowering.coordinates import index_of
from tilewright.lowering.kernel_parts import ELEMENT, beside, global_place
from tilewright.lowering.subtile_geometry import LANE, SubtileGeometry
from tilewright.problem.values import AddedName
from tilewright.units import ceil_div

_MOST_CHUNKS = 4
"""That are loaded ahead."""

_OTHER_REGISTERS = 64
"""Of a thread, beside its sums and what it loads ahead. Source: as of `epilogue_held`."""

_REGISTER_BYTES = 4
_NUMBER = "ahead"

Digits = tuple[dict[str, Expr], Expr]
"""The digits of the fragment of a chunk, and the first register of the chunk there."""


@dataclass(frozen=True)
class MatricesAhead(SubtileGeometry):
    """The registers of a thread for what it loads ahead, and the loads. names: of the matrices; count: of chunks that
    follow each other; registers: of a thread that a chunk of sums has."""

    names: tuple[AddedName, ...]
    count: int
    registers: int

    @cached_property
    def _matrices(self) -> Mapping[AddedName, DType]:
        return {name: self.program.gemm.operand(name).dtype for name in self.names}

    @cached_property
    def chunks(self) -> int:
        """That are loaded ahead; 0 where nothing is, as there are no registers."""
        each = sum(ceil_div(self.registers * dtype.bytes, _REGISTER_BYTES) for dtype in self._matrices.values())
        return min(self._room // each, _MOST_CHUNKS, self.count) if each else 0

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

    def around(self, chunk: Var, held: Callable[[Expr], Digits], body: Body) -> Body:
        """A loop over chunks with the loads of those ahead. held: of a chunk."""
        ahead, count = self.chunks, self.count
        first: Body = ()
        if ahead:
            loads = For(chunk.name, Const(ahead), self._loads(chunk, held), unroll=True)
            first = (*(Alloc(self._buffer(name)) for name in self._matrices), loads)
        if 0 < ahead < count:
            body = (*body, If(binary(Op.LT, chunk + ahead, count), self._loads(chunk + ahead, held)))
        return (*first, For(chunk.name, Const(count), body, unroll=True))

    def _loads(self, chunk: Expr, held: Callable[[Expr], Digits]) -> Body:
        """Of one chunk."""
        digits, first = held(chunk)
        number = Var(_NUMBER) * self._width
        row, column = self.fragment.element(LANE, first + number)
        rows, columns = self.instruction_axes
        spot = {**digits, rows.name: row, columns.name: column}
        index = [substitute(index_of(self.program, dim), spot) for dim in self.program.gemm.operand("C").dims]
        place = global_place(self.program, "C", index[0], index[1])
        moves = tuple(
            Move(
                Ref(self._buffer(name), (chunk % self.chunks, number)),
                place if name == "C" else beside(self.program, place, name),
                self._width,
                origin="C",
            )
            for name in self._matrices
        )
        return (For(_NUMBER, Const(self.registers // self._width), moves, unroll=True),)

    def loaded(self, chunk: Expr, register: Expr, width: int) -> Mapping[AddedName, Expr]:
        """What belongs to a sum of the running chunk, by its number there; with several, to each of them."""
        element: Expr = Var(ELEMENT) if width > 1 else ZERO
        return {
            name: Load(self._buffer(name), (chunk % self.chunks, register + element))
            for name in (self._matrices if self.chunks else ())
        }
