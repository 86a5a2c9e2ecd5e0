"""Kernels that follow each other without a gap."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step


@dataclass(frozen=True, repr=False)
class DependentLaunch(Step):
    """kernel; kernel   ->   kernel; the next one's blocks start, and wait, where this one's have ended

    A block of the next kernel takes the place of the first one that ends, sets up its barriers, and waits only before
    it touches what the kernels before may have written (programmatic dependent launch). For kernels of one or two
    waves, whose start and end are much of their time.
    """

    def apply(self, program: Program) -> Program:
        return check_program(replace(program, overlapped=True), "Cannot overlap with the kernel before")
