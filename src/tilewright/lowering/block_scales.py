"""Scales of blocks, which multiply the sum of a group of k when it is promoted.

    a warp of the producer   cp.async: scales of the tile for the group -> the stage of its tiles
    consumers                MMAs of the stage;  stage -> registers;  sum += sum_group * (scale_a * scale_b)

A thread holds two rows of a fragment and many columns, or one number for each 128 of either: the scales of its rows,
and those of its columns, are registers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from tilewright.dtypes import F32
from tilewright.ir.async_stmt import ArriveBarrier
from tilewright.ir.buffer import Buffer, Handoff, Ref, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Load, Op, Var, binary
from tilewright.ir.program import WARP_LANES
from tilewright.ir.stmt import Alloc, Body, For, If, Let, Move, Stmt
from tilewright.ir.tiles import FRAGMENT
from tilewright.layout.fragment import Fragment, FragmentDigit, Holder
from tilewright.lowering.coordinates import digit_sum, lane_of, tile_digits
from tilewright.lowering.located import base_of, end_of, matrix_of, origin_of
from tilewright.lowering.sums import Sums
from tilewright.problem.block_scales import NAMES, BlockScaleName, BlockScales, step_names
from tilewright.units import ceil_div

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
    def _together(self) -> int:
        """Neighbouring rows or columns of a fragment, from a multiple of them on, that share a scale in each tile."""
        return gcd(self.extent, self.block)

    @property
    def count(self) -> int:
        """Scales for a fragment of a thread."""
        if self.block > 1:
            return self.extent // self._together
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
            return binary(Op.DIV, place, self._together)
        number: Expr = ZERO
        below = 1
        for digit in self._digits:
            number = number + register // digit.step % digit.extent * below
            below *= digit.extent
        return number

    def _place_of(self, number: Expr) -> Expr:
        """The row or column of the fragment to which a scale belongs, or the first of those that share it."""
        if self.block > 1:
            return number * self._together
        register: Expr = ZERO
        below = 1
        for digit in self._digits:
            register = register + number // below % digit.extent * digit.step
            below *= digit.extent
        place: Expr = self.fragment.element(lane_of(self.sums.program), register)[self.index]
        return place

    # -- the stream -------------------------------------------------------------------------------------------------

    @property
    def _tile(self) -> int:
        """Rows or columns of a tile of C."""
        return self.sums.program.block_tile(self.dim)

    @property
    def _shared_by(self) -> int:
        """Rows or columns of a tile that share an entry of the stream."""
        return gcd(self._tile, self.block)

    @property
    def _entries(self) -> int:
        """Scales of a tile for a block of k."""
        return self._tile // self._shared_by

    def _entry(self, stages: int, stage: Expr, entry: Expr) -> Ref:
        """A scale in shared memory."""
        shape, names = (stages, self._entries), ("stage", f"{self.dim}_in_tile")
        name = f"{self.name}_tile"
        buffer = Buffer(name, Space.SHARED, F32, shape, names, stages=stages, handoff=Handoff.MBARRIERS)
        return Ref(buffer, (stage, entry))

    def copy(self, stages: int, stage: Expr, block_of_k: Expr, lane: Expr) -> Body:
        """The scales of a block of k are on their way to a stage, by a warp; 0 beyond the matrix."""
        program, dim = self.sums.program, self.dim
        entry, at = lane + Var(_NUMBER) * WARP_LANES, Var(f"{self.name}_at")
        first = digit_sum(tile_digits(program, dim)) + entry * self._shared_by + origin_of(program, dim)
        block = at if self.block == 1 else binary(Op.DIV, at, self.block)
        along, deep = (Var(step) for step in step_names(self.name))
        bases = (base_of(program, self.name, number) for number in matrix_of(program, self.name))
        source = Ref(Buffer(self.name, Space.GLOBAL, F32, ()), (*bases, block * along + block_of_k * deep))
        inside, there = binary(Op.LT, at, end_of(program, dim)), self._entry(stages, stage, entry)
        body: Body = (Let(at.name, first), Move(there, source, 1, inside, origin=self.name, asynchronous=True))
        if self._entries % WARP_LANES:
            body = (If(binary(Op.LT, entry, self._entries), body),)
        return (For(_NUMBER, Const(ceil_div(self._entries, WARP_LANES)), body, unroll=True),)

    def read(self, stages: int, stage: Expr) -> Body:
        """The scales of a thread from a stage into registers."""
        program, dim = self.sums.program, self.dim
        outside = tile_digits(program, dim)
        axis = program.instruction_axes[self.index]
        together = 2 if self.index == 1 and self.block == 1 else 1  # neighbours of a row are a thread's
        number = Var(_NUMBER) * together
        own = digit_sum(tuple(one for one in program.axes_of(dim) if one not in outside))
        entry = own if self._shared_by == 1 else binary(Op.DIV, own, self._shared_by)
        held = Ref(self.buffer, (*(Var(name) for name in self._tiles), number))
        load = Move(held, self._entry(stages, stage, entry), together, origin=self.name)
        body: Body = (Let(axis.name, self._place_of(number)), load)
        body = (For(_NUMBER, Const(self.count // together), body, unroll=True),)
        for other in reversed(program.sum_axes):
            if other.dim == dim and other.name not in self.sums.outside:
                body = (For(other.name, Const(other.extent or 1), body, unroll=True),)
        return (Alloc(self.buffer), *body)


@dataclass(frozen=True, slots=True)
class ScaleStream:
    """The scales that come with the stages of a ring: as many as a tile has for a block of k, by a warp. sides:
    none where a kernel has no such scales."""

    sides: tuple[Side, ...]
    stages: int

    def __bool__(self) -> bool:
        return bool(self.sides)

    @property
    def arrivals(self) -> int:
        """At the barrier of a stage, beside that of the thread that starts the copies."""
        return WARP_LANES if self.sides else 0

    def copy(self, lane: Expr, iteration: Expr, stage: Expr, empty: Stmt, full: Ref) -> Body:
        """The scales of an iteration. No thread waits until they are there, so that as many are on their way as there
        are stages. empty: the wait for the stage."""
        program = self.sides[0].sums.program
        origin = origin_of(program, "k")
        block = iteration if origin == ZERO else iteration + binary(Op.DIV, origin, self.sides[0].scales.depth)
        copies = (stmt for side in self.sides for stmt in side.copy(self.stages, stage, block, lane))
        return (empty, *copies, ArriveBarrier(full, behind_copies=True))

    @property
    def in_front(self) -> bool:
        """Whether a thread reads the scales of a stage in front of its MMAs: where it has one for each of its columns.
        So many take longer than MMAs do. Few are read beside them: in front they would hold them up, and the MMAs of
        another warpgroup let them wait. On an H100, 8192^3: 128 columns in front 923 TFLOP/s, beside 829; one column
        in front 1181, beside 1267."""
        return any(side.index == 1 and side.block == 1 for side in self.sides)

    def read(self, stage: Expr) -> Body:
        """The scales of a thread for the running stage, which is full, into registers."""
        return tuple(stmt for side in self.sides for stmt in side.read(self.stages, stage))


def sides(sums: Sums) -> tuple[Side, Side] | None:
    """The scales of rows and of columns, where the promotion of a sum has any."""
    promotion = sums.accumulator.promotion
    if promotion is None or promotion.scales is None:
        return None
    return Side(sums, promotion.scales, 0), Side(sums, promotion.scales, 1)


def scale_of_running(sums: Sums) -> Expr | None:
    """What the running register of a group is multiplied by; None for nothing."""
    found = sides(sums)
    if found is None:
        return None
    rows, columns = (side.scale(Var(FRAGMENT)) for side in found)
    return Binary(Op.MUL, rows, columns)
