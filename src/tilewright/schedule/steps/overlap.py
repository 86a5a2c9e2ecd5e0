"""Kernels that follow each other without a gap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_flag


@dataclass(frozen=True, repr=False)
class Overlap(Step):
    """kernel; kernel   ->   kernel; the next one's blocks start, and wait, where this one's have ended

    A block of the next kernel takes the place of the first one that ends, sets up its barriers, and waits only before
    it touches what the kernels before may have written (programmatic dependent launch). For kernels of one or two
    waves, whose start and end are much of their time.

    in_order: the next blocks start when all of this one's have ended, and only the launch itself is hidden. Then the
    hardware deals them out in its order, neighbours to one GPC, and asks the L2 once for what neighbours share; blocks
    that take the place of others lie in any order.
    """

    positional: ClassVar[int] = 0

    in_order: bool = False

    def apply(self, program: Program) -> Program:
        check_flag(self.in_order, "Cannot overlap with the kernel before", "in_order")
        overlapped = replace(program, overlapped=True, in_order=self.in_order)
        return check_program(overlapped, "Cannot overlap with the kernel before")
