"""Copies of rows that begin at any element of 2 bytes: aligned vectors are copied as they lie, and cut out on the SM.

    global memory   | .  .  .  a0 a1 a2 a3 a4 | a5 a6 a7 b0 b1 b2 b3 b4 | b5 b6 ...     vectors of 16 bytes
    vectors         | .  .  .  a0 a1 a2 a3 a4 | a5 a6 a7 b0 b1 b2 b3 b4 | b5 b6 ...     in shared memory, by cp.async
    registers                a0 a1 a2 a3 a4 a5 a6 a7                                    five words, and `CutOut`
    tile            | a0 a1 a2 a3 a4 a5 a6 a7 | b0 b1 b2 b3 b4 b5 b6 b7 |               as its readers want it

What stands in front of a row belongs to other rows, or to nobody, and is never read. How many elements are skipped
depends on the row alone, since tiles begin at multiples of 8 in both directions:

    skip = (phase + row * leading) % 8        phase: at which element of a line the operand begins

Rows along m or n have one vector more than chunks. Rows along k go on in the vectors of the next tile: the slots of a
row stand one behind the other, and the ring's first vector stands behind its last one as well. They are copied in
pieces that begin with a line, or a half of one, so that a row asks for one line a tile, and not for parts of two.

Where the leading dimension is odd, eight rows have eight different skips. They stand in shared memory in the order of
their *turns*: turn = skip there, and a number of their own in any case. The even turns come first; then no banks
conflict when 32 lanes read words of eight rows, four chunks of each. Lanes of turns 2i and 2i + 1 read the same word of
their vectors, other turns other words; and their rows are four rows of an odd number of vectors apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary, both, real
from tilewright.ir.kernel import PHASE_BYTES, PHASES
from tilewright.ir.program import CUT_OUT_TILES as TILES
from tilewright.ir.program import Pipelined, Program, Staged
from tilewright.ir.stmt import CUT_OUT_WIDTH as WIDTH
from tilewright.ir.stmt import CUT_OUT_WORD as WORD
from tilewright.ir.stmt import Alloc, Assign, Body, CutOut, For, If, Let, Move
from tilewright.ir.tiles import Tile, around_name, arrived_name, arriving_name, tile_of
from tilewright.lowering.coordinates import digit_sum, thread_number
from tilewright.lowering.kernel_parts import global_place, value_buffer
from tilewright.lowering.located import size_of
from tilewright.units import ceil_div

ELEMENT_BYTES = 2
ROWS = 8
"""Rows after which as many elements are skipped again in a vector: its elements."""


def takes(program: Program, staged: Staged) -> bool:
    """Whether a tile can be cut out: of whole chunks of 16 bytes in a ring, and of whole groups of rows."""
    tile = tile_of(program, staged)
    return (
        staged.distribution is not None
        and staged.distribution.vector == WIDTH
        and tile.dtype.bytes == ELEMENT_BYTES
        and not tile.is_transposed
        and tile.rows % ROWS == 0
        and tile.copy_width(WIDTH) == WIDTH
        and program.block_tile("k") % WIDTH == 0
    )


def slots_of(ring: Pipelined) -> int:
    """Of the vectors of a ring: one more than it has stages, as rows along k end in the next tile's vectors."""
    return ring.stages + 1


def shared_bytes(rows: int, columns: int, stages: int, *, along_k: bool, by_lanes: bool = False) -> int:
    """What a tile takes that is cut out, of rows along its contiguous dimension: the tile twice, and its vectors.

    by_lanes: there are only the vectors.
    """
    slots = stages + 1
    vectors = rows * (slots * columns + WIDTH) if along_k else slots * rows * (columns + WIDTH)
    return ((0 if by_lanes else TILES * rows * columns) + vectors) * ELEMENT_BYTES


