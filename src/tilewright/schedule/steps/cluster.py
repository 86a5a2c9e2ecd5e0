"""Neighbouring blocks as a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Clustered, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, find_loop, refuse

MAX_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters takes. Source: CUDA C++ Programming Guide, thread block clusters."""


@dataclass(frozen=True, repr=False)
class Cluster(Step):
    """grid: m_block: B_tile <- B[tile]   ->   grid: cluster of 2 m_block: B_tile of both <- half of B[tile] by each

    `size` neighbours of a grid loop start together. A tile that does not depend on the loop is the same for all of
    them: each block loads a part of it, for every block of the cluster at once (multicast).
    """

    loop: str
    size: int = 2

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        doing = f"Cannot make clusters along loop {self.loop!r}"
        loop = find_loop(program, self.loop)
        if program.clustered is not None:
            refuse(f"{doing}: {program.clustered.loop!r} makes clusters already.", hint="use Cluster once.")
        check_count(self.size, 1, doing, "the number of blocks")
        if not 2 <= self.size <= MAX_CLUSTER or self.size & (self.size - 1):
            refuse(f"{doing} of {self.size} blocks.", hint="use 2, 4 or 8.")
        if loop.level is None or not loop.level.is_grid or len(loop.axes) > 1:
            refuse(
                f"{doing}: it is not a loop of its own on the grid.", hint=f"Bind({self.loop!r}, Level.GRID_X) first."
            )
        if program.raster is None:
            refuse(
                f"{doing}: blocks are not numbered in an order of their own.",
                note="the blocks of a cluster follow each other along x.",
                hint="put Raster(...) before this step.",
            )
        if program.specialized is None:
            refuse(
                f"{doing}: no warpgroup loads a part of a tile for its neighbours.",
                hint="put Specialize(...) before this step.",
            )
        return check_program(replace(program, clustered=Clustered(self.loop, self.size)), doing)

    def names(self) -> tuple[str, ...]:
        return (self.loop,)
