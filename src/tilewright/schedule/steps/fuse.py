"""Neighbouring loops into one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Loop, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_new_names, check_unused, find_loop, refuse


@dataclass(frozen=True, repr=False, init=False)
class Fuse(Step):
    """for i in I: for j in J: body   ->   for t in I*J: body[i := t / J, j := t % J]"""

    loops: tuple[str, ...]
    into: str

    positional: ClassVar[int] = 0

    def __init__(self, *loops: str, into: str) -> None:
        object.__setattr__(self, "loops", tuple(loops))
        object.__setattr__(self, "into", into)

    def apply(self, program: Program) -> Program:
        if len(self.loops) < 2:
            refuse(f"Cannot fuse {len(self.loops)} loop(s).", hint="name two or more neighbouring loops.")
        loops = [find_loop(program, name) for name in self.loops]
        at = program.position(self.loops[0])
        if tuple(program.loop_names[at : at + len(loops)]) != self.loops:
            others = [name for name in program.loop_names[at:] if name not in self.loops]
            order = (*program.loop_names[:at], *self.loops, *others)
            order = tuple(name for i, name in enumerate(order) if name not in order[:i])
            refuse(
                f"Cannot fuse {', '.join(self.loops)}: they do not follow each other in the nest "
                f"{' > '.join(program.loop_names)}.",
                hint=f"put Reorder({', '.join(repr(n) for n in order)}) before this step.",
            )
        for loop in loops:
            if loop.level is not None:
                refuse(
                    f"Cannot fuse loop {loop.name!r}: it is bound to {loop.level.value}.", hint="put Fuse before Bind."
                )
            check_unused(program, loop.name, "fuse")
        check_new_names(program, (self.into,), gone=tuple(loop.name for loop in loops if len(loop.axes) > 1))
        if len({loop.is_reduction for loop in loops}) == 2:
            refuse(
                f"Cannot fuse {', '.join(self.loops)}: one of them sums over k and another does not.",
                note="the iterations of a fused loop are run by one thing; a sum must stay in one thread.",
                hint="fuse loops over m and n, or loops over k.",
            )
        fused = Loop(self.into, tuple(axis for loop in loops for axis in loop.axes))
        nest = (*program.loops[:at], fused, *program.loops[at + len(loops) :])
        return check_program(replace(program, loops=nest), f"Cannot fuse {', '.join(self.loops)}")

    def names(self) -> tuple[str, ...]:
        return (self.into,)

    def __repr__(self) -> str:
        return f"Fuse({', '.join(repr(n) for n in self.loops)}, into={self.into!r})"
