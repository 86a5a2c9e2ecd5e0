"""Scales of blocks, which multiply the sum of a group of k when it is promoted.

    consumers                MMAs, and memory -> registers, for the next group;  sum += sum_group * (scale_a * scale_b)
    a warp of the producer   cp.async: where each column has a scale, those of the tile -> the stage of its tiles

A thread holds two rows of a fragment and many columns, or one number for each 128 of either: the scales of its rows,
and those of its columns, are registers of their own. Where these are few, a thread loads its own a group ahead
(`OwnScales`). A scale for each column of an instruction is too many for that: all threads need them, and they come with
the tiles (`ScaleStream`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from tilewright.dtypes import F32
from tilewright.ir.async_stmt import ArriveBarrier
from tilewright.ir.buffer import Buffer, Handoff, Ref, Space
from tilewright.ir.expr import TRUE, ZERO, Binary, Const, Expr, Load, Op, Var, binary, both
from tilewright.ir.program import WARP_LANES
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move, Stmt
from tilewright.ir.tiles import FRAGMENT
from tilewright.layout.fragment import Fragment, FragmentDigit, Holder
from tilewright.lowering.coordinates import digit_sum, lane_of, tile_digits
from tilewright.lowering.kernel_parts import if_any
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

    @property
    def is_streamed(self) -> bool:
        """Whether the scales come to shared memory, for all threads: one for each column of an instruction."""
        return self.index == 1 and self.block == 1

    def _source(self, at: Expr, block_of_k: Expr, exact: frozenset[str] = frozenset()) -> tuple[Ref, Expr]:
        """A scale in memory, of row or column `at`, and whether there is one. exact: sizes that tiles divide."""
        program = self.sums.program
        block = at if self.block == 1 else binary(Op.DIV, at, self.block)
        along, deep = (Var(step) for step in step_names(self.name))
        bases = (base_of(program, self.name, number) for number in matrix_of(program, self.name))
        source = Ref(Buffer(self.name, Space.GLOBAL, F32, ()), (*bases, block * along + block_of_k * deep))
        return source, TRUE if self.dim in exact else binary(Op.LT, at, end_of(program, self.dim))

    def _over_numbers(self, body: Body, together: int = 1) -> Body:
        """`body` for each scale of a thread, or for each `together` of them."""
        body = (For(_NUMBER, Const(self.count // together), body, unroll=True),)
        for other in reversed(self.sums.program.sum_axes):
            if other.dim == self.dim and other.name not in self.sums.outside:
                body = (For(other.name, Const(other.extent or 1), body, unroll=True),)
        return body

    # -- loaded by a thread -----------------------------------------------------------------------------------------

    @property
    def ahead(self) -> Buffer:
        """The scales of the next block of k."""
        return replace(self.buffer, name=f"{self.name}_next")

    @property
    def _index(self) -> tuple[Expr, ...]:
        return (*(Var(name) for name in self._tiles), Var(_NUMBER))

    def load(self, block_of_k: Expr, exists: Expr, exact: frozenset[str]) -> Body:
        """The scales of a block of k are on their way to `ahead`; 0 beyond the matrix."""
        program, at = self.sums.program, Var(f"{self.name}_at")
        source, inside = self._source(at, block_of_k, exact)
        body: Body = (
            Let(program.instruction_axes[self.index].name, self._place_of(Var(_NUMBER))),
            Let(at.name, digit_sum(program.axes_of(self.dim)) + origin_of(program, self.dim)),
            Move(Ref(self.ahead, self._index), source, 1, both(exists, inside), origin=self.name),
        )
        return self._over_numbers(body)

    def take(self) -> Body:
        """The scales that were loaded are those of the running block of k."""
        held = Assign(Ref(self.buffer, self._index), Load(self.ahead, self._index), origin=self.name)
        return (Alloc(self.buffer), *self._over_numbers((held,)))

    # -- in shared memory -------------------------------------------------------------------------------------------

    @property
    def _entries(self) -> int:
        """Scales of a tile for a block of k."""
        return self.sums.program.block_tile(self.dim)

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
        first = digit_sum(tile_digits(program, dim)) + entry + origin_of(program, dim)
        (source, inside), there = self._source(at, block_of_k), self._entry(stages, stage, entry)
        body: Body = (Let(at.name, first), Move(there, source, 1, inside, origin=self.name, asynchronous=True))
        if self._entries % WARP_LANES:
            body = (If(binary(Op.LT, entry, self._entries), body),)
        return (For(_NUMBER, Const(ceil_div(self._entries, WARP_LANES)), body, unroll=True),)

    def read(self, stages: int, stage: Expr) -> Body:
        """The scales of a thread from a stage into registers."""
        program = self.sums.program
        outside = tile_digits(program, self.dim)
        number = Var(_NUMBER) * 2  # neighbours of a row are a thread's
        own = digit_sum(tuple(one for one in program.axes_of(self.dim) if one not in outside))
        held = Ref(self.buffer, (*(Var(name) for name in self._tiles), number))
        load = Move(held, self._entry(stages, stage, own), 2, origin=self.name)
        body: Body = (Let(program.instruction_axes[self.index].name, self._place_of(number)), load)
        return (Alloc(self.buffer), *self._over_numbers(body, 2))


@dataclass(frozen=True, slots=True)
class OwnScales:
    """The scales that a thread loads for itself. sums: of the whole tile, or of the part that is promoted at a time.
    exact: sizes that tiles divide."""

    sums: Sums
    exact: frozenset[str]

    @property
    def _sides(self) -> tuple[Side, ...]:
        return tuple(side for side in sides(self.sums) if not side.is_streamed)

    def first(self, count: Expr) -> Body:
        """Those of the first of `count` iterations."""
        exists = binary(Op.LT, 0, count)
        loads = (one.load(_block_of_k(self.sums, ZERO), exists, self.exact) for one in self._sides)
        return (*(Alloc(one.ahead) for one in self._sides), *(stmt for load in loads for stmt in load))

    def beside(self, iteration: Expr, count: Expr, last: Expr) -> Body:
        """Beside the MMAs of an iteration: its scales are taken, those of the next one loaded, which the end of this
        iteration lets wait. last: whether the running part is the last one, behind which nobody takes a scale that all
        parts share."""
        exists = binary(Op.LT, iteration + 1, count)
        body: Body = ()
        for side in self._sides:
            load = side.load(_block_of_k(self.sums, iteration + 1), exists, self.exact)
            own = any(axis.dim == side.dim and axis.name in self.sums.outside for axis in self.sums.program.sum_axes)
            body = (*body, *side.take(), *(load if own or last == TRUE else if_any(last, load)))
        return body


def _block_of_k(sums: Sums, iteration: Expr) -> Expr:
    """The block of k whose scales an iteration multiplies by."""
    promotion, origin = sums.accumulator.promotion, origin_of(sums.program, "k")
    assert promotion is not None and promotion.scales is not None
    return iteration if origin == ZERO else iteration + binary(Op.DIV, origin, promotion.scales.depth)


@dataclass(frozen=True, slots=True)
class ScaleStream:
    """The scales that come with the stages of a ring: as many as a tile has for a block of k, by a warp. They are read
    in front of the MMAs of a stage: so many take longer than MMAs do. On an H100, 8192^3, 1 x 128 by 1 x 128: in front
    923 TFLOP/s, beside 829."""

    sums: Sums
    stages: int

    @property
    def _sides(self) -> tuple[Side, ...]:
        return tuple(side for side in sides(self.sums) if side.is_streamed)

    def __bool__(self) -> bool:
        return bool(self._sides)

    @property
    def arrivals(self) -> int:
        """At the barrier of a stage, beside that of the thread that starts the copies."""
        return WARP_LANES if self else 0

    def copy(self, lane: Expr, iteration: Expr, stage: Expr, empty: Stmt, full: Ref) -> Body:
        """The scales of an iteration. No thread waits until they are there, so that as many are on their way as there
        are stages. empty: the wait for the stage."""
        block = _block_of_k(self.sums, iteration)
        copies = (stmt for side in self._sides for stmt in side.copy(self.stages, stage, block, lane))
        return (empty, *copies, ArriveBarrier(full, behind_copies=True))

    def read(self, stage: Expr) -> Body:
        """The scales of a thread for the running stage, which is full, into registers."""
        return tuple(stmt for side in self._sides for stmt in side.read(self.stages, stage))


def sides(sums: Sums) -> tuple[Side, ...]:
    """The scales of rows and of columns, where the promotion of a sum has any."""
    promotion = sums.accumulator.promotion
    if promotion is None or promotion.scales is None:
        return ()
    return Side(sums, promotion.scales, 0), Side(sums, promotion.scales, 1)


def scale_of_running(sums: Sums) -> Expr | None:
    """What the running register of a group is multiplied by; None for nothing."""
    found = sides(sums)
    if not found:
        return None
    rows, columns = (side.scale(Var(FRAGMENT)) for side in found)
    return Binary(Op.MUL, rows, columns)
