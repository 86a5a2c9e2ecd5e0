"""How a shared tile lies in memory: transposed, padded, permuted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program
from tilewright.layout.arrangement import Arrangement
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, find_tile, refuse


@dataclass(frozen=True, repr=False)
class Relayout(Step):
    """A_tile[m][k]   ->   A_tile[k][m], rows `pad` elements longer, columns permuted by `arrangement`

    A tile lies as its operand does until this step says otherwise.
    """

    tile: str
    transposed: bool = False
    pad: int = 0
    arrangement: Arrangement | None = None

    def apply(self, program: Program) -> Program:
        doing = f"Cannot lay out {self.tile!r} anew"
        staged = find_tile(program, self.tile, "lay out")
        if staged.space is not Space.SHARED:
            refuse(f"{doing}: it is in registers, which have no banks.", hint="lay out shared tiles.")
        if self.pad < 0:
            refuse(f"{doing}: a pad of {self.pad} elements.", hint="a pad is at least 0.")
        changed = replace(staged, transposed=self.transposed, pad=self.pad, arrangement=self.arrangement)
        return check_program(program.with_tile(changed), doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
