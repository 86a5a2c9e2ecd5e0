"""Neighbouring elements loaded or stored by one wide access."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, find_tile, refuse


@dataclass(frozen=True, repr=False)
class Vectorize(Step):
    """for i in 8: A_frag[i] <- A_tile[k, i]   ->   for v in 2: A_frag[4v .. 4v+3] <- A_tile[k, 4v .. 4v+3]

    `target` is a register tile (its load) or "C" (the store of the result). The copy of a shared tile has its vector
    width in Distribute. Where alignment is not known the lowered variant falls back to single elements by itself.

    Lanes of a matrix instruction hold two neighbours of C. For eight of 2 bytes a quad shuffle transpose exchanges
    words of four lanes, so that each stores a whole row of a fragment; a thread needs a multiple of four fragments
    along the rows of C.
    """

    target: str
    width: int

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        doing = f"Cannot vectorise {self.target!r} by {self.width}"
        check_count(self.width, 1, doing, "its width")
        if self.target == "C":
            return check_program(replace(program, result_vector=self.width), doing)
        staged = find_tile(program, self.target, "vectorise")
        if staged.space is Space.SHARED:
            refuse(
                f"{doing}: it is a shared tile, whose copy is wide or narrow as it is distributed.",
                hint=f"Distribute({self.target!r}, vector={self.width}).",
            )
        return check_program(program.with_tile(replace(staged, vector=self.width)), doing)

    def names(self) -> tuple[str, ...]:
        return (self.target,)
