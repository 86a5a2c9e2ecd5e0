"""Fragments of rows along k that begin at any element of 2 bytes: each lane cuts its own out of the ring of vectors.

Where rows of A and of B both run along k, nothing need be cut out for others: a lane of a matrix instruction wants
words of one row of each, and eight rows, which have eight different skips, are the eight quads' own. Which k an
instruction multiplies at a time is nobody's business, as long as A and B agree. So the lanes of a quad share out the k
of a tile in runs, and every run goes through the instruction four elements a step:

    vectors (`cut_out`)   | .  .  .  a0 a1 a2 a3 a4 | a5 a6 a7 a8 ...        skip 3, of a row whose run begins at a0
    words                    [.  a0][a1 a2][a3 a4]   [a5 a6][a7 a8]          loaded as they lie, each of them once
    step 0                   [a0 a1][a2 a3]                                  `CutOut`: of two words one
    step 1                   [a4 a5][a6 a7]

A step needs two words more than the one before, since it begins with the last word of that one. Beside a tile that all
threads cut out together, this saves storing it and loading it again. Measured: H200, f16, 4096^3, A by rows and B by
columns with leading dimensions of 4097: 450 us, before 541.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Const, Expr, Var
from tilewright.ir.program import Program, Route
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import CUT_OUT_WIDTH as WIDTH
from tilewright.ir.stmt import CUT_OUT_WORD as WORD
from tilewright.ir.stmt import Alloc, Body, CutOut, For, Let, Move
from tilewright.ir.tiles import Span, Tile, arrived_name, source_of, tile_of
from tilewright.layout.fragment import QUAD_LANES
from tilewright.lowering.coordinates import lane_of
from tilewright.lowering.cut_out import ROWS, Rows

DEPTH = QUAD_LANES * WIDTH
"""Of a tile in k: the runs of a quad are a vector apart, and its lanes read words without bank conflicts."""

STEP = 2 * WORD
"""Elements of a row that a lane holds of one instruction: of two of its registers."""


def takes(program: Program) -> bool:
    """Whether the lanes can cut their fragments: of rows along k, loaded a step ahead, a vector of each run a tile."""
    tiles = [tile_of(program, staged) for staged in program.staged if staged.space is Space.REGISTER]
    return {tile.staged.operand for tile in tiles} == {"A", "B"} and all(_fits(program, tile) for tile in tiles)


def _fits(program: Program, tile: Tile) -> bool:
    source, fragment = source_of(program, tile.staged), tile.fragment
    if source is None or fragment is None or not tile.staged.prefetched or tile.staged.route is not Route.MATRICES:
        return False
    parent, loop = tile_of(program, source), program.loop(tile.staged.under)
    in_line = parent.spans[parent.minor].dim == "k" == program.gemm.operand(tile.staged.operand).contiguous
    by_steps = [axis.dim for axis in loop.axes] == ["k"] and all(axis.dim != "k" for axis in tile.register_axes)
    return in_line and by_steps and parent.row_length == DEPTH


@dataclass(frozen=True)
class LaneWords:
    """What a lane holds of the rows that it has elements of. tile: of the fragments."""

    program: Program
    tile: Tile

    def declare(self) -> Body:
        """The registers of the words, and what is the lane's own of every row that it reads."""
        row, name = lane_of(self.program) // QUAD_LANES % ROWS, self.tile.staged.name
        return (
            Alloc(self._words),
            Let(f"{name}_turn", self._rows.turn_of(row), "in the order of turns"),
            Let(f"{name}_skip", self._rows.skip_of(row), "elements in front"),
        )

    def load_first(self) -> Body:
        """Statements that load the words of a tile's first step."""
        return self._load(0, 1 + STEP // WORD, ZERO)

    def load(self) -> Body:
        """Statements that load the words that the running step needs beside those of the step before."""
        return self._load(1, STEP // WORD, Var(self.tile.staged.under))

    def _load(self, first: int, count: int, step: Expr) -> Body:
        """So many words of every row, from one of the step's on."""
        word, row = Var("word"), Var("row") if self._across > 1 else ZERO
        at = (step * (STEP // WORD) + first + word) * WORD
        stmt = Move(self._word(row, at), self._vectors(row * ROWS, at), WORD, origin=self.tile.staged.name)
        body: Body = (For(word.name, Const(count), (stmt,), unroll=True),)
        if isinstance(row, Var):
            body = (For(row.name, Const(self._across), body, unroll=True),)
        return self._over(body)

    def cut(self) -> Body:
        """Statements that cut the running step's fragments out of the words."""
        name, step = self.tile.staged.name, Var(self.tile.staged.under)
        odd = Var(f"{name}_skip") & (WORD - 1)

        def registers() -> Iterator[CutOut]:
            for register, (row, k) in self._held.items():
                source = self._word(Const(row), step * STEP + k)
                yield CutOut(
                    Ref(self.tile.register_buffer, (*self._fragment, Const(register))), source, WORD, odd, name
                )

        return self._over(tuple(registers()))

    def _vectors(self, row: Expr, along: Expr) -> Ref:
        """Where a word of the lane's run stands, of a row that lies so many below the lane's first."""
        lane, name = lane_of(self.program), self.tile.staged.name
        axis = next(axis for axis in self.program.instruction_axes if axis.dim == self._span.dim)
        group = substitute(self._span.local_index(), {axis.name: row})
        stored = group + self._rows.stored(Var(f"{name}_turn"))
        run = lane % QUAD_LANES * WIDTH + (Var(f"{name}_skip") & (WIDTH - WORD))
        return self._rows.at(Var(arrived_name(self._parent.staged.under)), stored, run + along)

    def _over(self, body: Body) -> Body:
        for axis in reversed(self.tile.register_axes):
            body = (For(axis.name, Const(axis.extent or 1), body, unroll=True),)
        return body

    @cached_property
    def _held(self) -> dict[int, tuple[int, int]]:
        """Of each register that holds two elements: which of the lane's rows they are of, and where in a step."""
        assert self.tile.fragment is not None
        found = {}
        for register in range(0, self.tile.fragment.registers, WORD):
            place = self.tile.fragment.element(0, register)
            found[register] = place[self._parent.major] // ROWS, place[self._parent.minor] // ROWS * WORD
        return found

    @property
    def _across(self) -> int:
        """Rows of a fragment that a lane has elements of."""
        return 1 + max(row for row, _ in self._held.values())

    @property
    def _words(self) -> Buffer:
        axes = self.tile.register_axes
        rows = (self._across,) if self._across > 1 else ()
        shape = (*(axis.extent or 1 for axis in axes), *rows, WIDTH + WORD)
        names = (*(axis.name for axis in axes), *("row" for _ in rows), "element")
        return Buffer(f"{self.tile.staged.name}_words", Space.REGISTER, self.tile.dtype, shape, names)

    def _word(self, row: Expr, at: Expr) -> Ref:
        rows = (row,) if self._across > 1 else ()
        return Ref(self._words, (*self._fragment, *rows, at))

    @property
    def _fragment(self) -> tuple[Expr, ...]:
        return tuple(Var(axis.name) for axis in self.tile.register_axes)

    @property
    def _span(self) -> Span:
        return self._parent.spans[self._parent.major]

    @cached_property
    def _parent(self) -> Tile:
        source = source_of(self.program, self.tile.staged)
        assert source is not None
        return tile_of(self.program, source)

    @cached_property
    def _rows(self) -> Rows:
        return Rows(self.program, self._parent.staged)
