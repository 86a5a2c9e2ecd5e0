"""Where the elements of a warpgroup's epilogue subtiles lie: in stages of shared memory, and in C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilewright.ir.async_stmt import TeamBarrier
from tilewright.ir.expr import ZERO, Const, Expr, Ref, Var
from tilewright.ir.program import GROUP_LANES, Axis, Program
from tilewright.ir.tiles import Tile
from tilewright.ir.visit import substitute
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.epilogue import subtile_layout
from tilewright.layout.fragment import Fragment
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, ROUND, TURN, digit_sum, index_of
from tilewright.lowering.epilogue_plan import EpiloguePlan, Subtile
from tilewright.lowering.kernel_parts import global_place
from tilewright.lowering.sums import Sums

LANE, SUBTILE = Var(GROUP_LANE), Var("subtile")
"""Of the running thread within its warpgroup; the running epilogue subtile."""


def digits_of(number: Expr, axes: tuple[Axis, ...]) -> dict[str, Expr]:
    """The digits of a number, the first of them the most significant."""
    found: dict[str, Expr] = {}
    for axis in reversed(axes):
        found[axis.name] = number % (axis.extent or 1) if axis is not axes[0] else number
        number = number // (axis.extent or 1)
    return found


@dataclass(frozen=True)
class SubtileGeometry:
    """Where the elements of a warpgroup's epilogue subtiles lie: in registers, in shared memory, in C."""

    program: Program
    plan: EpiloguePlan
    sums: Sums

    @cached_property
    def tile(self) -> Tile:
        assert self.plan.tile is not None
        return self.plan.tile

    @cached_property
    def fragment(self) -> Fragment:
        assert self.sums.fragment is not None
        return self.sums.fragment

    @cached_property
    def instruction_axes(self) -> tuple[Axis, Axis]:
        """The digits along the rows and the columns of the instruction."""
        rows, columns, _ = self.program.instruction_axes
        return rows, columns

    @cached_property
    def transposed(self) -> bool:
        """Whether C's contiguous dimension runs along the rows of the instruction."""
        return self.instruction_axes[0].dim == self.program.gemm.operand("C").contiguous

    @cached_property
    def rows(self) -> int:
        """Rows of a subtile: of C's strided dimension that belong to one warpgroup."""
        operand = self.program.gemm.operand("C")
        loops = (loop for loop in self.program.thread_loops if operand.strided in loop.dims)
        return self.tile.rows // prod(loop.extent or 1 for loop in loops)

    # - registers -----------------------------------------------------------------------------------------------------

    @cached_property
    def strided_digits(self) -> tuple[Axis, ...]:
        """The digits of fragments along C's strided dimension."""
        dim = self.program.gemm.operand("C").strided
        return tuple(axis for axis in self.program.sum_axes if axis.dim == dim)

    @cached_property
    def contiguous_digits(self) -> tuple[Axis, ...]:
        dim = self.program.gemm.operand("C").contiguous
        axes = (axis for axis in self.program.sum_axes if axis.dim == dim)
        return tuple(sorted(axes, key=lambda axis: -axis.stride))

    def split(self, number: Expr) -> dict[str, Expr]:
        """The digits of the fragment of this number along C's contiguous dimension."""
        return digits_of(number, self.contiguous_digits)

    # -- stages -----------------------------------------------------------------------------------------------------

    @cached_property
    def ping_pong(self) -> int:
        """Warpgroups that have tiles of C of their own; 1 where all share one."""
        return 1 if self.program.specialized is None else self.program.specialized.ping_pong

    @cached_property
    def group(self) -> Expr:
        """The number of the running warpgroup."""
        if self.program.specialized is not None:
            return Var(GROUP)
        loops = self.program.thread_loops
        return Var(loops[0].name) if loops else ZERO

    def meet(self) -> TeamBarrier:
        return TeamBarrier(self.group + 1, GROUP_LANES)

    def stage(self, subtile: Subtile) -> tuple[Expr, ...]:
        """The index of the stage of the running subtile."""
        if self.tile.slots == 1:
            return ()
        stages = self.plan.stages
        stage: Expr = self._number(subtile) % stages if stages > 1 else ZERO
        return (self.group * stages + stage if self.ping_pong > 1 else stage,)

    def _number(self, subtile: Subtile) -> Expr:
        """Counts the subtiles that a warpgroup stores, so that two that follow each other never share a stage."""
        count = sum(one.count for one in self.plan.subtiles)
        own = self.running(subtile)
        if count % self.plan.stages == 0 or not self.program.persistent:
            return own
        return Var(ROUND if self.ping_pong > 1 else TURN) * count + own

    # -- shared memory ----------------------------------------------------------------------------------------------

    def layout(self, subtile: Subtile) -> SwizzleAtoms | None:
        """The swizzle atoms of a subtile; None for plain rows."""
        declared = self.tile.staged.arrangement
        if subtile.number == 0 and subtile.columns == self.plan.subtiles[0].columns:
            return declared if isinstance(declared, SwizzleAtoms) else None
        if isinstance(declared, SwizzleAtoms) and subtile.columns % declared.columns == 0:
            return declared
        return subtile_layout(subtile.columns, self.tile.dtype.bytes, transposed=self.transposed)

    def first_row(self) -> Expr:
        """The first row of the running warpgroup within the tile."""
        return digit_sum(self._own_axes(self.program.gemm.operand("C").strided))

    def shared(self, subtile: Subtile, row: Expr, column: Expr) -> Ref:
        """An element of the running subtile in shared memory; row: within the tile, column: within the subtile."""
        atoms = self.layout(subtile)
        if self.tile.uneven:
            return Ref(self.tile.shared_buffer, (*self.stage(subtile), self._dense(subtile, atoms, row, column)))
        if atoms is None:
            return Ref(self.tile.shared_buffer, (*self.stage(subtile), row, column))
        wide = atoms.columns
        number = self._first_atom(subtile, wide) + column // wide
        return Ref(self.tile.shared_buffer, (*self.stage(subtile), number, row, atoms.column(row, column % wide, wide)))

    def _dense(self, subtile: Subtile, atoms: SwizzleAtoms | None, row: Expr, column: Expr) -> Expr:
        """The element of a stage: each warpgroup's subtile is in one piece, wherever narrower ones end."""
        widest = self.plan.subtiles[0].columns
        own = self.first_row() * widest
        row = row - self.first_row()
        if atoms is None:
            return own + row * subtile.columns + column
        wide = atoms.columns
        inside: Expr = atoms.column(row, column % wide, wide)
        return own + column // wide * (self.rows * wide) + row * wide + inside

    def _first_atom(self, subtile: Subtile, wide: int) -> Expr:
        """The first atom of the running warpgroup, where warpgroups have columns of their own."""
        axes = self._own_axes(self.program.gemm.operand("C").contiguous)
        number: Expr = ZERO
        for axis in axes:
            number = number * (axis.extent or 1) + Var(axis.name)
        return number * (subtile.columns // wide)

    def _own_axes(self, dim: str) -> tuple[Axis, ...]:
        return tuple(axis for loop in self.program.thread_loops for axis in loop.axes if axis.dim == dim)

    # -- C ----------------------------------------------------------------------------------------------------------

    def running(self, subtile: Subtile) -> Expr:
        """The number of the running subtile: those of one width are counted by a loop."""
        return SUBTILE if subtile.count > 1 or subtile.number == 0 else Const(subtile.number)

    def first_column(self, subtile: Subtile) -> Expr:
        """The first column of the running subtile among those of its warpgroup."""
        return self.running(subtile) * subtile.columns if subtile.number == 0 else Const(subtile.first)

    def corner(self, subtile: Subtile) -> tuple[Expr, Expr]:
        """The element of C's strided and of its contiguous dimension at which the running subtile begins."""
        program, operand = self.program, self.program.gemm.operand("C")
        outside = (
            tuple(a for a in program.axes_of(dim) if any(a in loop.axes for loop in program.grid_loops))
            for dim in (operand.strided, operand.contiguous)
        )
        row, column = (digit_sum(axes) for axes in outside)
        own = digit_sum(self._own_axes(operand.contiguous))
        return row + self.first_row(), column + own + self.first_column(subtile)

    def held_in_c(self, digits: Mapping[str, Expr], register: Expr) -> Ref:
        """The element of C that a register of a fragment holds. digits: of the fragment."""
        rows, columns = self.instruction_axes
        row, column = self.fragment.element(LANE, register)
        spot = {**digits, rows.name: row, columns.name: column}
        row, column = (substitute(index_of(self.program, dim), spot) for dim in self.program.gemm.operand("C").dims)
        return global_place(self.program, "C", row, column)

    def in_c(self, strided: Expr, contiguous: Expr) -> Ref:
        """An element of C in global memory."""
        by_row = self.program.gemm.operand("C").contiguous == "n"
        return global_place(self.program, "C", *((strided, contiguous) if by_row else (contiguous, strided)))
