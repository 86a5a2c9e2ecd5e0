"""The sum kept in registers over a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Accumulation, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_new_names, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Accumulate(Step):
    """for k: C[m, n] += a * b   ->   sum = 0; for k: sum += a * b; C[m, n] = sum

    The sum has an element for each result that one thread computes inside the loop `over`.

    promote_every: elements of k after which the sum is added to another in registers of f32, rounded to nearest, and
    starts anew; 0 for never. Tensor cores cut off what lies far below the largest term of a sum, or sum in f16: the
    error then grows with `promote_every`, not with k. It takes twice the registers. A multiple of the k that one
    iteration of the loop `over` sums, or of an inner loop over k whose iterations it divides.
    """

    over: str
    name: str = "sum"
    promote_every: int = 0

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
        check_count(self.promote_every, 0, f"Cannot keep the sum over {self.over!r}", "promote_every")
        summed = replace(program, accumulation=Accumulation(self.name, self.over, self.promote_every))
        return check_program(summed, f"Cannot keep the sum over {self.over!r}")

    def names(self) -> tuple[str, ...]:
        return (self.name,)
