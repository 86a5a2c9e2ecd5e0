"""How a staging copy travels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program, Route
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_member, find_tile, refuse


@dataclass(frozen=True, repr=False)
class Transfer(Step):
    """value <- A[m, k]; A_tile[m', k'] <- value   ->   A_tile[m', k'] <~ A[m, k]; commit; ... wait

    Route.ASYNC copies to shared memory by cp.async, 4, 8 or 16 bytes at once, with no register between; what lies
    outside the matrix arrives as zero. Needs sm_80. Route.MATRICES loads the fragments of a matrix instruction by
    ldmatrix, as many matrices at once as Vectorize says. Needs sm_75. Of the shared tile of a result, each warpgroup
    puts its part there by stmatrix, and stores it in whole rows. Needs sm_90. Route.TMA leaves a shared tile
    of A or B, or of the result, to TMA, whose copies one thread issues. Needs sm_90.

    evict_first: what TMA reads for the tile is the first to leave the L2 (the cache hint of that name): for a matrix of
    which each tile is read at one time, by blocks that run together, so that the other matrix stays.
    """

    tile: str
    route: Route
    evict_first: bool = False

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        check_member(self.route, Route)
        staged = find_tile(program, self.tile, "transfer")
        doing = f"Cannot copy {self.tile!r} by {self.route.value}"
        fragments = staged.space is Space.REGISTER or staged.operand == "C"
        if self.route is Route.MATRICES and (program.tensorized is None or not fragments):
            refuse(
                f"{doing}: it holds no fragments of a matrix instruction.",
                hint="put Tensorize(...) before this step, and name a tile in registers.",
            )
        if self.evict_first and (self.route is not Route.TMA or staged.operand == "C"):
            refuse(
                f"{doing} with evict_first: the hint is for what TMA reads.",
                hint="leave evict_first out, or use Route.TMA for a tile of A or B.",
            )
        changed = replace(staged, route=self.route, evict_first=self.evict_first)
        return check_program(program.with_tile(changed), doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
