"""A tile copied into shared memory or registers, and read from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.buffer import Space
from tilewright.ir.program import Program, Staged
from tilewright.problem.gemm import DIMS, OperandName
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_member, check_new_names, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Stage(Step):
    """for k_tile: ... A[m, k] ...   ->   for k_tile: A_tile <- A[tile]; ... A_tile[m', k'] ...

    The tile holds what the loops inside `under` read; in shared memory, what all threads of the block read there.
    For the result, `Stage("C", Space.SHARED)`: each thread writes its accumulators to the tile, and the block stores
    it; under a loop over its accumulators ("m_frag"), once for each iteration, through a tile as much smaller. The name
    defaults to `A_tile` in shared memory and `A_frag` in registers. subtile: a result that each warpgroup stores by
    itself (Transfer) is stored in epilogue subtiles of so many neighbours along its rows, the last of what is left; 0:
    all at once. stages: of such subtiles; in two, the next is filled while the last one is stored.
    """

    operand: OperandName
    space: Space
    under: str = ""
    name: str = ""
    subtile: int = 0
    stages: int = 2

    positional: ClassVar[int] = 2

    @property
    def tile_name(self) -> str:
        return self.name or f"{self.operand}_{'tile' if self.space is Space.SHARED else 'frag'}"

    def apply(self, program: Program) -> Program:
        check_member(self.space, Space)
        where = "registers" if self.space is Space.REGISTER else f"{self.space.value} memory"
        doing = f"Cannot stage {self.operand} in {where}"
        if self.operand not in tuple(DIMS):  # a dict cannot be hashed, and may stand in a file
            refuse(f"{doing}: there is no such operand.", hint="stage 'A', 'B' or the result 'C'.")
        if self.space is Space.GLOBAL:
            refuse(f"{doing}: it lies there.", hint="use Space.SHARED or Space.REGISTER.")
        if self.operand == "C":
            self._check_result(program, doing)
        else:
            if not self.under:
                refuse(f"{doing}: no loop was named.", hint="Stage(..., under='k_tile') copies in each k_tile.")
            find_loop(program, self.under)
        same = [s for s in program.staged if s.operand == self.operand and s.space is self.space]
        if same:
            refuse(f"{doing}: {same[0].name} is there already.", hint="stage an operand once in each memory.")
        check_new_names(program, (self.tile_name,))
        check_count(self.subtile, 0, doing, "the columns of an epilogue subtile")
        check_count(self.stages, 1, doing, "the number of epilogue stages")
        if self.subtile and self.operand != "C":
            refuse(f"{doing} in subtiles of {self.subtile}: a tile that is read is whole.", hint="leave subtile out.")
        tile = Staged(self.tile_name, self.operand, self.space, self.under, subtile=self.subtile, stages=self.stages)
        return check_program(replace(program, staged=(*program.staged, tile)), doing)

    def _check_result(self, program: Program, doing: str) -> None:
        if self.space is Space.REGISTER:
            refuse(f"{doing}: that is what Accumulate does.", hint="Accumulate(over='k').")
        if program.accumulation is None:
            refuse(f"{doing}: the sum is kept in C itself.", hint="put Accumulate(over=...) before this step.")
        if self.under:
            find_loop(program, self.under)

    def names(self) -> tuple[str, ...]:
        return (self.tile_name,)
