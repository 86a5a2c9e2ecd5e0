"""Copies of rows that begin at any element of 2 bytes: a thread loads the aligned vectors that hold its chunk.

    memory     | .  .  .  a0 a1 a2 a3 a4 | a5 a6 a7 .  .  .  .  . |    two vectors of 16 bytes, the second where needed
    registers    a0 a1 a2 a3 a4 a5 a6 a7                               `CutOut`, when the chunk is put into the tile

What stands around the chunk belongs to other rows, or to nobody, and is thrown away. The vectors wait in registers as
they came: whoever shifts them waits for them. How far is known without them: rows of a tile begin at multiples of 8 in
both directions, so that it is the same in every turn of the loop over k.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.buffer import Buffer, Ref
from tilewright.ir.expr import ZERO, Expr, Op, Select, Var, binary
from tilewright.ir.kernel import PHASE_BYTES, PHASES, SIZES
from tilewright.ir.program import Program
from tilewright.ir.stmt import CUT_OUT_WIDTH as WIDTH
from tilewright.ir.stmt import Body, CutOut, Let, Move, Stmt

ELEMENT_BYTES = PHASE_BYTES // WIDTH


@dataclass(frozen=True)
class Chunk:
    """`WIDTH` neighbours of an operand from `place`, a logical place in global memory, on. name: of what is made."""

    program: Program
    place: Ref
    name: str
    origin: str

    def skipped(self) -> Let:
        """How many elements stand in front of the chunk in its first vector."""
        row = self.place.index[1 - self._along]
        leading = Var(self.program.gemm.operand(self._operand).leading)  # type: ignore[arg-type]
        # A remainder, in which the block's part of a row has no share; a mask, as the compiler knows no sign of it.
        row = row % WIDTH & (WIDTH - 1)
        place = PHASES[self._operand] + row * (leading & (WIDTH - 1))
        return Let(self._skip.name, place & (WIDTH - 1), "elements in front of the chunk")

    def load(self, into: Ref) -> Body:
        """Both vectors into the registers from `into` on; zeros where none is needed."""
        column = self.place.index[self._along]
        # One comparison in the loop: where nothing is skipped, no chunk needs a second vector.
        reached = Select(binary(Op.LT, 0, self._skip), self._length + self._skip - WIDTH, ZERO)
        return (
            Let(f"{self.name}_reached", reached, "chunks in front of it reach into a second vector"),
            self._vector(into, 0, binary(Op.LT, column, self._length)),
            self._vector(into, WIDTH, binary(Op.LT, column, Var(f"{self.name}_reached"))),
        )

    def cut_out(self, to: Buffer, vectors: Ref) -> Stmt:
        """The chunk out of the vectors, with zeros behind the end of a row along k.

        What follows a row along m or n takes part in nothing but results outside of C, which nobody stores.
        """
        left = self._length - self.place.index[self._along] if self._length == SIZES["k"] else None
        return CutOut(Ref(to, (ZERO,)), vectors, WIDTH, self._skip, left, self.origin)

    def _vector(self, into: Ref, at: int, guard: Expr) -> Move:
        index = list(self.place.index)
        index[self._along] = index[self._along] - self._skip + at
        to = Ref(into.buffer, (*into.index[:-1], into.index[-1] + at))
        return Move(to, Ref(self.place.buffer, tuple(index)), WIDTH, guard, self.origin, settled=True)

    @property
    def _operand(self) -> str:
        return self.place.buffer.name

    @property
    def _along(self) -> int:
        """Which index counts neighbours in memory."""
        operand = self.program.gemm.operand(self._operand)  # type: ignore[arg-type]
        return operand.dims.index(operand.contiguous)

    @property
    def _length(self) -> Expr:
        return SIZES[self.program.gemm.operand(self._operand).contiguous]  # type: ignore[arg-type]

    @property
    def _skip(self) -> Var:
        return Var(f"{self.name}_skip")


def takes(program: Program, width: int, element_bytes: int) -> bool:
    """Whether chunks of a tile can be cut out: whole vectors, where tiles, and parts of k, begin at multiples of 8."""
    return element_bytes == ELEMENT_BYTES and width == WIDTH and program.block_tile("k") % WIDTH == 0
