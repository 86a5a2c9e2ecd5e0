"""How a shared tile lies in memory: which dimension counts its rows, padded, permuted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program
from tilewright.layout.arrangement import Arrangement, Auto, Interleaved, Permuted, SwizzleAtoms, Xor
from tilewright.problem.gemm import Dim
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, find_tile, refuse


@dataclass(frozen=True, repr=False)
class Relayout(Step):
    """A_tile[m][k]   ->   A_tile[k][m], rows `pad` elements longer, columns permuted by `arrangement`

    rows: the dimension that counts the rows, "k" for a tile whose rows are k and whose columns are m or n. A tile lies
    as its operand does until this step says otherwise; where it comes to lie the other way, its copy transposes it.
    Auto() leaves pad and arrangement to a search for a layout without bank conflicts.
    """

    tile: str
    rows: Dim | Literal[""] = ""
    pad: int = 0
    arrangement: Arrangement | None = None

    def apply(self, program: Program) -> Program:
        doing = f"Cannot lay out {self.tile!r} anew"
        staged = find_tile(program, self.tile, "lay out")
        if staged.space is not Space.SHARED:
            refuse(f"{doing}: it is in registers, which have no banks.", hint="lay out shared tiles.")
        dims = program.gemm.operand(staged.operand).dims
        if self.rows and self.rows not in dims:
            refuse(
                f"{doing} with rows of {self.rows}: {staged.operand} has the dimensions {dims[0]} and {dims[1]}.",
                hint=f"rows={dims[0]!r} or rows={dims[1]!r}.",
            )
        check_count(self.pad, 0, doing, "its pad")
        if not isinstance(self.arrangement, (Interleaved, Xor, Permuted, SwizzleAtoms, Auto, type(None))):
            refuse(
                f"{doing}: {self.arrangement!r} is not an arrangement.",
                hint="use Interleaved(...), Xor(...), Permuted(...), SwizzleAtoms(...), Auto() or None.",
            )
        if isinstance(self.arrangement, Auto) and self.pad:
            refuse(f"{doing} with a pad of {self.pad}: its layout is still to be found.", hint="leave the pad out.")
        changed = replace(staged, rows=self.rows, pad=self.pad, arrangement=self.arrangement)
        return check_program(program.with_tile(changed), doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
