"""wmma.load and wmma.store: whole tiles between shared memory and fragments whose layout is the hardware's affair.

Which lane touches which element of memory is not stated by NVIDIA. It is assumed to be what compiled code does
(NVRTC 13.0 for sm_90a, seen with nvdisasm); the counts rest on it, the results do not:

    A, B of 2 bytes     one ldmatrix .x4: 16-byte rows along the contiguous index (LDSM; LDSM.T transposes them)
    A, B of 4 bytes     four LDS: lane / 4 along m or n, lane % 4 along k
    sums of 4 bytes     rows contiguous: four STS.64, pairs along a row; columns contiguous: eight STS
    sums of 2 bytes     four STS, pairs along the contiguous index
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import TF32, Array, DType
from tilewright.errors import FormatError
from tilewright.isa.instruction import MatrixInstruction
from tilewright.isa.wmma import WMMA_POINTER_BYTES, WMMA_ROW_BYTES
from tilewright.layout.fragment import MATRIX_ROW_BYTES, MATRIX_ROWS, Fragment
from tilewright.problem.gemm import Order
from tilewright.simulator.collective import Holding, check_whole_warps, holding_of
from tilewright.simulator.context import Context, where
from tilewright.simulator.convoy import Convoy
from tilewright.simulator.findings import Kind
from tilewright.simulator.index import Place, Spread
from tilewright.simulator.moves import MemorySide
from tilewright.simulator.values import RegisterView
from tilewright.simulator.warps import Pattern


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one machine instruction touches of a tile: `width` elements a lane along the contiguous index.

    line, along: where each lane begins, (32,): the number of its line (a row or a column of the tile), and the
    position in that line. matrices: of 8 rows of 16 bytes, where the instruction is ldmatrix.
    """

    line: Array
    along: Array
    width: int
    matrices: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TileAccess:
    """A tile in memory: `rows` x `columns`, in the order given, touched piece by piece."""

    rows: int
    columns: int
    order: Order
    pieces: tuple[Piece, ...]

    def offsets(self, piece: Piece, leading: int) -> Array:
        """Elements from the tile's first to each lane's first, (32,)."""
        offsets: Array = piece.line * leading + piece.along
        return offsets

    def holding(self) -> Holding:
        """Elements counted row by row, as the lanes touch them, piece after piece."""
        numbers: list[Array] = []
        for piece in self.pieces:
            for step in range(piece.width):
                along = piece.along + step
                row, column = (piece.line, along) if self.order is Order.ROW else (along, piece.line)
                numbers.append(row * self.columns + column)
        return Holding(np.stack(numbers), self.rows * self.columns)

    @property
    def width(self) -> int:
        return self.pieces[0].width


_LANE = np.arange(WARP_THREADS)


