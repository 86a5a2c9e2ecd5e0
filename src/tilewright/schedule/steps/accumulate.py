"""The sum kept in registers over a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Accumulation, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_new_names, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Accumulate(Step):
    """for k: C[m, n] += a * b   ->   sum = 0; for k: sum += a * b; C[m, n] = sum

    The sum has an element for each result that one thread computes inside the loop `over`.
    """

    over: str
    name: str = "sum"

    def apply(self, program: Program) -> Program:
        loop = find_loop(program, self.over)
        if program.accumulation is not None:
            refuse(
                f"Cannot keep the sum over {self.over!r}: {program.accumulation.name!r} keeps it already.",
                hint="use Accumulate once.",
            )
        if not loop.is_reduction:
            loops = [loop.name for loop in program.loops if loop.is_reduction]
            refuse(
                f"Cannot keep the sum over {self.over!r}: that loop does not sum.",
                hint=f"the outermost loop over k is {loops[0]!r}.",
            )
        check_new_names(program, (self.name,))
        summed = replace(program, accumulation=Accumulation(self.name, self.over))
        return check_program(summed, f"Cannot keep the sum over {self.over!r}")

    def names(self) -> tuple[str, ...]:
        return (self.name,)
