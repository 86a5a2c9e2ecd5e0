"""What an epilogue writes beside C, from the registers in which its values are made: matrices, and folds of lines.

A thread that finishes neighbours of C makes those of the other matrices at once, and stores them itself, by whatever
sink stores C. A fold writes one partial result for each aligned group of neighbours: those of a thread are folded two
by two, then those of the lanes that hold the rest of the group, by shuffles. So the order within a group is

    ((0 1) (2 3)) ((4 5) (6 7))

whatever the tile is. The values of a chunk wait for each other, and lanes share them out: of two lanes one folds half
of the values of both, the other the other half, so that eight values of eight lanes take seven shuffles, and each lane
is left with one partial result. Values behind the edge of C are left out. Eight such groups are folded in ascending
order next (`planning/folding`); a warpgroup that holds whole rows of 64 columns does that itself, a number of each row
in a register meanwhile, and writes an eighth of the partial results. The largest of all has no order: where a warpgroup
stores its part of a tile, each of its threads keeps the largest that it has seen of a tile in a register, and a warp
writes one partial result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tilewright.dtypes import F32, I64
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var, binary, both, real
from tilewright.ir.kernel import SIZES
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Axis, Program
from tilewright.ir.stmt import Alloc, Assign, Body, If, Move, ShuffleAdd
from tilewright.ir.tiles import fragment_of
from tilewright.layout.fragment import QUAD_LANES, FragmentDigit, Holder
from tilewright.lowering.coordinates import base_of, digit_sum, end_of, lane_of, matrix_of, tile_digits
from tilewright.lowering.epilogue_plan import Output, Rearrangement, Sink, epilogue_plan
from tilewright.lowering.epilogue_scales import Own, check_scales
from tilewright.lowering.kernel_parts import beside, over_elements, running_element
from tilewright.problem.functions import Operation
from tilewright.problem.gemm import Dim, Operand
from tilewright.problem.quantization import BLOCK
from tilewright.problem.values import Fold

LEAST_IN_LANES = 8
"""Neighbours of a group of a kernel whose lanes hold fragments: of fewer, partial results are as many as elements."""

TOGETHER = 8
"""Partial results that are folded one after the other; enough of them lie side by side to keep a GPU busy."""

MOST_LEFT = 32
"""Partial results of which one launch makes one number."""

WIDE_GROUP, MOST_AT_ONCE = LEAST_IN_LANES * TOGETHER, LEAST_IN_LANES * MOST_LEFT
"""Neighbours of a row whose partial result a warpgroup makes, and of which one launch folds what lanes leave."""

_ROWS, _PAIR = 2, 2
"""Rows of a fragment of wgmma that a lane holds parts of, and neighbours of each."""


@dataclass(frozen=True)
class ResultStore:
    """The stores of one thread of what is written beside C."""

    program: Program
    exact: frozenset[str]

    def store(self, output: Output, place: Ref, value: Buffer, own: Own | None) -> Body:
        """The values of one output, which belong to neighbours of C from `place` on, to memory. own: of the first one,
        where a warpgroup stores its part of a tile."""
        operand = self.program.gemm.operand(output.operand)
        if operand.fold is None:
            target = beside(self.program, place, output.operand)
            return (Move(target, Ref(value, (ZERO,)), value.elements, origin="C"),)
        if operand.fold.of_tiles != (1, 1):
            return self._kept(operand, place, value)
        return self._partial(operand, place, value, own)

    # -- the largest of a tile --------------------------------------------------------------------------------------

    @property
    def _of_tiles(self) -> tuple[Operand, ...]:
        operands = (self.program.gemm.operand(added.name) for added in self.program.gemm.epilogue.written)
        return tuple(one for one in operands if one.fold is not None and one.fold.of_tiles != (1, 1))

    def begin(self) -> Body:
        """Before a tile is stored."""
        nothing = real(float("-inf"))
        largest = (_largest_of(operand) for operand in self._of_tiles)
        rows = (operand.name for operand in self._folded_in_registers)
        return (
            *(stmt for one in largest for stmt in (Alloc(one.buffer), Assign(one, nothing, origin="C"))),
            *(Alloc(self._rows_of(name)) for name in rows),
        )

    def _kept(self, operand: Operand, place: Ref, value: Buffer) -> Body:
        """The largest so far, with so many neighbours of C from `place` on."""
        width, along = value.elements, self.program.gemm.operand("C").contiguous
        element = running_element(width)
        inside = [
            binary(Op.LT, self._index(place, dim) + (element if dim == along else ZERO), end_of(self.program, dim))
            for dim in self.program.gemm.operand("C").dims
            if dim not in self.exact
        ]
        held: Expr = Load(value, (element,))
        here = _largest_of(operand)
        if inside:
            held = Select(both(*inside), held, real(float("-inf")))
        return over_elements(width, (Assign(here, Binary(Op.MAX, Load(here.buffer, here.index), held), origin="C"),))

    def end(self, lane: Expr) -> Body:
        """Behind a tile: a partial result of each warp. lane: of the threads that share the tile."""
        return tuple(stmt for operand in self._of_tiles for stmt in self._of_warp(operand, lane))

    def _of_warp(self, operand: Operand, lane: Expr) -> Body:
        assert operand.fold is not None
        here, (_, warps) = _largest_of(operand), operand.fold.of_tiles
        shuffles = (ShuffleAdd(here, mask, origin="C", op=Op.MAX) for mask in powers_of_two(WARP_LANES))
        start = {dim: self._start(dim) for dim in operand.dims}
        number = {dim: binary(Op.DIV, start[dim], self.program.block_tile(dim)) for dim in operand.dims}
        extent = self.program.block_tile(operand.contiguous)
        line = binary(Op.DIV, SIZES[operand.contiguous] + (extent - 1), extent)
        base: Expr = Binary(Op.MUL, Cast(I64, number[operand.strided]), Cast(I64, line * warps))
        for matrix in matrix_of(self.program, operand.name):
            base = Binary(Op.ADD, base_of(self.program, operand.name, matrix), base)
        target = Ref(
            Buffer(operand.name, Space.GLOBAL, operand.dtype, ()),
            (base, number[operand.contiguous] * warps + lane // WARP_LANES),
        )
        guards = (binary(Op.LT, start[dim], end_of(self.program, dim)) for dim in operand.dims if dim not in self.exact)
        return (*shuffles, Move(target, here, 1, both(binary(Op.EQ, lane % WARP_LANES, 0), *guards), origin="C"))

    def _start(self, dim: Dim) -> Expr:
        """Where the running tile begins."""
        return digit_sum(tile_digits(self.program, dim))

    # -- lines ------------------------------------------------------------------------------------------------------

    @property
    def _folded_in_registers(self) -> tuple[Operand, ...]:
        """Folds of rows, of which a warpgroup folds groups itself."""
        operands = (self.program.gemm.operand(added.name) for added in self.program.gemm.epilogue.written)
        along = self.program.gemm.operand("C").contiguous
        wide = _wide_group(self.program, along)
        return tuple(
            one
            for one in operands
            if one.fold is not None and one.fold.codes is None and one.strided == along and 0 < one.fold.group == wide
        )

    def _rows_of(self, name: str) -> Buffer:
        """What a thread has folded of its rows."""
        return Buffer(f"{name}_of_rows", Space.REGISTER, F32, (*(axis.extent or 1 for axis in self._down), _ROWS))

    @property
    def _down(self) -> tuple[Axis, ...]:
        """The digits of fragments along C's strided dimension."""
        dim = self.program.gemm.operand("C").strided
        return tuple(axis for axis in self.program.sum_axes if axis.dim == dim)

    def _partial(self, operand: Operand, place: Ref, value: Buffer, own: Own | None) -> Body:
        """Partial results of the groups that neighbours of C belong to."""
        gemm, fold = self.program.gemm, operand.fold
        assert fold is not None
        along: Dim = operand.strided
        is_row = along == gemm.operand("C").contiguous
        width = value.elements
        group, lanes = group_of(self.program, along, width if is_row else 1)
        wide = operand in self._folded_in_registers
        if group != fold.group and not wide:
            raise LoweringError(
                f"{operand.name} is folded in groups of {fold.group} along {along}, and this kernel's are of {group}."
            )
        op = _combining(fold)
        element = running_element(width)
        body = over_elements(width, self._masked(value, element, place, along, is_row, op))
        if is_row:
            body = (*body, *_folded(value, op))
            width, element = 1, ZERO
        here = Ref(value, (element,))
        if own is not None and own.in_chunk is not None and not wide:
            (number, held), each = own.in_chunk, value.elements if is_row else 1
            kept = Ref(self._of_chunk(operand, held // each), (number // each + element,))
            return (*body, *over_elements(width, (Assign(kept, Load(value, (element,)), origin="C"),)))
        masks = _masks_of(lanes)
        shuffles = tuple(ShuffleAdd(here, mask, origin="C", op=op) for mask in masks)
        first = None if lanes is None else binary(Op.EQ, lane_of(self.program) // lanes.step % lanes.extent, 0)
        if wide:
            assert own is not None
            return (*body, *shuffles, *self._into_row(operand, place, here, own.register, op, first))
        store = self._stored(operand, place, group, here, ZERO if is_row else element, first)
        return (*body, *over_elements(width, (*shuffles, store)))

    def _into_row(self, operand: Operand, place: Ref, value: Ref, register: Expr, op: Op, first: Expr | None) -> Body:
        """A group into what its row has already, which is stored behind the last of those that are folded together."""
        assert operand.fold is not None
        row = Ref(self._rows_of(operand.name), (*(Var(one.name) for one in self._down), register // _PAIR % _ROWS))
        number = register // (_PAIR * _ROWS) % TOGETHER
        found = Load(value.buffer, value.index)
        begin = Assign(row, found, origin="C")
        add = Assign(row, Binary(op, Load(row.buffer, row.index), found), origin="C")
        group = operand.fold.group
        store = self._stored(operand, self._of_group(place, operand.strided, group), group, row, ZERO, first)
        return (
            If(binary(Op.EQ, number, 0), (begin,), (add,)),
            If(binary(Op.EQ, number, TOGETHER - 1), (store,)),
        )

    # -- the values of a chunk --------------------------------------------------------------------------------------

    @property
    def _of_lanes(self) -> tuple[Operand, ...]:
        """Folds of which lanes share out the values of a chunk."""
        operands = (self.program.gemm.operand(added.name) for added in self.program.gemm.epilogue.written)
        folds = ((one, one.fold) for one in operands if one not in self._folded_in_registers)
        return tuple(one for one, fold in folds if fold is not None and fold.codes is None and fold.of_tiles == (1, 1))

    def _of_chunk(self, operand: Operand, count: int) -> Buffer:
        """What a thread has folded by itself of a chunk."""
        return Buffer(f"{operand.name}_of_chunk", Space.REGISTER, F32, (count,))

    def begin_chunk(self, held: int) -> Body:
        """Before the values of a chunk are made, of which a thread holds so many."""
        return tuple(Alloc(self._of_chunk(one, held // self._folded_by_threads(one))) for one in self._of_lanes)

    def _folded_by_threads(self, operand: Operand) -> int:
        """Neighbours that a thread holds side by side, and folds by itself."""
        fragment = fragment_of(self.program, "C")
        assert fragment is not None
        c = self.program.gemm.operand("C")
        is_row, transposed = operand.strided == c.contiguous, self.program.instruction_axes[0].dim == c.contiguous
        return fragment.neighbours(1) if is_row and not transposed else 1

    def end_chunk(self, held: int, place: Callable[[Expr], Ref]) -> Body:
        """Behind them: they are folded, and what is left stored. place(number): of one of them in C."""
        return tuple(stmt for one in self._of_lanes for stmt in self._shared_out(one, held, place))

    def _shared_out(self, operand: Operand, held: int, place: Callable[[Expr], Ref]) -> Body:
        assert operand.fold is not None
        each = self._folded_by_threads(operand)
        count = held // each
        values, lane = self._of_chunk(operand, count), lane_of(self.program)
        group, lanes = group_of(self.program, operand.strided, each)
        op = _combining(operand.fold)
        body, first = list[ShuffleAdd](), list[Expr]()
        own: Expr = ZERO
        for mask in _masks_of(lanes):
            bit = lane // mask % 2
            if count == 1:
                body.append(ShuffleAdd(Ref(values, (ZERO,)), mask, origin="C", op=op))
                first.append(binary(Op.EQ, bit, 0))
                continue
            count //= 2
            own = own + bit * count
            kept, others = ([Ref(values, (Const(at + first),)) for at in range(count)] for first in (0, count))
            body += [
                ShuffleAdd(one, mask, origin="C", op=op, other=other) for one, other in zip(kept, others, strict=True)
            ]
        stores = []
        for at in range(count):
            begin = self._of_group(place((own + at) * each), operand.strided, group)
            here, last = Ref(values, (Const(at),)), both(*first) if first else None
            stores.append(self._stored(operand, begin, group, here, ZERO, last))
        return (*body, *stores)

    def _masked(self, value: Buffer, element: Expr, place: Ref, along: Dim, is_row: bool, op: Op) -> Body:
        """What lies behind the edge of C does not count."""
        if along in self.exact:
            return ()
        index = self._index(place, along) + (element if is_row else ZERO)
        nothing = real(0.0 if op is Op.ADD else float("-inf"))
        held = Load(value, (element,))
        inside = binary(Op.LT, index, end_of(self.program, along))
        return (Assign(Ref(value, (element,)), Select(inside, held, nothing), origin="C"),)

    def _of_group(self, place: Ref, along: Dim, group: int) -> Ref:
        """Where the group of an element begins."""
        at = self.program.gemm.operand("C").dims.index(along)
        begin = place.index[at] // group * group
        return Ref(place.buffer, (*place.index[:at], begin, *place.index[at + 1 :]))

    def _index(self, place: Ref, dim: Dim) -> Expr:
        return place.index[self.program.gemm.operand("C").dims.index(dim)]

    def _stored(self, operand: Operand, place: Ref, group: int, value: Ref, element: Expr, first: Expr | None) -> Move:
        """One partial result, by the first lane of its group."""
        name, other = operand.name, operand.contiguous
        number = Cast(I64, self._index(place, operand.strided) // group)
        base: Expr = Binary(Op.MUL, number, Cast(I64, SIZES[other]))
        for matrix in matrix_of(self.program, name):
            base = Binary(Op.ADD, base_of(self.program, name, matrix), base)
        at = self._index(place, other) + element
        guards = [binary(Op.LT, index, end_of(self.program, dim)) for dim, index in self._edges(operand, place, at)]
        target = Ref(Buffer(name, Space.GLOBAL, operand.dtype, ()), (base, at))
        return Move(target, value, 1, both(first, *guards), origin="C")

    def _edges(self, operand: Operand, place: Ref, at: Expr) -> list[tuple[Dim, Expr]]:
        """The indices that may lie behind the edge of C: of the element, and of the first of its group."""
        found: list[tuple[Dim, Expr]] = [
            (operand.contiguous, at),
            (operand.strided, self._index(place, operand.strided)),
        ]
        return [(dim, index) for dim, index in found if dim not in self.exact]


def _combining(fold: Fold) -> Op:
    return Op.ADD if fold.operation is Operation.PLUS else Op.MAX


def _masks_of(lanes: FragmentDigit | None) -> tuple[int, ...]:
    """The bits in which the lanes that hold a group differ."""
    return () if lanes is None else tuple(lanes.step * power for power in powers_of_two(lanes.extent))


def _largest_of(operand: Operand) -> Ref:
    """The register of a thread that holds the largest of its values of a tile."""
    return Ref(Buffer(f"{operand.name}_largest", Space.REGISTER, operand.dtype, (1,)), (ZERO,))


def powers_of_two(below: int) -> tuple[int, ...]:
    """1, 2, 4, ..., below a power of two.

    >>> powers_of_two(8)
    (1, 2, 4)
    """
    return tuple(1 << number for number in range(below.bit_length() - 1))


def _folded(value: Buffer, op: Op) -> Body:
    """Neighbours of a thread two by two, into the first of them."""
    body: list[Assign] = []
    for apart in powers_of_two(value.elements):
        for at in range(0, value.elements, 2 * apart):
            one, other = (Load(value, (Const(number),)) for number in (at, at + apart))
            body.append(Assign(Ref(value, (Const(at),)), Binary(op, one, other), origin="C"))
    return tuple(body)


def group_of(program: Program, along: Dim, width: int) -> tuple[int, FragmentDigit | None]:
    """Neighbours along a dimension that threads fold together, and the digit of lanes that share them out. width: of
    those that a thread finishes at a time. Raises LoweringError where lanes hold no whole groups."""
    fragment = fragment_of(program, "C")
    if fragment is None:
        return width, None
    index = [axis.dim for axis in program.instruction_axes].index(along)
    held = (digit for digit in fragment.digits if digit.holder is Holder.LANE and digit.step < WARP_LANES)
    lanes = [digit for digit in held if (digit.index, digit.stride) == (index, width)]
    group = width * lanes[0].extent if lanes else width
    if fragment.opaque or group < LEAST_IN_LANES:
        raise LoweringError(
            f"The lanes of {'opaque fragments' if fragment.opaque else f'this kernel hold groups of {group}'} along "
            f"{along}, of which no partial results are made.",
            hint="another kernel makes them.",
        )
    return group, lanes[0]


def _wide_group(program: Program, along: Dim) -> int:
    """Neighbours of a row of C whose partial result a warpgroup makes; 0 where it holds no whole rows of so many, or
    one launch folds what its lanes leave. Fragments are those of wgmma."""
    plan = epilogue_plan(program)
    c = program.gemm.operand("C")
    if plan.tile is None or not plan.subtiles or along != c.contiguous or program.instruction_axes[0].dim == along:
        return 0
    held = program.result_columns(plan.tile.staged) % WIDE_GROUP == 0
    return WIDE_GROUP if held and program.gemm.size(along) > MOST_AT_ONCE else 0


def folds_of(program: Program) -> dict[str, Fold]:
    """Each fold, by its name, with the groups that the kernel of a program makes partial results of. Raises
    LoweringError where C is stored in a way that folds nothing."""
    plan, gemm = epilogue_plan(program), program.gemm
    c, fragment = gemm.operand("C"), fragment_of(program, "C")
    if plan.tile is not None and not plan.subtiles:
        raise LoweringError("Results that the block stores from shared memory are not folded.")
    width = program.result_vector
    if plan.subtiles:
        assert fragment is not None
        transposed = program.instruction_axes[0].dim == c.contiguous
        width = 1 if transposed else fragment.neighbours(1)
    elif plan.rearrangement is Rearrangement.QUAD_SHUFFLE:
        assert plan.sink is Sink.THREADS
        width //= QUAD_LANES
    found = {}
    check_scales(program)
    for added in gemm.epilogue.written:
        fold, operand = added.fold, gemm.operand(added.name)
        if fold is None:
            continue
        along = operand.strided
        if fold.codes is not None:
            fold = replace(fold, group=BLOCK)
        elif fold.whole and fold.operation is Operation.MAXIMUM and plan.subtiles:
            of_tiles = program.block_tile(operand.contiguous), _warps_of_tile(program)
            fold = replace(fold, group=program.block_tile(along), of_tiles=of_tiles)
        else:
            group, _ = group_of(program, along, width if along == c.contiguous else 1)
            fold = replace(fold, group=_wide_group(program, along) or group)
        found[added.name] = fold
    return found


def _warps_of_tile(program: Program) -> int:
    """Warps that share a tile of C."""
    return prod(loop.extent or 1 for loop in program.thread_loops) * GROUP_LANES // WARP_LANES
