"""How a staging copy travels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Program, Route
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_member, find_tile


@dataclass(frozen=True, repr=False)
class Transfer(Step):
    """value <- A[m, k]; A_tile[m', k'] <- value   ->   A_tile[m', k'] <~ A[m, k]; commit; ... wait

    Route.ASYNC copies by cp.async, 4, 8 or 16 bytes at once, with no register between; what lies outside the matrix
    arrives as zero. Needs sm_80.
    """

    tile: str
    route: Route

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        check_member(self.route, Route)
        staged = find_tile(program, self.tile, "transfer")
        doing = f"Cannot copy {self.tile!r} by {self.route.value}"
        return check_program(program.with_tile(replace(staged, route=self.route)), doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