def bytes_of_ring(program: Program, wide: str) -> int:
    """Shared memory of all tiles where those of A and B are cut out, but that of operand `wide` comes as it lies."""

    def size(staged: Staged) -> int:
        tile = tile_of(program, staged)
        if staged.operand in ("C", wide) or program.pipelined is None:
            return tile.shared_buffer.size_bytes
        along_k, by_lanes = tile.spans[tile.minor].dim == "k", program.chain(staged.operand)[-1].is_cut_by_lanes
        stages = program.pipelined.stages
        return shared_bytes(tile.rows, tile.row_length, stages, along_k=along_k, by_lanes=by_lanes)

    return sum(size(staged) for staged in program.staged if staged.space is Space.SHARED)


@dataclass(frozen=True)
class Rows:
    """The rows of a tile, and of the vectors around them. exact: dimensions that have no edge."""

    program: Program
    staged: Staged
    exact: frozenset[str] = frozenset()

    def start(self, *, first: bool) -> Body:
        """Statements that start the copies of the vectors around a tile, into the slot they arrive in.

        first: those of the first tile, which there may be none of.
        """
        name = f"{self._name}_vector"
        return self._each_vector(name, lambda to: (self._copy(name, to, first=first),))

    def clear(self) -> Body:
        """Statements that put zeros behind k, where a thread's vectors that have arrived go on with something else."""
        name = f"{self._name}_vector"
        begin, size, element = self._index(name)[self._tile.global_minor], size_of(self.program, "k"), Var("element")
        value = value_buffer(name, self._tile.dtype, 1)
        zero = Assign(Ref(value, (ZERO,)), real(0, self._tile.dtype), origin=self._name)

        def put(to: Ref) -> Body:
            place = Ref(to.buffer, (*to.index[:-1], to.index[-1] + element))
            store = Move(place, Ref(value, (ZERO,)), 1, binary(Op.LE, size, begin + element), origin=self._name)
            return Alloc(value), zero, For(element.name, Const(WIDTH), (store,))

        return self._each_vector(name, put)

    def _each_vector(self, name: str, what: Callable[[Ref], Body]) -> Body:
        """What a thread does with its own vectors around a tile: of all chunks, then with the last one of each row."""
        rows, count = self._tile.rows, self._tile.row_length // WIDTH
        number, slot, along = self._number(name), Var(arriving_name(self.staged.under)), Var(name) * WIDTH

        def vector(row: Expr, piece: int, which: Expr, to: Ref, placed: Body = ()) -> Body:
            lets = (*self._row(name, row // ROWS, row % ROWS, piece), Let(name, which), *placed)
            return (*lets, *what(to))

        row = number // count
        placed: Body = ()
        to = self.at(slot, self.stored(row), along)
        if self._in_line:
            placed, to = self._placed(name, slot, self.stored(row))
        own = self._in_steps(name, rows * count, vector(row, self._piece, number % count, to, placed))
        if not self._in_line:
            to = self.at(slot, self.stored(number), along)
            return own, self._in_steps(name, rows, vector(number, ROWS, Const(count), to))
        # The first vector of the ring stands behind the last one as well, where the tile in front ends.
        to = self.at(Const(self._slots), self.stored(number), along)
        last = self._in_steps(name, rows, vector(number, ROWS, ZERO, to))
        return own, replace(last, body=(If(binary(Op.EQ, slot, 0), last.body),))

    def cut_out(self) -> Body:
        """Statements that fill the slot of a tile that is being filled, from the vectors that have arrived.

        Each warp cuts chunks out of eight rows, four of each.
        """
        count, name = self._tile.row_length // WIDTH, self._name
        beside = next(beside for beside in (4, 2, 1) if count % beside == 0)
        number = self._number(name)
        place = number // beside % ROWS
        # Quarters of a warp store whole lines of 128 bytes: rows that lie in different halves of one.
        turn = place % 2 * 4 + place // 2 if count >= ROWS else place
        rest = number // (beside * ROWS)
        group = rest // (count // beside)
        chunk = number % beside + rest % (count // beside) * beside
        own, words = value_buffer(name, self._tile.dtype, WIDTH), self._words
        skip, along, word = Var(f"{name}_skip"), Var(f"{name}_chunk") * WIDTH, Var(f"{name}_word")
        first = along + (skip & (WIDTH - WORD)) + word * WORD
        source = self.at(Var(arrived_name(self.staged.under)), self.stored(group * ROWS + turn), first)
        load = Move(Ref(words, (word * WORD,)), source, WORD, origin=name)
        row, col = self._coordinates(name, along)
        body: Body = (
            *self._row(name, group, turn, ROWS),
            Let(f"{name}_chunk", chunk),
            Alloc(words),
            For(word.name, Const(words.elements // WORD), (load,), unroll=True),
            Alloc(own),
            CutOut(Ref(own, (ZERO,)), Ref(words, (ZERO,)), WIDTH, skip & (WORD - 1), name),
            Move(self._tile.at(row, col, filling=True), Ref(own, (ZERO,)), WIDTH, origin=name),
        )
        return (self._in_steps(name, self._tile.rows * count, body),)

    def _number(self, name: str) -> Expr:
        """Which of many things is the running thread's own, in a step."""
        return Var(f"{name}_step") * self.program.threads_per_block + thread_number(self.program)

    def _in_steps(self, name: str, total: int, body: Body) -> For:
        """What is done with each of so many things, shared out over the threads of the block."""
        team = self.program.threads_per_block
        if total % team:
            body = (If(binary(Op.LT, self._number(name), total), body),)
        return For(f"{name}_step", Const(ceil_div(total, team)), body, unroll=True)

    # -- a row and its vectors --------------------------------------------------------------------------------------

    def _row(self, name: str, group: Expr, turn: Expr, piece: int) -> Body:
        """Which row of the tile has a turn among the eight of a group, and how many elements are skipped in its piece.

        An odd number is its own inverse, modulo 8: row = (turn - phase) * odd. What is skipped is said of the row in
        groups of a piece, so that it is seen to be the same in all steps.
        """
        row, eighth = Var(f"{name}_row"), Var(f"{name}_of_eight")
        in_piece = group % (piece // ROWS) * ROWS + eighth
        return (
            Let(eighth.name, (turn + (ROWS - self._phase)) * self._odd & (ROWS - 1), "in the order of turns"),
            Let(row.name, group * ROWS + eighth),
            Let(f"{name}_skip", self.skip_of(in_piece, piece), "elements in front"),
        )

    def turn_of(self, row: Expr) -> Expr:
        """The turn of a row: phase + row * odd, modulo 8."""
        return self._phase + row * self._odd & (ROWS - 1)

    def skip_of(self, row: Expr, piece: int = ROWS) -> Expr:
        """How many elements stand in front of a row in its first piece."""
        return PHASES[self.staged.operand] + row * (self._leading & (piece - 1)) & (piece - 1)

    @property
    def _phase(self) -> Expr:
        return PHASES[self.staged.operand] & (ROWS - 1)

    @property
    def _odd(self) -> Expr:
        """The leading dimension or, if that is even, the next number."""
        return (self._leading & (ROWS - WORD)) + 1

    def stored(self, row: Expr) -> Expr:
        """Where vectors of a row in the order of turns stand: the even turns of eight first."""
        return row // ROWS * ROWS + row % 2 * (ROWS // 2) + row % ROWS // 2

    def _placed(self, name: str, slot: Expr, row: Expr) -> tuple[Body, Ref]:
        """Where a vector of a piece stands in the ring: so that the one that a row begins in is the first of a slot."""
        around, skip, place = self._slots * self._tile.row_length, Var(f"{name}_skip"), Var(f"{name}_place")
        behind = slot * self._tile.row_length + Var(name) * WIDTH + (around - (skip & -WIDTH))
        wrapped = Select(binary(Op.LT, place, around), place, place - around)
        return (Let(place.name, behind, "a ring further"),), Ref(self._buffer, (row, wrapped))

    def _copy(self, name: str, to: Ref, *, first: bool) -> Move:
        """The vector that a thread copies.

        Along k: zeros behind the end of a row, and nothing of a vector in front of it. What follows a row along m or n
        takes part in nothing but results outside of C, which nobody stores. Nor does what lanes do not cut out.
        """
        along, operand = self._tile.global_minor, self.program.gemm.operand(self.staged.operand)
        index, (size, across) = self._index(name), (operand.dims[along], operand.dims[1 - along])
        begin = index[along]
        left = size_of(self.program, size) - begin
        guard, valid = binary(Op.LT, 0, left), None
        if self._in_line:
            in_front = binary(Op.LT, -WIDTH, begin)
            if self._is_cut_by_lanes:
                guard = both(guard, in_front)
            else:
                guard, valid = in_front, binary(Op.MAX, binary(Op.MIN, left, WIDTH), 0)
            if first:  # of a row of no elements nothing is read, not even what stands in front of it
                guard = both(binary(Op.LT, 0, size_of(self.program, size)), guard)
        # Without these guards a loop that cuts out tiles is compiled worse: on an H200, f16, 4096^3 530 us for 460.
        if not self._is_cut_by_lanes or across not in self.exact:
            guard = both(binary(Op.LT, index[1 - along], size_of(self.program, across)), guard)
        source = global_place(self.program, operand.name, index[0], index[1])
        return Move(to, source, WIDTH, guard, self._name, asynchronous=True, valid=valid, settled=True)

    def _index(self, name: str) -> list[Expr]:
        """The row and the column of the operand that a vector begins at."""
        index = []
        for span, at in zip(self._tile.spans, self._coordinates(name, Var(name) * WIDTH), strict=True):
            outside = tuple(axis for axis in self.program.axes_of(span.dim) if axis not in span.axes)
            index.append(digit_sum(outside) + span.global_offset(at))
        index[self._tile.global_minor] = index[self._tile.global_minor] - Var(f"{name}_skip")
        return index

    @property
    def _is_cut_by_lanes(self) -> bool:
        return self.program.chain(self.staged.operand)[-1].is_cut_by_lanes

    def _coordinates(self, name: str, along: Expr) -> tuple[Expr, Expr]:
        """A place of the tile, in the row that is named."""
        at: list[Expr] = [Var(f"{name}_row"), Var(f"{name}_row")]
        at[self._tile.global_minor] = along
        return at[0], at[1]

    @property
    def _tile(self) -> Tile:
        return tile_of(self.program, self.staged)

    @property
    def _name(self) -> str:
        return self.staged.name

    @property
    def _leading(self) -> Var:
        return Var(self.program.gemm.operand(self.staged.operand).leading)

    @property
    def _slots(self) -> int:
        assert self.program.pipelined is not None
        return slots_of(self.program.pipelined)

    @property
    def _in_line(self) -> bool:
        """Whether the slots of a row lie one behind the other, as in memory."""
        return self._tile.spans[self._tile.minor].dim == "k"

    def at(self, slot: Expr, row: Expr, along: Expr) -> Ref:
        """The place of an element of the vectors."""
        if self._in_line:
            return Ref(self._buffer, (row, slot * self._tile.row_length + along))
        return Ref(self._buffer, (slot, row, along))

    @property
    def _piece(self) -> int:
        """Elements of the aligned pieces in which a row is copied: of whole vectors or, along k, of whole lines.

        So each row of a tile asks for one line, and not for two parts of lines.
        """
        piece = ROWS
        while self._in_line and self._line_divides(piece * 2):
            piece *= 2
        return piece

    def _line_divides(self, piece: int) -> bool:
        rows = self.program.block_tile(self._tile.spans[self._tile.major].dim)
        return piece * ELEMENT_BYTES <= PHASE_BYTES and self._tile.row_length % piece == 0 and rows % piece == 0

    @property
    def _buffer(self) -> Buffer:
        """The rows of vectors, in a ring of their own."""
        tile, name, note = self._tile, around_name(self.staged), "aligned vectors around its rows"
        axes: tuple[str, ...] = (f"{tile.spans[tile.major].dim}_in", f"{tile.spans[tile.minor].dim}_in")
        shape: tuple[int, ...] = (tile.rows, self._slots * tile.row_length + WIDTH)
        if not self._in_line:
            axes, shape = ("slot", *axes), (self._slots, tile.rows, tile.row_length + WIDTH)
        return Buffer(name, Space.SHARED, tile.dtype, shape, axes, note)

    @property
    def _words(self) -> Buffer:
        """The words of one chunk, wherever it begins in the first of them."""
        return Buffer(f"{self._name}_words", Space.REGISTER, self._tile.dtype, (WIDTH + WORD,))
