"""One loop into an outer and an inner loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.program import Axis, Loop, Program
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_new_names, check_unused, find_loop, refuse


@dataclass(frozen=True, repr=False)
class Split(Step):
    """for m in M: body   ->   for outer in M/by: for inner in by: body[m := outer*by + inner]

    The outermost digit of a dimension may be split by anything: the edge is guarded. A loop of known extent is split
    by a divisor of it. A fused loop is split along its digits, fastest first.
    """

    loop: str
    by: int
    into: tuple[str, str]

    positional: ClassVar[int] = 2

    def apply(self, program: Program) -> Program:
        loop = find_loop(program, self.loop)
        # What types promise, a user who runs no checker may break.
        if not isinstance(self.by, int) or isinstance(self.by, bool) or self.by < 1:  # type: ignore[redundant-expr]
            refuse(
                f"Cannot split loop {self.loop!r} by {self.by!r}.",
                hint="an inner loop has a whole number of iterations, at least 1.",
            )
        if not isinstance(self.into, tuple) or len(self.into) != 2:  # type: ignore[redundant-expr]
            refuse(
                f"Cannot split loop {self.loop!r} into {self.into!r}: a split makes two loops.",
                hint="into=('outer', 'inner').",
            )
        if loop.level is not None:
            refuse(
                f"Cannot split loop {self.loop!r}: it is bound to {loop.level.value}.",
                hint="put Split before Bind.",
            )
        check_unused(program, self.loop, "split")
        check_new_names(program, self.into, gone=(self.loop,))
        outer, inner = _divide(loop, self.by, self.into)
        parts = {axis.name for part in (outer, inner) for axis in part.axes} - {
            *self.into,
            *(a.name for a in loop.axes),
        }
        check_new_names(program, tuple(sorted(parts)), gone=(self.loop,))
        at = program.position(self.loop)
        loops = (*program.loops[:at], outer, inner, *program.loops[at + 1 :])
        return check_program(replace(program, loops=loops), f"Cannot split loop {self.loop!r} by {self.by}")

    def names(self) -> tuple[str, ...]:
        return self.into


def _divide(loop: Loop, by: int, into: tuple[str, str]) -> tuple[Loop, Loop]:
    """The loop's digits parted so that the inner loop has `by` iterations."""
    if len(loop.axes) == 1:
        axis = loop.axes[0]
        _check_divides(loop, by, axis.extent)
        outer = Axis(into[0], axis.dim, axis.stride * by, None if axis.extent is None else axis.extent // by)
        return Loop(into[0], (outer,)), Loop(into[1], (Axis(into[1], axis.dim, axis.stride, by),))
    left = by
    inner: list[Axis] = []
    outer_axes = list(loop.axes)
    while left > 1 and outer_axes:
        axis = outer_axes.pop()
        extent = axis.extent
        if extent is not None and left % extent == 0:
            inner.insert(0, axis)
            left //= extent
            continue
        _check_divides(loop, left, extent)
        fast = Axis(f"{axis.name}_{into[1]}", axis.dim, axis.stride, left)
        slow_extent = None if extent is None else extent // left
        slow = Axis(f"{axis.name}_{into[0]}", axis.dim, axis.stride * left, slow_extent)
        inner.insert(0, fast)
        outer_axes.append(slow)
        left = 1
    if left > 1 or not outer_axes:
        refuse(
            f"Cannot split loop {loop.name!r} by {by}: it has {loop.extent} iterations in all.",
            hint="use a smaller inner loop.",
        )
    if not inner:
        refuse(f"Cannot split the fused loop {loop.name!r} by 1.", hint="leave the step out.")
    return _loop(into[0], outer_axes), _loop(into[1], inner)


def _loop(name: str, axes: list[Axis]) -> Loop:
    """A loop over these digits; a single digit has the name of its loop."""
    return Loop(name, (replace(axes[0], name=name),) if len(axes) == 1 else tuple(axes))


def _check_divides(loop: Loop, by: int, extent: int | None) -> None:
    if extent is None or extent % by == 0:
        return
    divisors = [d for d in range(2, extent) if extent % d == 0]
    hint = f"use {', '.join(str(d) for d in divisors)}." if divisors else "leave the loop whole."
    refuse(f"Cannot split loop {loop.name!r} by {by}: its extent {extent} is not a multiple.", hint=hint)
