"""One warpgroup copies, the others compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Program, Specialized
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, refuse

_STEP = 8
"""setmaxnreg takes multiples of 8 from 24 to 256. Source: PTX ISA 9.0, setmaxnreg."""


@dataclass(frozen=True, repr=False)
class Specialize(Step):
    """all: wait; use stage; meet; fill stage   ->   producer: wait empty; fill stage   |   others: wait full; use stage

    A warpgroup of its own, the producer, starts the copies of the pipelined loop; the others multiply. Each stage has
    two mbarriers, full and empty, so that no warp waits for more than it must. registers: of a thread of the
    producer and of the others, taken from the one and given to the others; by default what a block of so many
    warpgroups has. ping_pong: so many warpgroups
    run in ping-pong, each on a tile of C of its own: while one stores, the next multiplies (persistent blocks only).
    """

    positional: ClassVar[int] = 0

    registers: tuple[int, int] | None = None
    ping_pong: int = 1

    def apply(self, program: Program) -> Program:
        doing = "Cannot give the copies to a warpgroup of their own"
        if program.specialized is not None:
            refuse(f"{doing}: one copies already.", hint="use Specialize once.")
        counts = self.registers
        if counts is not None and not _are_budgets(counts):
            refuse(
                f"{doing}: {counts!r} are not budgets of registers.",
                hint="use two multiples of 8 from 24 to 256, such as registers=(24, 240).",
            )
        check_count(self.ping_pong, 1, doing, "the number of ping-pong warpgroups")
        if self.ping_pong > 1 and program.thread_loops:
            bound = ", ".join(loop.name for loop in program.thread_loops)
            refuse(
                f"{doing}, and the others run in ping-pong: {bound} shares out one tile among them.",
                hint="leave the loop unbound: each warpgroup has a tile of its own.",
            )
        changed = replace(program, specialized=Specialized(counts, self.ping_pong))
        return check_program(changed, doing)


def _are_budgets(counts: object) -> bool:
    return isinstance(counts, tuple) and len(counts) == 2 and all(_is_budget(count) for count in counts)


def _is_budget(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 24 <= value <= 256 and value % _STEP == 0
