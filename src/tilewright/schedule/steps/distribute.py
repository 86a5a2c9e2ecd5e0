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
    row_threads: so many threads lie side by side along a row, and the others below; a thread's chunks of one row are
    then a constant apart, and share an address. 0: as many as a row has chunks.
    """

    tile: str
    vector: int = 1
    pattern: Pattern = Pattern.CYCLIC
    row_threads: int = 0

    def apply(self, program: Program) -> Program:
        check_member(self.pattern, Pattern)
        doing = f"Cannot distribute {self.tile!r}"
        staged = find_tile(program, self.tile, "distribute")
        if staged.space is not Space.SHARED:
            refuse(f"{doing}: it is in registers, which each thread fills for itself.", hint="distribute shared tiles.")
        if staged.distribution is not None:
            refuse(f"{doing}: it is distributed already.", hint="use Distribute once for a tile.")
        check_count(self.vector, 1, doing, "its vector width")
        check_count(self.row_threads, 0, doing, "the number of threads along a row")
        distribution = Distribution(self.vector, self.pattern, self.row_threads)
        return check_program(program.with_tile(replace(staged, distribution=distribution)), doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
