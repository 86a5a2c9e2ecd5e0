"""Neighbouring blocks as a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.clusters import Clustered
from tilewright.ir.program import Loop, Program
from tilewright.ir.work import SplitK
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, find_loop, refuse

MAX_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters takes. Source: CUDA C++ Programming Guide, thread block clusters."""


@dataclass(frozen=True, repr=False)
class Cluster(Step):
    """grid: m_block: B_tile <- B[tile]   ->   grid: cluster of 2 m_block: B_tile of both <- half of B[tile] by each

    `size` neighbours of a grid loop start together. A tile that does not depend on the loop is the same for all of
    them: each block loads a part of it, for all that read it at once (multicast). Used for a second loop, the step
    makes clusters of rows and columns of tiles: those in a row share A, those in a column B.

    for k_tile: ...   ->   cluster of 2 blocks, for k_tile of each one's half: ...; sums exchanged and added up

    The outermost loop over k: `size` blocks have the same tile of C, and equal parts of its k. Each gets the sums of
    a slice of the tile from all of them, through distributed shared memory, adds them in the order of k, and stores it.
    """

    loop: str
    size: int = 2

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        doing = f"Cannot make clusters along loop {self.loop!r}"
        loop = find_loop(program, self.loop)
        earlier = () if program.clustered is None else program.clustered.loops
        if any(name == self.loop for name, _ in earlier):
            refuse(f"{doing}: {self.loop!r} makes clusters already.", hint="use Cluster once for each loop.")
        check_count(self.size, 1, doing, "the number of blocks")
        together = Clustered((*earlier, (self.loop, self.size)))
        if self.size < 2 or together.size > MAX_CLUSTER or self.size & (self.size - 1):
            others = f", {together.size} in all" if earlier else ""
            refuse(f"{doing} of {self.size} blocks{others}.", hint=f"use 2, 4 or 8, at most {MAX_CLUSTER} in all.")
        if loop.is_reduction:
            _check_outermost(program, loop, doing)
        elif loop.level is None or not loop.level.is_grid or len(loop.axes) > 1:
            refuse(
                f"{doing}: it is not a loop of its own on the grid.", hint=f"Bind({self.loop!r}, Level.GRID_X) first."
            )
        if program.raster is None:
            refuse(
                f"{doing}: blocks are not numbered in an order of their own.",
                note="the blocks of a cluster follow each other along x.",
                hint="put Raster(...) before this step.",
            )
        if program.specialized is None and not loop.is_reduction:
            refuse(
                f"{doing}: no warpgroup loads a part of a tile for its neighbours.",
                hint="put Specialize(...) before this step.",
            )
        split_k = SplitK.CLUSTER if loop.is_reduction else program.split_k
        return check_program(replace(program, clustered=together, split_k=split_k), doing)

    def names(self) -> tuple[str, ...]:
        return (self.loop,)


def _check_outermost(program: Program, loop: Loop, doing: str) -> None:
    """Blocks share out the tiles of k that a pipeline brings."""
    ring = program.pipelined
    if ring is None or ring.loop != loop.name:
        refuse(
            f"{doing}: it does not count the tiles of k that blocks load.",
            note="blocks of a cluster share out whole k tiles.",
            hint=f"Pipeline({loop.name!r}, ...) before this step." if ring is None else f"use loop {ring.loop!r}.",
        )