@lru_cache
def load_access(instruction: MatrixInstruction, role: Literal["A", "B"], order: Order) -> TileAccess:
    """How a tile of A or B is read."""
    fragment = operand_fragment(instruction, role)
    if instruction.product.bytes == 2:
        each = MATRIX_ROW_BYTES // 2
        matrix, row = _LANE // MATRIX_ROWS, _LANE % MATRIX_ROWS
        pieces: tuple[Piece, ...] = (Piece(matrix % 2 * MATRIX_ROWS + row, matrix // 2 * each, each, 4),)
        return TileAccess(fragment.rows, fragment.columns, order, pieces)
    if instruction.product is not TF32:
        raise FormatError(f"The simulator does not know where {instruction.name} has its operands.")
    pieces = ()
    for k in range(0, instruction.k, 4):
        for other in range(0, 16, 8):
            # k is the column of A and the row of B.
            at = (_LANE // 4 + other, _LANE % 4 + k) if role == "A" else (_LANE % 4 + k, _LANE // 4 + other)
            line, along = at if order is Order.ROW else at[::-1]
            pieces = (*pieces, Piece(line, along, 1))
    return TileAccess(fragment.rows, fragment.columns, order, pieces)


@lru_cache
def store_access(instruction: MatrixInstruction, order: Order) -> TileAccess:
    """How a tile of sums is written."""
    pieces: tuple[Piece, ...] = ()
    transposed = order is Order.COL and instruction.accumulate.bytes == 4
    for far in range(0, 16, 8):
        for near in range(0, 16, 8):
            quad, pair = _LANE // 4 + far, _LANE % 4 * 2 + near
            if transposed:  # a lane holds pairs along a row, which are apart in memory
                pieces = (*pieces, Piece(pair, quad, 1), Piece(pair + 1, quad, 1))
            else:
                pieces = (*pieces, Piece(quad, pair, 2))
    return TileAccess(instruction.m, instruction.n, order, pieces)


def access_opcodes(access: TileAccess, dtype: DType, *, store: bool) -> Mapping[str, int]:
    """The machine instructions that touch a tile."""
    if access.pieces[0].matrices:
        return {"LDSM": 1}
    bits = access.width * dtype.bytes * 8
    name = "STS" if store else "LDS"
    return {name if bits == 32 else f"{name}.{bits}": len(access.pieces)}


def operand_fragment(instruction: MatrixInstruction, role: Literal["A", "B"]) -> Fragment:
    fragment = instruction.a if role == "A" else instruction.b
    assert fragment is not None, "an opaque instruction has its operands in registers"
    return fragment


@dataclass(slots=True)
class TileOp:
    """What the load and the store of a tile have in common.

    corner: of the tile in memory. sides: that of each piece. view: the registers of the fragment. leading: elements
    between lines of the tile.
    """

    context: Context
    corner: Place
    access: TileAccess
    held: Holding
    sides: tuple[MemorySide, ...]
    fragment: Fragment
    view: RegisterView
    leading: int

    def __call__(self, convoy: Convoy) -> None:
        """Carry the operation out."""
        raise AssertionError(f"{type(self).__name__} does nothing")

    def _check(self, convoy: Convoy) -> None:
        """Report what the instruction does not allow: parts of warps, lanes that disagree, tiles that lie askew."""
        side = self.sides[0]
        check_whole_warps(side.site, self.context, convoy)
        pattern, offset = self.corner.cell.of(convoy).pattern(convoy.mask), self.corner.offset(convoy.slots)
        if not pattern.known("one place", lambda: _agrees(pattern)):
            self._report_disagreement(convoy, pattern)
        size = side.buffer.dtype.bytes
        first = offset * size + self.context.memory.base_of(side.buffer.name)
        key = ("corner", size, first % WMMA_POINTER_BYTES)
        if not pattern.known(key, lambda: not _askew(pattern, size, first).any()):
            lanes = _askew(pattern, size, first)
            byte = int(pattern.lanes.values[int(np.argmax(lanes))]) * size + first
            why = f"A tile of {side.buffer.name} begins at byte {byte}, not at a multiple of {WMMA_POINTER_BYTES}."
            self._report_askew(convoy, lanes, why)
        if self.leading * size % WMMA_ROW_BYTES:
            lines = "rows" if self.access.order is Order.ROW else "columns"
            why = (
                f"The {lines} of a tile of {side.buffer.name} are {self.leading * size} bytes apart, "
                f"not a multiple of {WMMA_ROW_BYTES}."
            )
            self._report_askew(convoy, _present(pattern), why)

    def _report_disagreement(self, convoy: Convoy, pattern: Pattern) -> None:
        rows = pattern.rows
        self.context.findings.report(
            Kind.PARTED_WARP,
            "Lanes of a warp name different places for one tile.",
            where(self.sides[0].site, convoy, ((rows != rows[:, :1]).reshape(-1)) & _present(pattern)),
            self.sides[0].buffer.name,
            note="the address must be the same in all lanes of the warp.",
            hint="compute it from the number of the warp, not from that of the thread.",
        )

    def _report_askew(self, convoy: Convoy, lanes: Array, headline: str) -> None:
        self.context.findings.report(
            Kind.MISALIGNED,
            headline,
            where(self.sides[0].site, convoy, lanes),
            self.sides[0].buffer.name,
            note="wmma loads and stores tiles that begin at a multiple of 32 bytes, with lines 16 bytes apart.",
            hint="pad the tile by a multiple of 16 bytes, and let tiles begin at multiples of 32 bytes.",
        )


def _present(pattern: Pattern) -> Array:
    if pattern.active is None:
        return np.ones(pattern.lanes.values.size, np.bool_)
    return pattern.active.lanes


def _agrees(pattern: Pattern) -> bool:
    rows = pattern.rows
    other = rows != rows[:, :1]
    return not (other if pattern.active_rows is None else other & pattern.active_rows).any()


def _askew(pattern: Pattern, size: int, first: int) -> Array:
    lanes: Array = (pattern.lanes.values * size + first) % WMMA_POINTER_BYTES != 0
    return lanes & _present(pattern)


@dataclass(slots=True)
class LoadTileOp(TileOp):
    """wmma.load. Registers that the simulator's layout leaves over hold zero."""

    def __call__(self, convoy: Convoy) -> None:
        self._check(convoy)
        rows = []
        for number, (side, piece) in enumerate(zip(self.sides, self.access.pieces, strict=True)):
            pattern, offset = side.reach(convoy)
            access = side.tell(convoy, pattern, offset, matrices=piece.matrices, continued=number > 0)
            rows.append(side.fetch(convoy, access))
        tiles = self.held.tiles(np.concatenate(rows))
        held = holding_of(self.fragment).registers(tiles)
        numbers = self.context.arithmetic.decode(held, self.sides[0].buffer.dtype)
        self.view.put(convoy, np.pad(numbers, ((0, self.fragment.registers - len(held)), (0, 0))))


@dataclass(slots=True)
class StoreTileOp(TileOp):
    """wmma.store."""

    def __call__(self, convoy: Convoy) -> None:
        self._check(convoy)
        held = self.view.read(convoy)[: self.fragment.numbered]
        rows = self.held.registers(holding_of(self.fragment).tiles(held))
        first = 0
        for number, side in enumerate(self.sides):
            pattern, offset = side.reach(convoy)
            access = side.tell(convoy, pattern, offset, continued=number > 0)
            side.put(convoy, access, rows[first : first + side.width])
            first += side.width


def tile_sides(side: MemorySide, access: TileAccess, leading: int) -> tuple[MemorySide, ...]:
    """One side for each piece of a tile, each lane where it touches memory. side: at the tile's corner."""
    sides = []
    for piece in access.pieces:
        spread = Spread(side.place.cell, access.offsets(piece, leading))
        place = Place(spread, side.place.offset, side.place.is_narrow)
        sides.append(
            MemorySide(
                side.site, side.context, side.buffer, place, piece.width, None, side.is_store, checked_width=piece.width
            )
        )
    return tuple(sides)
