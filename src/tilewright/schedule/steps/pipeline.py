"""A loop over n stages of shared memory, copies running ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Pipelined, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_flag, find_loop, refuse

MAX_STAGES = 16


@dataclass(frozen=True, repr=False)
class Pipeline(Step):
    """for k: fill A_tile; use A_tile   ->   fill A_tile[0..n-2]; for k: fill A_tile[k+n-1]; use A_tile[k]

    The shared tiles staged under the loop get `stages` stages each; while one is used, later ones are filled. One
    barrier a step is enough. alternating: the two halves of the block alternate between copying and computing (two
    stages).
    interleave: a loop inside, each iteration of which starts a part of the next copies, so that its loads do not queue
    behind all. issue_distance: each part starts after so many iterations of the outer loop around that iteration's
    MMAs, not before them.
    """

    loop: str
    stages: int = 2
    alternating: bool = False
    interleave: str = ""
    issue_distance: int = 0

    def apply(self, program: Program) -> Program:
        doing = f"Cannot pipeline loop {self.loop!r}"
        loop = find_loop(program, self.loop)
        if program.pipelined is not None:
            refuse(f"{doing}: {program.pipelined.loop!r} is pipelined already.", hint="use Pipeline once.")
        check_count(self.stages, 1, doing, "the number of stages")
        check_flag(self.alternating, doing, "alternating")
        if not 2 <= self.stages <= MAX_STAGES:
            refuse(f"{doing} with {self.stages} stage(s).", hint=f"use 2 to {MAX_STAGES} stages.")
        if self.alternating and self.stages != 2:
            refuse(f"{doing}: halves of a block alternate over 2 stages, not {self.stages}.", hint="stages=2.")
        if loop.level is not None or not loop.is_reduction:
            refuse(f"{doing}: it is not a serial loop over k.", hint="pipeline the loop under which tiles are staged.")
        if self.interleave:
            find_loop(program, self.interleave)
        check_count(self.issue_distance, 0, doing, "the number of iterations before the copies")
        ring = Pipelined(self.loop, self.stages, self.alternating, self.interleave, self.issue_distance)
        return check_program(replace(program, pipelined=ring), doing)

    def names(self) -> tuple[str, ...]:
        return (self.loop,)
