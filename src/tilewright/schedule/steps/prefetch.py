"""The next tile loaded into registers while this one is used."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_flag, find_tile


@dataclass(frozen=True, repr=False)
class Prefetch(Step):
    """for k: A_tile <- A[k]; use   ->   next <- A[0]; for k: A_tile <- next; next <- A[k+1]; use A_tile

    The latency of global memory passes while the thread computes. With Pipeline the store goes to the next stage, after
    the use of this one, and one barrier a step is enough.

    in_place: of fragments in registers. The outer loop of MMAs frees them one after another, and
    each of the next step is loaded into the registers of a free one: half as many registers, and loads that come
    one by one between the MMAs.
    """

    tile: str
    in_place: bool = False

    def apply(self, program: Program) -> Program:
        doing = f"Cannot prefetch {self.tile!r}"
        check_flag(self.in_place, doing, "in_place")
        staged = find_tile(program, self.tile, "prefetch")
        return check_program(program.with_tile(replace(staged, prefetched=True, in_place=self.in_place)), doing)

    def names(self) -> tuple[str, ...]:
        return (self.tile,)
