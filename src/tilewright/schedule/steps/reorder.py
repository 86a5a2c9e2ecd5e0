"""A new nesting order for named loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, find_loop, refuse


@dataclass(frozen=True, repr=False, init=False)
class Reorder(Step):
    """for i: for j: body   ->   for j: for i: body

    The named loops take, in the order given, the places that they hold now; all others stay where they are.
    """

    loops: tuple[str, ...]

    def __init__(self, *loops: str) -> None:
        object.__setattr__(self, "loops", tuple(loops))

    def apply(self, program: Program) -> Program:
        for name in self.loops:
            find_loop(program, name)
        if len(set(self.loops)) != len(self.loops):
            refuse(f"Cannot reorder {', '.join(self.loops)}: a loop is named twice.", hint="name each loop once.")
        places = sorted(program.position(name) for name in self.loops)
        order = list(program.loops)
        for place, name in zip(places, self.loops, strict=True):
            order[place] = program.loop(name)
        return check_program(replace(program, loops=tuple(order)), f"Cannot reorder to {', '.join(self.loops)}")

    def __repr__(self) -> str:
        return f"Reorder({', '.join(repr(n) for n in self.loops)})"
