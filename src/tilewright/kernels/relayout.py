"""Copies of matrices before a product: padded, transposed, in another format.

A padded copy moves the widest pieces that addresses and lines allow, neighbouring lanes neighbouring pieces. A
transposed copy goes through a tile in shared memory, in words of 4 bytes, so that loads and stores both run along
lines; elements of 2 bytes or 1 are transposed in pairs or fours, in registers. Words of a tile's row are XOR-swizzled
with the number of the row, so neither side has bank conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import DType
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.expr import ceil_div as ceil_div_of
from tilewright.ir.finish import as_f32, as_format
from tilewright.ir.kernel import WIDEST_BYTES, Kernel
from tilewright.ir.stmt import Alloc, Assign, Barrier, Body, If, Let, Move
from tilewright.kernels.statements import (
    BLOCK,
    THREAD,
    WARP_LANES,
    against_batch,
    against_overlap,
    argument,
    at,
    below,
    element_of,
    launched,
    registers,
    threads_along,
    times,
    together,
    unrolled,
    widest,
    within,
)
from tilewright.problem.relayout import MatrixCopy, Relayout
from tilewright.units import ceil_div

THREADS = 256
_WARPS = THREADS // WARP_LANES

_WORD_BYTES = 4
"""What a transposed copy moves at a time, and the width of a bank."""

_LEAST_TILE_LINES = 64
"""Lines of the source in a tile of a transposed copy, at least: a warp writes whole words of a line."""

_PIECES: dict[int, int] = {16: 4, 8: 8, 4: 8, 2: 16, 1: 16}
"""Pieces of a padded copy that a thread has in flight, by their bytes: 2048 threads of an SM ask for 64 KiB or more at
a time, and bandwidth times latency of an H200 is 25 to 33 KiB an SM."""


@dataclass(frozen=True, slots=True)
class CopyConfig:
    """How one matrix is copied.

    transposed: see `MatrixCopy`
    width: elements of one load; addresses, lines and steps of the source are multiples of it
    along: threads of a block along a line (a power of two), of a padded copy
    """

    transposed: bool
    width: int
    along: int = THREADS

    @classmethod
    def of(cls, copy: MatrixCopy, dtype: DType, out: DType, aligned_bytes: int) -> CopyConfig:
        """The widest copy that is legal. aligned_bytes: what the address, the lines and the steps of the source are
        multiples of."""
        most = _WORD_BYTES // dtype.bytes if copy.transposed else WIDEST_BYTES // max(dtype.bytes, out.bytes)
        width = widest(dtype.bytes, aligned_bytes, copy.length, most=most)
        along = THREADS if copy.transposed else threads_along(ceil_div(copy.to_length, width))
        return cls(copy.transposed, width, along)

    def lines(self, dtype: DType) -> int:
        """Lines of the copy that a block writes."""
        if self.transposed:
            return WARP_LANES * (_WORD_BYTES // dtype.bytes)
        return THREADS // self.along * _PIECES[self.width * dtype.bytes]

    def elements(self, dtype: DType) -> int:
        """Elements of a line of the copy that a block writes."""
        return _tile_lines(dtype) if self.transposed else self.along * self.width


def _tile_lines(dtype: DType) -> int:
    """Lines of the source in a tile of a transposed copy."""
    return max(_LEAST_TILE_LINES, WARP_LANES * (_WORD_BYTES // dtype.bytes))


@dataclass(frozen=True, slots=True)
class RelayoutConfig:
    """A kernel that copies one or two matrices. overlapped: it starts under the kernel before (sm_90 and later)."""

    copies: tuple[CopyConfig, ...]
    overlapped: bool = True

    @classmethod
    def of(cls, problem: Relayout, aligned_bytes: Sequence[int], *, overlapped: bool = True) -> RelayoutConfig:
        """The widest copies that are legal. aligned_bytes: of each source."""
        pairs = zip(problem.copies, aligned_bytes, strict=True)
        return cls(tuple(CopyConfig.of(c, problem.dtype, problem.out, size) for c, size in pairs), overlapped)

    def reasons_against(self, problem: Relayout, spec: DeviceSpec | None = None) -> tuple[str, ...]:
        """Why this kernel cannot do these copies, in words; empty if it can."""
        found: list[str] = []
        if len(self.copies) != len(problem.copies):
            return (f"it copies {len(self.copies)} matrices, not {len(problem.copies)}",)
        for how, copy in zip(self.copies, problem.copies, strict=True):
            if how.transposed is not copy.transposed:
                found.append("a copy is transposed by one of the two, and not by the other")
            if copy.length % how.width or copy.leading % how.width or copy.step % how.width:
                found.append(f"lines of {copy.length} elements are not multiples of {how.width}")
            piece = max(how.width, _WORD_BYTES // problem.out.bytes if how.transposed else 1)
            if copy.to_length % piece or copy.to_leading % piece or copy.to_step % piece:
                found.append(f"lines of {copy.to_length} elements of a copy are not multiples of {piece}")
        return *found, *against_batch(problem.count), *against_overlap(self.overlapped, spec)

    def blocks(self, problem: Relayout) -> int:
        """Blocks of one matrix of the batch."""
        return sum(
            ceil_div(copy.to_lines, how.lines(problem.dtype)) * ceil_div(copy.to_length, how.elements(problem.dtype))
            for how, copy in zip(self.copies, problem.copies, strict=True)
        )

    def kernel(self, problem: Relayout) -> Kernel:
        """The kernel for the formats of a problem; sizes are arguments, offsets have 64 bits."""
        names = zip(self.copies, problem.names, strict=True)
        parts = [_Copy(how, suffix, problem.dtype, problem.out) for how, suffix in names]
        first = parts[0].blocks()
        body, grid_x = parts[0].body(BLOCK), first
        if len(parts) > 1:
            body = (If(below(BLOCK, first), body, parts[1].body(BLOCK - first)),)
            grid_x = first + parts[1].blocks()
        tile = Buffer("tile", Space.SHARED, problem.dtype, self._tile_shape(problem.dtype), ("column", "line"))
        word = "_".join(
            f"{'transposed' if how.transposed else 'padded'}_{problem.dtype.name}x{how.width}"
            + ("" if how.transposed or how.along == THREADS else f"_{how.along}")
            for how in self.copies
        )
        convert = "" if problem.out is problem.dtype else f"_to_{problem.out.name}"
        return launched(
            f"copy_{word}{convert}",
            problem,
            min(how.width for how in self.copies) * problem.dtype.bytes,
            (grid_x, Const(1), argument("count")),
            THREADS,
            body,
            shared=(tile,) if any(how.transposed for how in self.copies) else (),
            overlapped=self.overlapped,
        )

    @staticmethod
    def _tile_shape(dtype: DType) -> tuple[int, int]:
        return WARP_LANES * (_WORD_BYTES // dtype.bytes), _tile_lines(dtype)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The statements that copy one matrix. suffix: of the names of its arguments."""

    how: CopyConfig
    suffix: str
    dtype: DType
    out: DType

    def _argument(self, name: str) -> Var:
        return argument(f"{name}{self.suffix}")

    def blocks(self) -> Expr:
        lines = ceil_div_of(self._argument("to_lines"), self.how.lines(self.dtype))
        return lines * self._pieces()

    def _pieces(self) -> Expr:
        """Blocks that share a line of the copy."""
        return ceil_div_of(self._argument("to_length"), self.how.elements(self.dtype))

    def body(self, block: Expr) -> Body:
        """block: the number of this block among those of the copy."""
        group = Let("group", binary(Op.DIV, block, self._pieces()))
        piece = Let("piece", block - Var("group") * self._pieces())
        return (group, piece, *(self._transposed() if self.how.transposed else self._padded()))

    def _source(self, line: Expr, column: Expr) -> Ref:
        return self._place("source", self.dtype, line, "leading", column, "step")

    def _target(self, line: Expr, column: Expr) -> Ref:
        return self._place("target", self.out, line, "to_leading", column, "to_step")

    def _place(self, name: str, dtype: DType, line: Expr, leading: str, column: Expr, step: str) -> Ref:
        of_batch = times(Var("blockIdx.z"), f"{step}{self.suffix}", near=False)
        offset = of_batch + times(line, f"{leading}{self.suffix}", near=False) + column
        return element_of(f"{name}{self.suffix}", dtype, offset)

    def _stored(self, held: Buffer, index: tuple[Expr, ...], place: Ref, width: int, guard: Expr) -> Body:
        """Registers to the copy, in its format."""
        origin = f"target{self.suffix}"
        if self.out is self.dtype:
            return (Move(place, at(held, *index, ZERO), width, guard, origin=origin),)
        converted = registers("converted", self.out, width)

        def convert(element: Expr) -> Assign:
            return Assign(at(converted, element), as_format(as_f32(Load(held, (*index, element))), self.out))

        store = Move(place, at(converted, ZERO), width, guard, origin=origin)
        return together(Alloc(converted), unrolled("element", width, convert), store)

    def _padded(self) -> Body:
        how, count = self.how, _PIECES[self.how.width * self.dtype.bytes]
        down, column = THREADS // how.along, Var("column")
        held = registers("held", self.dtype, count, how.width)

        def load(i: Expr) -> Move:
            line = Var("line") + i * down
            inside = within(line, column, "", self.suffix)
            place = self._source(line, column)
            return Move(at(held, i, ZERO), place, how.width, inside, origin=f"source{self.suffix}")

        def store(i: Expr) -> Body:
            line = Var("line") + i * down
            inside = within(line, column, "to_", self.suffix)
            return self._stored(held, (i,), self._target(line, column), how.width, inside)

        return together(
            Let("line", Var("group") * (down * count) + binary(Op.DIV, THREAD, how.along)),
            Let("column", (Var("piece") * how.along + THREAD % how.along) * how.width),
            Alloc(held),
            unrolled("i", count, load),
            unrolled("i", count, store),
        )

    def _transposed(self) -> Body:
        tile = _Tile(self)
        return together(
            Let("lane", THREAD % WARP_LANES),
            Let("warp", binary(Op.DIV, THREAD, WARP_LANES)),
            Let("first_line", Var("piece") * _tile_lines(self.dtype)),
            Let("first_column", Var("group") * tile.columns),
            Alloc(tile.held),
            unrolled("i", tile.rounds, lambda i: unrolled("row", tile.pair, lambda row: tile.load(i, row))),
            unrolled("i", tile.rounds, lambda i: unrolled("neighbour", tile.pair, lambda j: tile.fill(i, j))),
            Barrier(note="the tile is complete"),
            unrolled(
                "i",
                tile.columns // _WARPS,
                lambda i: unrolled("half", tile.words // WARP_LANES, partial(tile.store, i)),
            ),
        )


class _Tile:
    """A tile of a transposed copy. `pair` neighbours make a word: a lane loads the words of `pair` lines, and puts
    those of as many columns into the tile, whose rows are columns of the source."""

    def __init__(self, copy: _Copy) -> None:
        self._copy = copy
        dtype = copy.dtype
        self.pair = _WORD_BYTES // dtype.bytes
        self.words = _tile_lines(dtype) // self.pair  # of a row of the tile
        self.columns, self.rounds = WARP_LANES * self.pair, self.words // _WARPS
        self.tile = Buffer("tile", Space.SHARED, dtype, (self.columns, _tile_lines(dtype)), ("column", "line"))
        self.held = registers("held", dtype, self.rounds, self.pair, self.pair)
        self._lane, self._warp = Var("lane"), Var("warp")

    def load(self, i: Expr, row: Expr) -> Body:
        """A word of a line, or its parts one by one."""
        copy, width = self._copy, self._copy.how.width
        line = Var("first_line") + (self._warp + i * _WARPS) * self.pair + row

        def piece(j: Expr) -> Move:
            column = Var("first_column") + self._lane * self.pair + j * width
            guard = within(line, column, "", copy.suffix)
            place = copy._source(line, column)
            return Move(at(self.held, i, row, j * width), place, width, guard, origin=f"source{copy.suffix}")

        return unrolled("neighbour", self.pair // width, piece)

    def fill(self, i: Expr, neighbour: Expr) -> Body:
        """A word of a column into the tile."""
        word = registers("word", self._copy.dtype, self.pair)
        swizzled = ((self._warp + i * _WARPS) ^ self._lane) * self.pair
        place = at(self.tile, self._lane * self.pair + neighbour, swizzled)
        take = unrolled("row", self.pair, lambda row: Assign(at(word, row), Load(self.held, (i, row, neighbour))))
        return together(Alloc(word), take, Move(place, at(word, ZERO), self.pair, origin="tile"))

    def store(self, i: Expr, half: Expr) -> Body:
        """A word of a row of the tile to a line of the copy."""
        copy, taken = self._copy, registers("taken", self._copy.dtype, self.pair)
        row, unit = self._warp + i * _WARPS, self._lane + half * WARP_LANES
        line, column = Var("first_column") + row, Var("first_line") + unit * self.pair
        guard = within(line, column, "to_", copy.suffix)
        place = at(self.tile, row, (unit ^ (row // self.pair)) * self.pair)
        load = Move(at(taken, ZERO), place, self.pair, origin="tile")
        return together(Alloc(taken), load, copy._stored(taken, (), copy._target(line, column), self.pair, guard))
