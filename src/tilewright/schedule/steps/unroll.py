"""A loop written out in full."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program
from tilewright.schedule.step import Step, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Unroll(Step):
    """for i in 4: body   ->   body[0]; body[1]; body[2]; body[3]

    Loops that index registers are always unrolled; this asks for others, such as the inner loop over k.
    """

    loop: str

    def apply(self, program: Program) -> Program:
        loop = find_loop(program, self.loop)
        if loop.level is not None:
            refuse(
                f"Cannot unroll loop {self.loop!r}: it is bound to {loop.level.value}.",
                hint="unroll loops that a thread runs itself.",
            )
        if loop.extent is None:
            refuse(
                f"Cannot unroll loop {self.loop!r}: its extent depends on the size of {loop.axes[0].dim}.",
                hint=f"Split({self.loop!r}, 8, into=(...)) and unroll the inner loop.",
            )
        return program.with_loop(replace(loop, unroll=True))

    def names(self) -> tuple[str, ...]:
        return (self.loop,)
