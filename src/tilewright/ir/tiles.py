"""The geometry of staged tiles: which elements they span, and where each one lies.

A tile has two coordinates, those of its operand (row and column). Inside the tile a coordinate counts densely from 0,
whatever the strides of the digits it spans: the digits are numbered in mixed radix, finest first.

Products of one A by several B, which one instruction multiplies together:

    C = f(A @ B, A @ B1)        a stage:  A_tile;  B_tile = [B | B1], one behind the other
                                wgmma.m64n(2n):  [sum, sum1] += A_tile @ [B | B1]

An instruction reads A from shared memory once for all columns that it has. A fragment of twice the columns is the
fragments of both halves, one behind the other, in registers as in rows or swizzle atoms of shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from tilewright.dtypes import DType
from tilewright.ir.accumulators import accumulator_of
from tilewright.ir.buffer import Buffer, Handoff, Space
from tilewright.ir.expr import HERE, ZERO, Const, Env, Expr, Ref
from tilewright.ir.program import Axis, Program, Route, Staged
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.wgmma import widened
from tilewright.layout.arrangement import SwizzleAtoms
from tilewright.layout.fragment import QUAD_LANES, WORD_BYTES, Fragment, FragmentDigit, Holder
from tilewright.layout.swizzle import swizzle_of
from tilewright.problem.gemm import Dim, OperandName


def joined(program: Program) -> tuple[OperandName, ...]:
    """The operands whose tiles lie one behind the other in each stage, in the order of their sums; () where an
    instruction multiplies by one of them."""
    products = program.gemm.products
    names = tuple(one.b for one in products)
    if len(products) < 2 or program.is_turned or [one.into for one in products] != list(range(len(products))):
        return ()
    if any(one.a != products[0].a for one in products) or wide_instruction(program) is None:
        return ()
    tiles = [program.chain(name) for name in names]
    if any(len(tile) != 1 or tile[0].space is not Space.SHARED or tile[0].route is not Route.TMA for tile in tiles):
        return ()
    first = tiles[0][0]
    return names if all(_lies_as(first, tile[0]) for tile in tiles) else ()


def wide_instruction(program: Program) -> MatrixInstruction | None:
    """The instruction that multiplies by all operands of `joined`; None where there is none so wide."""
    if program.tensorized is None or not program.tensorized.instruction.reads_shared:
        return None
    return widened(program.tensorized.instruction, program.gemm.accumulators)


def _lies_as(first: Staged, other: Staged) -> bool:
    return replace(other, name=first.name, operand=first.operand) == first


FRAGMENT = "fragment"
"""What the last extent of a register buffer counts that feeds a matrix instruction: one lane's elements of its tile."""

BOX_ALIGN_BYTES = 128
"""Where a TMA box may begin in shared memory. Source: PTX ISA 9.0, cp.async.bulk.tensor."""

MAX_SWIZZLE_REPEAT_BYTES = 1024
"""After which the widest hardware swizzle repeats, see `layout.swizzle`."""

VECTOR_BYTES = (4, 8, 16)
"""Sizes of one vector access, in bytes. Source: PTX ISA, ld and st."""


@dataclass(frozen=True, slots=True)
class Run:
    """Digits of one dimension that follow each other without a gap: `extent` indices, `stride` apart."""

    stride: int
    extent: int


