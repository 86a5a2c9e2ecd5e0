"""The scales of C in FP8 codes, one for each 128 columns of a row, found from the registers of a warpgroup.

A lane holds, of a row of a fragment, two of every eight columns; its quad holds the row. So before the first subtile
is filled, each lane goes through the values of a block once, the quad exchanges the largest magnitudes of its two rows,
and one lane stores the scales. The values take the registers of the sums that they are made of; when their subtile is
filled they are multiplied by the inverse of the scale, which stays in a register for each row and block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from tilewright.dtypes import F32, I64
from tilewright.errors import LoweringError
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var, binary, both, real
from tilewright.ir.finish import finite_magnitude
from tilewright.ir.kernel import SIZES
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, Move, ShuffleAdd
from tilewright.ir.tiles import FRAGMENT
from tilewright.layout.epilogue import CHUNK_COLUMNS
from tilewright.layout.fragment import QUAD_LANES
from tilewright.lowering.coordinates import base_of, end_of, matrix_of
from tilewright.lowering.epilogue_plan import Subtile, epilogue_plan
from tilewright.lowering.kernel_parts import ELEMENT, over_digits, over_elements, running_element
from tilewright.lowering.subtile_geometry import LANE, SubtileGeometry
from tilewright.problem.gemm import Dim, Operand
from tilewright.problem.quantization import BLOCK, LEAST_SCALE
from tilewright.problem.values import AddedName

ByBeta = Callable[[Callable[[bool], Body]], Body]
"""by_beta(way): way(True) where the addend is read, way(False) where it is not; the same for all threads."""


class Own(NamedTuple):
    """What of a fragment a thread finishes: the digits of the fragment, but for those of loops, one of its registers
    there, what was loaded ahead for it (`epilogue_ahead`), and the register's number in a chunk whose results are
    folded together, and how many that has; None: they are not."""

    digits: Mapping[str, Expr]
    register: Expr
    loaded: Mapping[AddedName, Expr] = MappingProxyType({})
    in_chunk: tuple[Expr, int] | None = None


Finished = Callable[[Ref, Ref, Callable[[Expr], tuple[Expr, ...]], bool, int, Own], Body]
"""finished(first, place, sums, reads_addend, width, own): finished neighbours of C from `place` on, whose sums a thread
has in a fragment of its own, into registers from
`first` on, and the stores of what is written beside them; sums(element): of each."""

_ROWS = 2
"""Rows of a fragment that a lane holds parts of."""

_NUMBER, _CHUNK, _PAIR, _HALF = "block", "chunk_of_block", "pair_of_chunk", "half"


def check_pairs(program: Program) -> None:
    """Raise LoweringError for a program whose threads do not hold pairs of neighbouring columns, where the epilogue is
    made of such."""
    gemm = program.gemm
    if not gemm.epilogue.has_pairs:
        return
    plan = epilogue_plan(program)
    by_block = plan.tile is not None and not plan.subtiles
    turned = bool(plan.subtiles) and program.instruction_axes[0].dim == gemm.operand("C").contiguous
    if gemm.operand("C").contiguous != "n" or by_block or turned or (not plan.subtiles and program.result_vector < 2):
        raise LoweringError(
            "The epilogue makes an element of its neighbour's values too: a thread of this kernel does not hold both "
            "columns of a pair.",
            hint="a row-major C, from registers or in epilogue subtiles, and no swap-AB.",
        )


def check_scales(program: Program) -> None:
    """Raise LoweringError for a program whose warpgroups hold no whole blocks of rows."""
    scales = program.gemm.epilogue.scales
    if scales is None:
        return
    plan = epilogue_plan(program)
    columns = 0 if plan.tile is None or not plan.subtiles else program.result_columns(plan.tile.staged)
    transposed = bool(columns) and program.instruction_axes[0].dim == program.gemm.operand("C").contiguous
    if not columns or transposed or columns % BLOCK:
        raise LoweringError(
            f"Scales of {BLOCK} columns are found where a warpgroup holds such blocks of rows of C, and stores them in "
            f"epilogue subtiles; here it {'holds columns' if transposed else f'has {columns} columns for that'}.",
            hint=f"a tile whose columns are a multiple of {BLOCK}, no swap-AB, and rows of C that are multiples of 16 "
            "bytes; or quantize(result), in a pass of its own.",
        )


@dataclass(frozen=True)
class BlockScales(SubtileGeometry):
    """The statements of one warpgroup that find the scales of its part of a tile of C, and what they make of values."""

    exact: frozenset[str]

    @cached_property
    def _operand(self) -> Operand:
        scales = self.program.gemm.epilogue.scales
        assert scales is not None
        return self.program.gemm.operand(scales.operand.name)

    @cached_property
    def _blocks(self) -> int:
        return self.program.result_columns(self.tile.staged) // BLOCK

    @cached_property
    def _inverse(self) -> Buffer:
        shape = (*(axis.extent or 1 for axis in self.strided_digits), self._blocks, _ROWS)
        names = (*(axis.name for axis in self.strided_digits), "block", "row")
        return Buffer("inverse_scale", Space.REGISTER, F32, shape, names, "of a row and 128 of its columns")

    def coded(self, subtile: Subtile, chunk: Expr, register: Expr) -> Finished:
        """What makes codes of the values in the registers of the running chunk, from one of them on."""
        block = (self.first_column(subtile) + chunk * CHUNK_COLUMNS) // BLOCK
        scale = self._at(block, register // 2 % _ROWS)

        def finished(
            first: Ref, place: Ref, totals: Callable[[Expr], tuple[Expr, ...]], reads: bool, width: int, own: Own
        ) -> Body:
            element = running_element(width)
            here = Ref(first.buffer, (*first.index[:-1], first.index[-1] + element))
            code = Cast(first.buffer.dtype, Binary(Op.MUL, totals(element)[0], scale))
            return over_elements(width, (Assign(here, code, origin="C"),))

        return finished

    def _at(self, block: Expr, half: Expr) -> Load:
        return Load(self._inverse, (*(Var(axis.name) for axis in self.strided_digits), block, half))

    def found(self, by_beta: ByBeta, finished: Finished) -> Body:
        """All scales of the tile, stored, and their inverses."""
        return (Alloc(self._inverse), *by_beta(lambda reads: self._all(finished, reads)))

    def _all(self, finished: Finished, reads: bool) -> Body:
        block = Var(_NUMBER) if self._blocks > 1 else ZERO
        body = self._block(block, finished, reads)
        if self._blocks > 1:
            body = (For(_NUMBER, Const(self._blocks), body, unroll=True),)
        return over_digits(self.strided_digits, body)

    def _block(self, block: Expr, finished: Finished, reads: bool) -> Body:
        largest = Buffer("largest", Space.REGISTER, F32, (_ROWS,), note="magnitude of a block")
        zero = tuple(Assign(Ref(largest, (Const(half),)), real(0.0)) for half in range(_ROWS))
        pair = self._pair(block, largest, finished, reads)
        chunk = (For(_PAIR, Const(CHUNK_COLUMNS // QUAD_LANES), pair, unroll=True),)
        over = For(_CHUNK, Const(BLOCK // CHUNK_COLUMNS), chunk, unroll=True)
        halves = For(_HALF, Const(_ROWS), self._scale(block, largest), unroll=True)
        return (Alloc(largest), *zero, over, halves)

    def _place(self, block: Expr, chunk: Expr, register: Expr) -> tuple[dict[str, Expr], Expr, Ref]:
        """The digits of a chunk, the number of one of its registers in the fragment, and its place in C."""
        each = self.fragment.columns // CHUNK_COLUMNS
        number = block * (BLOCK // CHUNK_COLUMNS) + chunk
        digits = self.split(number // each)
        held = number % each * (CHUNK_COLUMNS // 2) + register
        return digits, held, self.held_in_c(digits, held)

    def _pair(self, block: Expr, largest: Buffer, finished: Finished, reads: bool) -> Body:
        """The values of two neighbours into the registers of their sums, and the largest magnitude with them."""
        value = Buffer("value", Space.REGISTER, F32, (2,))
        digits, held, place = self._place(block, Var(_CHUNK), Var(_PAIR) * 2)
        element = Var(ELEMENT)

        def totals(at: Expr) -> tuple[Expr, ...]:
            return self.sums.results({**digits, FRAGMENT: held + at})

        half = Var(_PAIR) % _ROWS
        magnitude = finite_magnitude(Load(value, (element,)))
        if self._dim not in self.exact:
            inside = binary(Op.LT, self._column(place) + element, end_of(self.program, self._dim))
            magnitude = Select(inside, magnitude, real(0.0))
        (sum_,) = totals(element)[:1]
        assert isinstance(sum_, Load)
        keep = Assign(Ref(sum_.buffer, sum_.index), Load(value, (element,)), origin="C")
        larger = Assign(Ref(largest, (half,)), Binary(Op.MAX, Load(largest, (half,)), magnitude))
        return (
            Alloc(value),
            *finished(Ref(value, (ZERO,)), place, totals, reads, 2, Own(digits, held)),
            For(ELEMENT, Const(2), (keep, larger), unroll=True),
        )

    @property
    def _dim(self) -> Dim:
        return self.program.gemm.operand("C").contiguous

    def _column(self, place: Ref) -> Expr:
        return place.index[self.program.gemm.operand("C").dims.index(self.program.gemm.operand("C").contiguous)]

    def _scale(self, block: Expr, largest: Buffer) -> Body:
        """The scale of one row, its inverse, and its store by one lane of the quad."""
        half, codes = Var(_HALF), self.program.gemm.out
        here = Ref(largest, (half,))
        shuffles = tuple(ShuffleAdd(here, mask, origin="C", op=Op.MAX) for mask in (1, 2))
        share = Binary(Op.MUL, Load(largest, (half,)), real(1 / codes.largest))
        scale = Assign(here, Binary(Op.MAX, share, real(LEAST_SCALE)), origin="C")
        inverse = self._at(block, half)
        keep = Assign(Ref(inverse.buffer, inverse.index), Binary(Op.DIV, real(1.0), Load(largest, (half,))), origin="C")
        *_, place = self._place(block, ZERO, half * 2)
        return (*shuffles, scale, keep, self._stored(here, place))

    def _stored(self, value: Ref, place: Ref) -> Move:
        operand = self._operand
        row = place.index[self.program.gemm.operand("C").dims.index(operand.contiguous)]
        column = self._column(place)
        base: Expr = Binary(Op.MUL, Cast(I64, column // BLOCK), Cast(I64, SIZES[operand.contiguous]))
        for matrix in matrix_of(self.program, operand.name):
            base = Binary(Op.ADD, base_of(self.program, operand.name, matrix), base)
        edges = ((operand.contiguous, row), (operand.strided, column))
        guards = [binary(Op.LT, at, end_of(self.program, dim)) for dim, at in edges if dim not in self.exact]
        first = binary(Op.EQ, LANE % QUAD_LANES, 0)
        target = Ref(Buffer(operand.name, Space.GLOBAL, F32, ()), (base, row))
        return Move(target, value, 1, both(first, *guards), origin="C")
