"""A loop onto the grid, the threads of a block, warps, lanes, or a virtual thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import WARP_LANES, Level, Loop, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_member, find_loop, refuse

MAX_THREADS_PER_BLOCK = 1024  # every compute capability; CUDA C++ Programming Guide, technical specifications


@dataclass(frozen=True, repr=False)
class Bind(Step):
    """for i in I: body   ->   body, once for each i, run by `level`

    A virtual thread stays inside the thread: its iterations are unrolled and its registers are strided over the tile.
    """

    loop: str
    level: Level

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        check_member(self.level, Level)
        loop = find_loop(program, self.loop)
        doing = f"Cannot bind loop {self.loop!r} to {self.level.value}"
        if self.level is Level.INSTRUCTION:
            refuse(
                f"{doing}: an instruction runs three loops together, one of each dimension.",
                hint="Tensorize(...) gives loops to a matrix instruction.",
            )
        if loop.level is not None:
            refuse(f"{doing}: it is bound to {loop.level.value}.", hint="bind a loop once.")
        holder = program.at_level(self.level)
        if holder is not None and self.level is not Level.VTHREAD:
            refuse(
                f"{doing}: loop {holder.name!r} is bound there.",
                hint=f"Fuse({holder.name!r}, {self.loop!r}, into=...) first, or use another level.",
            )
        if loop.is_reduction:
            refuse(
                f"{doing}: it sums over k, and its iterations would add to the same element of C at once.",
                hint="leave loops over k serial.",
            )
        _check_extent(loop, self.level, doing)
        _check_mix(program, self.level, doing)
        bound = program.with_loop(replace(loop, level=self.level))
        if bound.threads_per_block > MAX_THREADS_PER_BLOCK:
            refuse(
                f"{doing}: the block would have {bound.threads_per_block} threads, and a block has at most "
                f"{MAX_THREADS_PER_BLOCK}.",
                hint="split the loop smaller, or give each thread more results.",
            )
        return check_program(bound, doing)

    def names(self) -> tuple[str, ...]:
        return (self.loop,)


def _check_extent(loop: Loop, level: Level, doing: str) -> None:
    if level.is_grid:
        return
    if loop.extent is None:
        dim = loop.axes[0].dim
        refuse(
            f"{doing}: its extent depends on the size of {dim}, and a block has a fixed number of threads.",
            hint=f"Split({loop.name!r}, 32, into=(...)) and bind the inner loop.",
        )
    if level is Level.LANE and loop.extent != WARP_LANES:
        refuse(
            f"{doing}: its extent is {loop.extent}, and a warp has {WARP_LANES} lanes.",
            hint=f"split or fuse so that the lanes are {WARP_LANES}.",
        )


def _check_mix(program: Program, level: Level, doing: str) -> None:
    """Warps and lanes are numbered along x: they share it with no block axis."""
    warps = {Level.WARP, Level.LANE}
    axes = {Level.BLOCK_X, Level.BLOCK_Y, Level.BLOCK_Z}
    others = axes if level in warps else warps if level in axes else set()
    clash = next((loop for loop in program.loops if loop.level in others), None)
    if clash is not None and clash.level is not None:
        refuse(
            f"{doing}: loop {clash.name!r} is bound to {clash.level.value}.",
            note="warps and lanes number the threads of a block by themselves.",
            hint="use warp and lane, or block.x, block.y and block.z, not both.",
        )
