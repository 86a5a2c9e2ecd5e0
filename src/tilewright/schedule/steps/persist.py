"""Persistent blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, refuse


@dataclass(frozen=True, repr=False)
class Persist(Step):
    """grid: tile   ->   resident grid: for tile in block, block + blocks, ...: tile

    As many blocks as run at once are started, and each computes several tiles, in the raster order. While one tile is
    stored, the next is on its way where a producer loads it, or where all copies are asynchronous and feed tensor
    cores: then their ring runs on into it. Other blocks begin anew with each tile.
    """

    def apply(self, program: Program) -> Program:
        doing = "Cannot make blocks persistent"
        if program.persistent:
            refuse(f"{doing}: they are already.", hint="use Persist once.")
        if program.raster is None:
            refuse(
                f"{doing}: tiles are not numbered.",
                note="a block finds its next tile by a number.",
                hint="put Raster(...) before this step.",
            )
        return check_program(replace(program, persistent=True), doing)
