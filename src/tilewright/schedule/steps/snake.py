"""Serpentine inner loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Level, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, find_loop, refuse


@dataclass(frozen=True, repr=False, init=False)
class Snake(Step):
    """for i: for j in 0 .. n: body   ->   for i: for j forward on even i, backward on odd i: body

    The last multiply-add of one row and the first of the next then share an operand, which the register file's reuse
    cache can hold. The loops named run inside a thread, over m or n, and the loop around them counts their runs.
    """

    loops: tuple[str, ...]

    def __init__(self, *loops: str) -> None:
        object.__setattr__(self, "loops", tuple(loops))

    def apply(self, program: Program) -> Program:
        doing = f"Cannot make loop(s) {', '.join(map(str, self.loops))} serpentine"
        for name in self.loops:
            loop = find_loop(program, name)
            if loop.level not in (None, Level.VTHREAD) or loop.is_reduction or loop.extent is None:
                refuse(
                    f"{doing}: {name!r} is not a loop of known extent over m or n inside a thread.",
                    hint="reverse the innermost loops over registers.",
                )
            program = program.with_loop(replace(loop, turning=True))
        return check_program(program, doing)

    def names(self) -> tuple[str, ...]:
        return self.loops

    def __repr__(self) -> str:
        return f"Snake({', '.join(repr(name) for name in self.loops)})"
