"""What happens to a finished sum on its way to memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Program
from tilewright.schedule.step import Step, check_flag, refuse


@dataclass(frozen=True, repr=False)
class Epilogue(Step):
    """sum = beta*C; sum += alpha*a*b; C = sum   ->   sum = 0; sum += a*b; C = alpha*sum + beta*C

    alpha, beta: which factor is applied once to each finished sum instead of inside the loops.
    """

    alpha: bool = True
    beta: bool = True

    positional: ClassVar[int] = 0

    def apply(self, program: Program) -> Program:
        check_flag(self.alpha, "Cannot scale finished sums", "alpha")
        check_flag(self.beta, "Cannot scale finished sums", "beta")
        if program.accumulation is None:
            refuse(
                "Cannot scale finished sums: the sum is kept in C itself.",
                note="without registers there is no moment at which a sum is finished but not yet stored.",
                hint="put Accumulate(over=...) before this step.",
            )
        if self.alpha and not self.beta:
            refuse(
                "Cannot scale finished sums by alpha alone: they begin with beta * C, which alpha would scale as well.",
                hint="Epilogue() scales by both, Epilogue(alpha=False) by beta alone.",
            )
        return replace(program, late_alpha=self.alpha, late_beta=self.beta)
