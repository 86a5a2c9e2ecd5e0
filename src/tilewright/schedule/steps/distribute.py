"""A staging copy shared out over the threads of the block."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.buffer import Space
from tilewright.ir.program import Distribution, Pattern, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_member, find_tile, refuse


@dataclass(frozen=True, repr=False)
class Distribute(Step):
    """every thread copies the tile   ->   each thread copies its chunks of `vector` elements

    CYCLIC hands out chunks in turn, so that neighbouring threads touch neighbouring memory; BLOCKED gives each
    thread one run of them. Chunks run along the dimension that is contiguous in global memory.
    """

    tile: str
    vector: int = 1
    pattern: Pattern = Pattern.CYCLIC

    def apply(self, program: Program) -> Program:
        check_member(self.pattern, Pattern)
        doing = f"Cannot distribute {self.tile!r}"
        staged = find_tile(program, self.tile, "distribute")
        if staged.space is not Space.SHARED:
            refuse(f"{doing}: it is in registers, which each thread fills for itself.", hint="distribute shared tiles.")
        if staged.distribution is not None:
            refuse(f"{doing}: it is distributed already.", hint="use Distribute once for a tile.")
        check_count(self.vector, 1, doing, "its vector width")
        shared_out = program.with_tile(replace(staged, distribution=Distribution(self.vector, self.pattern)))
        return check_program(shared_out, doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
