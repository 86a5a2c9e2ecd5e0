"""Instructions that the 32 lanes of a warp execute together: matrices loaded from shared memory, tiles multiplied.

Each is simulated in three steps: registers become tiles, one for each warp, something is done with the tiles, and tiles
become registers again. Each step is one gather over all warps of a convoy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import F32, I32, TF32, Array
from tilewright.ir.expr import Op
from tilewright.ir.stmt import ShuffleAdd
from tilewright.isa.instruction import MatrixInstruction
from tilewright.layout.fragment import MATRIX_ROW_BYTES, MATRIX_ROWS, QUAD_LANES, WORD_BYTES, Fragment
from tilewright.simulator.context import Context, where
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind, Site
from tilewright.simulator.moves import MemorySide
from tilewright.simulator.values import RegisterView


class Holding:
    """Who holds which element of a tile. numbers: of the element, (registers, 32); each element is held once or not."""

    __slots__ = ("elements", "numbers")

    def __init__(self, numbers: Array, elements: int) -> None:
        self.numbers = np.asarray(numbers, np.int64)
        self.elements = elements

    def tiles(self, rows: Array) -> Array:
        """Registers, (registers, lanes), as tiles, (warps, elements)."""
        return np.take(rows, _tile_places(self, rows.shape[1] // WARP_THREADS))

    def registers(self, tiles: Array) -> Array:
        """Tiles, (warps, elements), as registers, (registers, lanes)."""
        return np.take(tiles, _register_places(self, len(tiles)))


# All but a few convoys of a run have as many warps.
@lru_cache
def _tile_places(held: Holding, warps: int) -> Array:
    """Where the elements of the tiles of these warps lie in (registers, lanes), flat: (warps, elements)."""
    place = np.zeros(held.elements, np.int64)  # of each element in the registers of warp 0
    register, lane = np.indices(held.numbers.shape)
    place[held.numbers] = register * warps * WARP_THREADS + lane
    places: Array = place + WARP_THREADS * np.arange(warps)[:, None]
    return places


@lru_cache
def _register_places(held: Holding, warps: int) -> Array:
    """Where what registers hold lies in (warps, elements), flat: (registers, lanes)."""
    first = held.elements * np.arange(warps)[:, None]
    return (held.numbers[:, None, :] + first).reshape(len(held.numbers), -1)


@lru_cache
def holding_of(fragment: Fragment) -> Holding:
    """Who holds which element of a matrix, counted row by row.

    >>> from tilewright.layout.fragment import ACCUMULATOR_16X8
    >>> holding_of(ACCUMULATOR_16X8).numbers[:, 5].tolist()
    [10, 11, 74, 75]
    """
    row, column = fragment.places()
    return Holding((row * fragment.columns + column).T, fragment.rows * fragment.columns)


def as_matrices(tiles: Array, fragment: Fragment) -> Array:
    """Tiles, (warps, elements), as matrices, (warps, rows, columns)."""
    matrices: Array = tiles.reshape(-1, fragment.rows, fragment.columns)
    return matrices


TRANSPOSE_QUAD: Mapping[str, int] = {"SHFL": QUAD_LANES}
"""Shuffles of a quad shuffle transpose: in each of two steps, two words to another lane."""

_COMBINES = {(Op.ADD, F32): "FADD", (Op.MAX, F32): "FMNMX", (Op.ADD, I32): "IADD3", (Op.MAX, I32): "VIMNMX"}


def shuffle_opcodes(stmt: ShuffleAdd) -> Mapping[str, int]:
    """What adds the register of another lane."""
    chosen = {} if stmt.other is None else {"SEL": 2}
    return {"SHFL": 1, _COMBINES[stmt.op, stmt.place.buffer.dtype]: 1, **chosen}


def check_whole_warps(site: Site, context: Context, convoy: Convoy) -> None:
    """Report warps of which only some lanes reach an instruction of the whole warp; they go on as if it were allowed.

    Source: PTX ISA 9.0, "the mandatory .sync qualifier", and ".aligned": all threads of the warp execute the same
    instruction, otherwise the behaviour is undefined.
    """
    mask = convoy.mask
    if mask is None or not mask.parted.any():
        return
    context.findings.report(
        Kind.PARTED_WARP,
        "An instruction of the whole warp is reached by a part of it.",
        where(site, convoy, (mask.rows & mask.parted[:, None]).reshape(-1)),
        note="what the hardware then does is undefined.",
        hint="move the instruction out of the branch, and use blocks of whole warps.",
    )


@lru_cache
def _rows_of_matrices(element_bytes: int) -> Holding:
    """Each lane holds one row of 16 bytes; elements are numbered lane by lane."""
    each = MATRIX_ROW_BYTES // element_bytes
    return Holding(np.arange(each)[:, None] + each * np.arange(WARP_THREADS), each * WARP_THREADS)


@lru_cache
def matrices_in_registers(element_bytes: int, count: int, transposed: bool) -> Holding:
    """What ldmatrix leaves where: numbers count the elements of the 8-row matrices row by row, one after the other.

    >>> matrices_in_registers(2, 1, False).numbers[:, 5].tolist()  # row 1, columns 2 and 3
    [10, 11]
    >>> matrices_in_registers(2, 1, True).numbers[:, 5].tolist()  # rows 2 and 3, column 1
    [17, 25]
    """
    columns, each = MATRIX_ROW_BYTES // element_bytes, WORD_BYTES // element_bytes
    matrix, part, lane = np.indices((count, each, WARP_THREADS))
    row, column = lane // 4, lane % 4 * each + part
    if transposed:
        row, column = column, row
    numbers = (matrix * MATRIX_ROWS + row) * columns + column
    return Holding(numbers.reshape(count * each, WARP_THREADS), columns * WARP_THREADS)


@dataclass(slots=True)
class LoadMatricesOp:
    """ldmatrix. source: the row of 16 bytes that each of the first 8 * `count` lanes points at."""

    context: Context
    source: MemorySide
    target: RegisterView
    count: int
    transposed: bool

    def __call__(self, convoy: Convoy) -> None:
        source, dtype = self.source, self.source.buffer.dtype
        check_whole_warps(source.site, self.context, convoy)
        pattern, offset = source.reach(convoy, also=convoy.warps.first_lanes(MATRIX_ROWS * self.count))
        access = source.tell(convoy, pattern, offset, matrices=self.count)
        tiles = _rows_of_matrices(dtype.bytes).tiles(source.fetch(convoy, access))
        held = matrices_in_registers(dtype.bytes, self.count, self.transposed).registers(tiles)
        self.target.put(convoy, self.context.arithmetic.decode(held, dtype))


@dataclass(slots=True)
class StoreMatricesOp:
    """stmatrix. target: the row of 16 bytes that each of the first 8 * `count` lanes points at."""

    context: Context
    target: MemorySide
    source: RegisterView
    count: int
    transposed: bool

    def __call__(self, convoy: Convoy) -> None:
        target, dtype = self.target, self.target.buffer.dtype
        check_whole_warps(target.site, self.context, convoy)
        pattern, offset = target.reach(convoy, also=convoy.warps.first_lanes(MATRIX_ROWS * self.count))
        held = self.source.read(convoy)
        access = target.tell(convoy, pattern, offset, matrices=self.count)
        tiles = matrices_in_registers(dtype.bytes, self.count, self.transposed).tiles(held)
        target.put(convoy, access, _rows_of_matrices(dtype.bytes).registers(tiles))


@dataclass(slots=True)
class MultiplyTilesOp:
    """`d += a @ b` by each warp, on fragments in its registers."""

    site: Site
    context: Context
    instruction: MatrixInstruction
    d: RegisterView
    a: RegisterView
    b: RegisterView

    def __call__(self, convoy: Convoy) -> None:
        check_whole_warps(self.site, self.context, convoy)
        instruction = self.instruction
        assert instruction.a is not None and instruction.b is not None
        pairs = (instruction.a, self.a), (instruction.b, self.b), (instruction.c, self.d)
        a, b, c = (as_matrices(holding_of(fragment).tiles(view.read(convoy)), fragment) for fragment, view in pairs)
        total: Array = self.context.arithmetic.multiply_tiles(instruction, a, b, c)
        held = holding_of(instruction.c).registers(total.reshape(len(total), -1))
        self.d.put(convoy, held)
        self.context.tell_computed(self.site, convoy, multiply_opcodes(instruction))


@lru_cache
def _squares(element_bytes: int, transposed: bool) -> Holding:
    """Four words of each lane as squares of a quad: lanes number their rows, or, transposed, their columns."""
    each = WORD_BYTES // element_bytes
    word, part, lane = np.indices((QUAD_LANES, each, WARP_THREADS))
    quad, own = lane // QUAD_LANES, lane % QUAD_LANES
    row, column = (word, own) if transposed else (own, word)
    numbers = ((quad * QUAD_LANES + row) * QUAD_LANES + column) * each + part
    return Holding(numbers.reshape(-1, WARP_THREADS), numbers.size)


@dataclass(slots=True)
class QuadTransposeOp:
    """Four words of each lane, which the lanes of a quad transpose as a square."""

    site: Site
    context: Context
    place: RegisterView
    element_bytes: int

    def __call__(self, convoy: Convoy) -> None:
        check_whole_warps(self.site, self.context, convoy)
        squares = _squares(self.element_bytes, False).tiles(self.place.read(convoy))
        self.place.put(convoy, _squares(self.element_bytes, True).registers(squares))
        self.context.tell_computed(self.site, convoy, TRANSPOSE_QUAD)


@dataclass(slots=True)
class ShuffleAddOp:
    """Each lane adds what another holds, or takes the larger: whose number differs in one bit, or the one below. other:
    what lanes with that bit take care of."""

    site: Site
    context: Context
    place: RegisterView
    stmt: ShuffleAdd
    other: RegisterView | None = None

    def __call__(self, convoy: Convoy) -> None:
        check_whole_warps(self.site, self.context, convoy)
        held, lanes, apart = self.place.read(convoy), np.arange(convoy.warps.lanes), self.stmt.mask
        its = lanes - apart if self.stmt.up else lanes ^ apart
        other = held[its]
        if self.other is not None:
            shared, upper = self.other.read(convoy), lanes & apart > 0
            held, other = np.where(upper, shared, held), np.where(upper, shared[its], other)
        total = self.context.arithmetic.binary(self.stmt.op, held, other, self.stmt.place.buffer.dtype)
        if self.stmt.up:
            total = np.where(lanes % WARP_THREADS < apart, held, total)
        self.place.put(convoy, total)
        self.context.tell_computed(self.site, convoy, shuffle_opcodes(self.stmt))


def multiply_opcodes(instruction: MatrixInstruction) -> dict[str, int]:
    """The machine instructions of one: each multiplies eight columns of B (HMMA.16816, HMMA.1688).

    `wmma` of tf32 becomes HMMA.1684, with half its k each (nvdisasm, NVRTC 13.0 for sm_80 and sm_90a); Nsight Compute
    counts as many (benchmarks/results/calibration_cuda_cores_h200_512.json).

    >>> from tilewright.isa.catalog import WMMA_F16_F32, WMMA_TF32_F32
    >>> multiply_opcodes(WMMA_F16_F32), multiply_opcodes(WMMA_TF32_F32)
    ({'HMMA': 2}, {'HMMA': 4})
    """
    halves = 2 if instruction.is_opaque and instruction.product is TF32 else 1
    return {instruction.opcode: instruction.n // 8 * halves}
