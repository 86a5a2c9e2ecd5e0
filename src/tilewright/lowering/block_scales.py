"""Scales of blocks, which multiply the sum of a group of k when it is promoted.

    the producer             TMA, or one of its warps by cp.async: scales of the tile -> a slot of shared memory
    consumers                MMAs of the stage;  slot -> registers;  sum += sum_group * (scale_a * scale_b)

A slot has the scales of a block of k, or of several that lie side by side, which one box of TMA brings with the tiles
of the first of them: a copy costs the tensor cores some twenty clocks, however small it is. The slot that a use of the
ring fills has been read to its end: another use filled it at least stages - 1 + d uses before, d the blocks of k that
it has, and all uses but the last `stages` have ended. There are 2^n slots, so that no division finds one.

A thread holds two rows of a fragment and many columns, or one number for each 128 of either: the scales of its rows,
and those of its columns, are registers of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Literal

from tilewright.dtypes import F32
from tilewright.ir.async_stmt import ArriveBarrier, TensorMap, TmaLoad
from tilewright.ir.buffer import Buffer, Handoff, Space
from tilewright.ir.expr import HERE, ZERO, Binary, Const, Env, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.kernel import step_of
from tilewright.ir.program import WARP_LANES, Axis
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move, Stmt
from tilewright.ir.tiles import BOX_ALIGN_BYTES, FRAGMENT
from tilewright.ir.visit import substitute
from tilewright.layout.fragment import Fragment, FragmentDigit, Holder
from tilewright.layout.swizzle import NO_SWIZZLE
from tilewright.lowering.coordinates import base_of, digit_sum, end_of, lane_of, matrix_of, origin_of, tile_digits
from tilewright.lowering.kernel_parts import over_digits
from tilewright.lowering.sums import Sums
from tilewright.problem.block_scales import NAMES, PIECE, BlockScaleName, BlockScales, slots_of, step_names
from tilewright.units import ceil_div, round_up

_NUMBER = "scale_number"


@dataclass(frozen=True, slots=True)
class Use:
    """A use of the ring: its stage, its number in the work item, and the uses before the item."""

    stage: Expr
    iteration: Expr
    before: Expr


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
    def coming(self) -> Buffer:
        """The registers of the scales of the next stage."""
        return replace(self.buffer, name=f"{self.name}_next")

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

    @property
    def box(self) -> tuple[int, int]:
        """Scales that TMA loads at a time."""
        along, across = self.scales.box(self.name, self._tile)
        return int(along), int(across)

    @property
    def depth(self) -> int:
        """Blocks of k of a slot."""
        return self.scales.depth_of(self.name)

    def _block(self, use: Use, env: Env = HERE) -> Expr:
        """The block of k of a use of the ring."""
        origin = origin_of(self.sums.program, "k", env)
        return use.iteration if origin == ZERO else use.iteration + binary(Op.DIV, origin, self.scales.depth)

    def _uses_since(self, use: Use, env: Env = HERE) -> Expr:
        """Uses of the ring by the work item since the one with which the slot of a use was filled: where its first
        block of k came into it, or the item began."""
        block = self._block(use, env)
        since = binary(Op.MOD, block, self.depth)
        return since if block == use.iteration else binary(Op.MIN, use.iteration, since)

    def begins(self, use: Use, env: Env) -> Expr:
        """Whether a use of the ring fills a slot."""
        return binary(Op.EQ, self._uses_since(use, env), 0)

    @property
    def _room(self) -> int:
        """Elements of a slot."""
        if not self.scales.by_tma:
            return self._entries
        along, across = self.box
        return round_up(along * across, BOX_ALIGN_BYTES // F32.bytes)

    def load(self, stages: int, use: Use, signal: Ref, env: Env) -> TmaLoad:
        """The scales of a use of the ring, and of those behind it that share its slot, are on their way, by TMA. Boxes
        begin at multiples of 16 bytes."""
        program, dim = self.sums.program, self.dim
        several = matrix_of(program, self.name, env)
        box = TensorMap(f"{self.name}_map", self.name, self.box, NO_SWIZZLE, step_of(self.name) if several else "")
        first = digit_sum(tile_digits(program, dim), env) + origin_of(program, dim, env)
        first = first if self.block == 1 else binary(Op.DIV, first, self.block)
        block = self._block(use, env)
        if self.depth > 1:
            at = (block // self.depth * self.depth, first)
        else:
            at = (first if self.block == 1 else first // PIECE * PIECE, block)
        return TmaLoad(self._entry(stages, use, ZERO), box, (*at, *several), signal, origin=self.name)

    def _entry(self, stages: int, use: Use, entry: Expr) -> Ref:
        """A scale in shared memory."""
        slots, slot = stages, use.stage
        if self.depth > 1:
            slots = int(slots_of(stages, self.depth))
            slot = binary(Op.MOD, use.before + use.iteration + self._uses_since(use) * -1, slots)
        shape, names = (slots, self._room), ("slot" if self.depth > 1 else "stage", f"{self.dim}_in_tile")
        buffer = Buffer(f"{self.name}_tile", Space.SHARED, F32, shape, names, stages=slots, handoff=Handoff.MBARRIERS)
        if self.scales.by_tma:
            buffer = replace(buffer, align_bytes=BOX_ALIGN_BYTES)
        return Ref(buffer, (slot, entry))

    def copy(self, stages: int, use: Use, lane: Expr) -> Body:
        """The scales of a block of k are on their way to a stage, by a warp; 0 beyond the matrix."""
        program, dim = self.sums.program, self.dim
        entry, at = lane + Var(_NUMBER) * WARP_LANES, Var(f"{self.name}_at")
        first = digit_sum(tile_digits(program, dim)) + entry * self._shared_by + origin_of(program, dim)
        block = at if self.block == 1 else binary(Op.DIV, at, self.block)
        along, deep = (Var(step) for step in step_names(self.name))
        bases = (base_of(program, self.name, number) for number in matrix_of(program, self.name))
        source = Ref(Buffer(self.name, Space.GLOBAL, F32, ()), (*bases, block * along + self._block(use) * deep))
        inside, there = binary(Op.LT, at, end_of(program, dim)), self._entry(stages, use, entry)
        body: Body = (Let(at.name, first), Move(there, source, 1, inside, origin=self.name, asynchronous=True))
        if self._entries % WARP_LANES:
            body = (If(binary(Op.LT, entry, self._entries), body),)
        return (For(_NUMBER, Const(ceil_div(self._entries, WARP_LANES)), body, unroll=True),)

    @property
    def _looped(self) -> tuple[Axis, ...]:
        """Digits along which tiles have scales of their own, and that no loop around counts."""
        axes = (axis for axis in self.sums.program.sum_axes if axis.dim == self.dim)
        return tuple(axis for axis in axes if axis.name not in self.sums.outside)

    def take(self) -> Body:
        """The scales of the next stage are those of the running one."""
        index = (*(Var(name) for name in self._tiles), Var(_NUMBER))
        assign = Assign(Ref(self.buffer, index), Load(self.coming, index), origin=self.name)
        body: Body = (For(_NUMBER, Const(self.count), (assign,), unroll=True),)
        return over_digits(self._looped, body)

    def read(self, stages: int, use: Use, into: Buffer) -> Body:
        """The scales of a thread for a use of the ring from its slot into registers. Loops have names of their own:
        those around may count the fragments of the stage before."""
        program, dim = self.sums.program, self.dim
        outside = tile_digits(program, dim)
        axis = program.instruction_axes[self.index]
        together = 2 if self.index == 1 and self.block == 1 else 1  # neighbours of a row are a thread's
        number = Var(_NUMBER) * together
        own = digit_sum(tuple(one for one in program.axes_of(dim) if one not in outside))
        names: dict[str, Expr] = {one.name: Var(f"{one.name}_read") for one in self._looped}
        index = tuple(substitute(Var(name), names) for name in self._tiles)
        place = self._entry(stages, use, substitute(self._entry_of(own, use), names))
        load = Move(Ref(into, (*index, number)), place, together, origin=self.name)
        body: Body = (Let(axis.name, self._place_of(number)), load)
        body = (For(_NUMBER, Const(self.count // together), body, unroll=True),)
        for one in reversed(self._looped):
            body = (For(f"{one.name}_read", Const(one.extent or 1), body, unroll=True),)
        return body

    def _entry_of(self, own: Expr, use: Use) -> Expr:
        """The place in a slot of the scale of a row or column of the tile."""
        if not self.scales.by_tma:
            return own if self._shared_by == 1 else binary(Op.DIV, own, self._shared_by)
        if self.block == 1:
            return own
        first = digit_sum(tile_digits(self.sums.program, self.dim))
        entry = binary(Op.DIV, own, self.block)
        if self._tile % self.block:
            entry = binary(Op.DIV, first + own, self.block) + binary(Op.DIV, first, self.block) * -1
        if self.depth > 1:
            return entry * self.depth + binary(Op.MOD, self._block(use), self.depth)
        return entry + binary(Op.MOD, binary(Op.DIV, first, self.block), PIECE)


@dataclass(frozen=True, slots=True)
class ScaleStream:
    """The scales that come with the stages of a ring: by TMA, or by a warp where it cannot load them. sides: none where
    a kernel has no such scales."""

    sides: tuple[Side, ...]
    stages: int

    def __bool__(self) -> bool:
        return bool(self.sides)

    @property
    def by_warp(self) -> bool:
        return any(not side.scales.by_tma for side in self.sides)

    @property
    def arrivals(self) -> int:
        """At the barrier of a stage, beside that of the thread that starts the copies."""
        return WARP_LANES if self.by_warp else 0

    @property
    def _by_tma(self) -> tuple[Side, ...]:
        return () if self.by_warp else self.sides

    def maps(self, signal: Ref) -> tuple[TensorMap, ...]:
        """What TMA is told of the scales. signal: any barrier of the ring."""
        nowhere = Use(ZERO, ZERO, ZERO)
        return tuple(side.load(self.stages, nowhere, signal, HERE).map for side in self._by_tma)

    def loads(self, env: Env, use: Use, signal: Ref, expect: Callable[[int], Stmt]) -> tuple[Body, Body]:
        """What the thread that starts the copies of a stage tells its barrier, and what it loads behind the tiles.
        expect: the statement that tells it of so many bytes beside them."""
        always = tuple(side for side in self._by_tma if side.depth == 1)
        at_times = tuple(side for side in self._by_tma if side.depth > 1)

        def load(sides: tuple[Side, ...]) -> Body:
            return tuple(side.load(self.stages, use, signal, env) for side in sides)

        size_bytes, more_bytes = (sum(prod(side.box) * F32.bytes for side in some) for some in (always, at_times))
        if not at_times:
            return (expect(size_bytes),), load(always)
        first = at_times[0].begins(use, env)
        told = If(first, (expect(size_bytes + more_bytes),), (expect(size_bytes),))
        return (told,), (*load(always), If(first, load(at_times)))

    def copy(self, lane: Expr, use: Use, empty: Stmt, full: Ref) -> Body:
        """The scales of a use of the ring. No thread waits until they are there, so that as many are on their way as
        there are stages. empty: the wait for the stage."""
        copies = (stmt for side in self.sides for stmt in side.copy(self.stages, use, lane))
        return (empty, *copies, ArriveBarrier(full, behind_copies=True))

    @property
    def in_front(self) -> bool:
        """Whether a thread reads the scales of a stage in front of its MMAs: where it has one for each of its columns.
        So many take longer than MMAs do. Few are read beside the MMAs of the stage before: in front they would hold
        them up, and the MMAs of another warpgroup let them wait. On an H100, 8192^3: 128 columns in front 923 TFLOP/s,
        beside 829; one column in front 1181, beside 1267."""
        return any(side.index == 1 and side.block == 1 for side in self.sides)

    def read(self, use: Use) -> Body:
        """The scales of a thread for the running stage, which is full, into registers."""
        held = tuple(Alloc(side.buffer) for side in self.sides)
        return (*held, *(stmt for side in self.sides for stmt in side.read(self.stages, use, side.buffer)))

    @property
    def declared(self) -> Body:
        """The registers of the scales of two stages."""
        return tuple(Alloc(one) for side in self.sides for one in (side.buffer, side.coming))

    def read_ahead(self, use: Use) -> Body:
        """The scales of a thread for the next stage, which is full, into registers."""
        return tuple(stmt for side in self.sides for stmt in side.read(self.stages, use, side.coming))

    def take(self) -> Body:
        """The scales that were read ahead are those of the running stage."""
        return tuple(stmt for side in self.sides for stmt in side.take())


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