@dataclass(frozen=True, slots=True)
class Span:
    """The part of one dimension that a tile covers; axes are largest stride first."""

    dim: Dim
    axes: tuple[Axis, ...]

    @property
    def extent(self) -> int:
        return prod(axis.extent or 1 for axis in self.axes)

    def local_stride(self, axis: Axis) -> int:
        """How far apart, inside the tile, neighbouring digits of `axis` lie."""
        return prod(finer.extent or 1 for finer in self.axes if finer.stride < axis.stride)

    def local_index(self, env: Env = HERE) -> Expr:
        """The coordinate inside the tile, from the digits of the running loops."""
        index: Expr = self.coordinate({axis.name: env[axis.name] for axis in self.axes}) + ZERO
        return index

    def coordinate(self, digits: Mapping[str, Any]) -> Any:
        """The coordinate inside the tile for given digits: expressions, integers or arrays."""
        return sum(digits[axis.name] * self.local_stride(axis) for axis in self.axes)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The gapless runs of digits, finest first."""
        found: list[Run] = []
        for axis in reversed(self.axes):
            extent = axis.extent or 1
            if found and axis.stride == found[-1].stride * found[-1].extent:
                found[-1] = Run(found[-1].stride, found[-1].extent * extent)
            else:
                found.append(Run(axis.stride, extent))
        return tuple(found)

    def global_offset(self, local: Expr) -> Expr:
        """The part of the global index that a coordinate inside the tile stands for."""
        offset: Expr = ZERO
        done, left = 1, len(self.runs)
        for run in self.runs:
            left -= 1
            digit = local // done
            offset = offset + (digit if left == 0 else digit % run.extent) * run.stride
            done *= run.extent
        return offset

    @property
    def unit_run(self) -> int:
        """Neighbouring elements of the dimension that the tile holds together (1 if it skips every other)."""
        runs = self.runs
        return runs[0].extent if runs and runs[0].stride == 1 else 1

    def covered(self, width: int) -> tuple[tuple[Axis, int], ...]:
        """The digits that one vector of `width` neighbours runs through, finest first, and how many values of each."""
        found: list[tuple[Axis, int]] = []
        for axis in reversed(self.axes):
            if width == 1:
                break
            values = min(width, axis.extent or 1)
            found.append((axis, values))
            width //= values
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Tile:
    """A staged tile with its geometry. `major` and `minor` are indices into `spans`: slow and fast in memory.

    slots: copies of the tile, in turn filled and read; more than 1 in a pipelined loop. fragment: what a lane holds of
    a register tile that feeds a matrix instruction, which counts the digits in `instruction_axes`. subtiled: elements
    of a row of epilogue subtiles, those of warpgroups side by side; 0 where a tile is no such thing. uneven: the last
    subtile is narrower, so that the C array has no rows of one length. handoff: of `Buffer`. together: the operands
    whose tiles lie one behind the other, this one among them (`ir.joined`); none where it lies by itself.
    """

    staged: Staged
    dtype: DType
    spans: tuple[Span, Span]
    major: int
    minor: int
    global_minor: int
    slots: int = 1
    fragment: Fragment | None = None
    instruction_axes: tuple[Axis, ...] = ()
    subtiled: int = 0
    uneven: bool = False
    handoff: Handoff | None = None
    together: tuple[OperandName, ...] = ()

    @property
    def is_transposed(self) -> bool:
        """Whether neighbours in global memory are a row apart in the tile."""
        return self.minor != self.global_minor

    @property
    def row_length(self) -> int:
        """Elements of one row of the tile in memory, without the pad."""
        return self.subtiled or self.spans[self.minor].extent

    @property
    def rows(self) -> int:
        return self.spans[self.major].extent

    @property
    def elements(self) -> int:
        return self.rows * self.row_length

    @property
    def shared_buffer(self) -> Buffer:
        """The C array of a shared tile."""
        staged = self.staged
        axes: tuple[str, ...] = (f"{self.spans[self.major].dim}_in", f"{self.spans[self.minor].dim}_in")
        notes = []
        if self.is_transposed:
            notes.append("transposed")
        if staged.pad:
            notes.append(f"rows padded by {staged.pad}")
        if staged.arrangement is not None:
            notes.append(staged.arrangement.text)
        shape: tuple[int, ...] = (self.rows, self.row_length + staged.pad)
        align_bytes = 0
        if isinstance(staged.arrangement, SwizzleAtoms):
            columns = staged.arrangement.columns
            axes, shape = ("atom", *axes), (self.row_length // columns, self.rows, columns)
            align_bytes = swizzle_of(staged.arrangement.row_bytes).repeat_bytes
        elif self.subtiled:
            align_bytes = BOX_ALIGN_BYTES
        if self.uneven:
            axes, shape, align_bytes = ("element",), (self.elements,), MAX_SWIZZLE_REPEAT_BYTES
        name = staged.name
        if self.together:
            name = name.replace(staged.operand, self.together[0], 1)
            axes, shape = ("operand", *axes), (len(self.together), *shape)
            notes.append(f"of {', '.join(self.together)}")
        if self.slots > 1:
            axes, shape = ("stage", *axes), (self.slots, *shape)
        note = ", ".join(notes)
        return Buffer(name, Space.SHARED, self.dtype, shape, axes, note, align_bytes, None, self.slots, self.handoff)

    @property
    def register_axes(self) -> tuple[Axis, ...]:
        """The digits of a register tile that a thread counts itself, the fast dimension of its source last."""
        axes = (*self.spans[self.major].axes, *self.spans[self.minor].axes)
        return tuple(axis for axis in axes if axis not in self.instruction_axes)

    @property
    def register_buffer(self) -> Buffer:
        """The C array of a register tile: an extent for each digit."""
        axes = self.register_axes
        names: tuple[str, ...] = tuple(axis.name for axis in axes)
        shape: tuple[int, ...] = tuple(axis.extent or 1 for axis in axes) or (1,)
        if self.fragment is not None:
            names = (*names, FRAGMENT)
            shape = (*(axis.extent or 1 for axis in axes), self.fragment.registers)
        if self._alternates:
            names, shape = (f"{self.staged.under} % 2", *names), (2, *shape)
        return Buffer(self.staged.name, Space.REGISTER, self.dtype, shape, names)

    def register_index(self, env: Env = HERE) -> tuple[Expr, ...]:
        """The index of the running iteration's element, or fragment, in the C array of a register tile."""
        index: tuple[Expr, ...] = tuple(env[axis.name] for axis in self.register_axes)
        index = (*index, ZERO) if self.fragment is not None or not index else index
        return (env[self.staged.under] % 2, *index) if self._alternates else index

    @property
    def _alternates(self) -> bool:
        """Whether one step's fragments are loaded while those of another are used."""
        return self.staged.prefetched and not self.staged.in_place

    def place(self, row: Any, col: Any) -> tuple[Any, Any]:
        """The index in the C array of a shared tile, for coordinates inside the tile."""
        coordinates = (row, col)
        slow, fast = coordinates[self.major], coordinates[self.minor]
        if self.staged.arrangement is not None:
            fast = self.staged.arrangement.column(slow, fast, self.row_length)
        return slow, fast

    def at(self, row: Expr, col: Expr, env: Env = HERE) -> Ref:
        """The place of an element in shared memory, in the stage of the ring that `env` names."""
        slow, fast = self.place(row, col)
        index: tuple[Expr, ...] = (slow, fast)
        if isinstance(self.staged.arrangement, SwizzleAtoms):
            columns = self.staged.arrangement.columns
            plain = (row, col)[self.minor]  # columns change places within their atom only
            index = (plain // columns, slow, self.staged.arrangement.column(slow, plain % columns, columns))
        return Ref(self.shared_buffer, (*self.stage(env), *index))

    def stage(self, env: Env) -> tuple[Expr, ...]:
        """What the index of a shared tile begins with: its stage, where it has several, and its place among those that
        lie together."""
        place = (Const(self.together.index(self.staged.operand)),) if self.together else ()
        if self.slots == 1:
            return place
        assert env.stage is not None, f"a stage of {self.staged.name} is asked for outside of its pipeline"
        return (env.stage, *place)

    @property
    def widest_row_access(self) -> int:
        """Neighbouring elements of a row that may be accessed at once, by alignment of the rows and arrangement."""
        width = 16 // self.dtype.bytes
        run = self.row_length if self.staged.arrangement is None else self.staged.arrangement.run(self.row_length)
        while width > 1 and ((self.row_length + self.staged.pad) % width or run % width or self.row_length % width):
            width //= 2
        return width

    def copy_width(self, vector: int) -> int:
        """Of `vector` neighbours in global memory, how many lie side by side and aligned in the tile."""
        return min(vector, self.widest_row_access) if self.minor == self.global_minor else 1


def tile_of(program: Program, staged: Staged) -> Tile:
    """The geometry of a staged tile of a program; found once, as each law and each emitter asks for it."""
    tile: Tile | None = next((tile for known, tile in program.tiles if known is staged), None)
    if tile is None:
        tile = _tile_of(program, staged)
        program.tiles.append((staged, tile))
    return tile


def _tile_of(program: Program, staged: Staged) -> Tile:
    operand = program.gemm.operand(staged.operand)
    row_axes, col_axes = program.tile_axes(staged)
    global_minor = operand.dims.index(operand.contiguous)
    minor = global_minor
    source = source_of(program, staged)
    if staged.space is Space.REGISTER and source is not None:
        minor = tile_of(program, source).minor
    elif staged.rows:
        minor = 1 - operand.dims.index(staged.rows)
    spans = (Span(operand.dims[0], row_axes), Span(operand.dims[1], col_axes))
    # A staged result holds sums, which are finished and rounded to C's type only on the way out, or on the way in.
    raw = staged.operand == "C" and not staged.finished
    dtype = accumulator_of(program).result_dtype if raw else operand.dtype
    in_registers = program.tensorized is not None and staged.space is Space.REGISTER
    fragment = fragment_of(program, staged.operand) if in_registers else None
    axes = program.instruction_axes if in_registers else ()
    tile = Tile(staged, dtype, spans, 1 - minor, minor, global_minor, program.slots(staged), fragment, axes)
    together = joined(program)
    tile = replace(tile, handoff=program.handoff_of(staged), together=together if staged.operand in together else ())
    return _subtiled(program, tile) if staged.finished or staged.subtile else tile


def _subtiled(program: Program, tile: Tile) -> Tile:
    """The tile of which shared memory holds epilogue subtiles."""
    columns, each = program.result_columns(tile.staged), program.subtile_columns(tile.staged)
    side_by_side = tile.spans[tile.minor].extent // columns
    return replace(tile, subtiled=each * side_by_side, uneven=columns % each != 0)


def fragment_of(program: Program, operand: OperandName) -> Fragment | None:
    """What a lane holds of one instruction's tile of an operand; None where no matrix instruction is used.

    Of A and B: rows and columns of the operand, whichever way round the instruction takes them. Of C: rows and columns
    of the instruction.
    """
    if program.tensorized is None:
        return None
    instruction = program.tensorized.instruction
    if operand == "C":
        return instruction.c
    left = instruction.left if instruction.reads_shared else instruction.a
    if not program.is_turned:
        return left if operand == "A" else instruction.b
    other = instruction.b if operand == "A" else left
    return None if other is None else other.turned


def source_of(program: Program, staged: Staged) -> Staged | None:
    """The tile that `staged` is copied from; None is global memory."""
    chain = program.chain(staged.operand)
    at = chain.index(staged)
    return chain[at - 1] if at else None


def quad_shuffle_axis(program: Program) -> Axis | None:
    """The digit of the fragments whose rows a quad shuffle transpose exchanges, so that each lane stores one of them.

    There is one where C is stored in vectors of four words, and a lane holds one: None where each lane stores what it
    holds, or where fragments have other layouts.
    """
    fragment, operand = fragment_of(program, "C"), program.gemm.operand("C")
    if fragment is None or fragment.opaque or program.result_vector * operand.dtype.bytes != QUAD_LANES * WORD_BYTES:
        return None
    along: Literal[0, 1] = 0 if program.instruction_axes[0].dim == operand.contiguous else 1
    held = fragment.neighbours(along)
    quad = FragmentDigit(Holder.LANE, 1, QUAD_LANES, along, held)
    whole_row = (fragment.rows, fragment.columns)[along] == QUAD_LANES * held == program.result_vector
    axes = [axis for axis in program.sum_axes if axis.dim == operand.contiguous]
    if quad not in fragment.digits or not whole_row or not axes:
        return None
    finest = min(axes, key=lambda axis: axis.stride)
    return finest if (finest.extent or 1) % QUAD_LANES == 0 else None


def result_span(program: Program) -> Span:
    """The digits of C's contiguous dimension that one thread holds in its sum."""
    dim = program.gemm.operand("C").contiguous
    axes = [axis for axis in program.sum_axes if axis.dim == dim]
    return Span(dim, tuple(sorted(axes, key=lambda axis: -axis.stride)))
