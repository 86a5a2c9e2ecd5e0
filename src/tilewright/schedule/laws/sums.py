"""Laws of sums and of register tiles: what a thread keeps."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.program import Program
from tilewright.ir.tiles import fragment_of
from tilewright.schedule.laws.violation import Violation

MAX_REGISTER_TILE = 4096
"""Elements of a register tile or sum that are worth compiling; a thread has 255 registers, the rest spills."""


def sums_stay_inside(program: Program) -> Iterator[Violation]:
    """Every loop over k runs inside the loop over which the sum is kept."""
    if program.accumulation is None:
        return
    start = program.position(program.accumulation.over)
    for loop in program.loops[:start]:
        if loop.is_reduction:
            yield Violation(
                f"loop {loop.name!r} sums over k outside {program.accumulation.over!r}.",
                note=f"{program.accumulation.name!r} would be finished, and stored, once for each {loop.name}.",
                hint=f"keep the sum over {loop.name!r}, or Reorder it inward.",
            )


def sum_fits_a_thread(program: Program) -> Iterator[Violation]:
    """The running sum has a fixed, reasonable number of elements."""
    if program.accumulation is None:
        return
    elements = 1
    for axis in program.sum_axes:
        if axis.extent is None:
            yield Violation(
                f"{program.accumulation.name!r} would hold every {axis.dim} of the problem, one for each {axis.name}.",
                note="registers have a fixed number; each thread can sum only a fixed number of results.",
                hint=f"Split({axis.name!r}, ...) and Bind the outer loop, or Reorder it outside "
                f"{program.accumulation.over!r}.",
            )
            return
        elements *= axis.extent
    fragment = fragment_of(program, "C")
    elements *= 1 if fragment is None else fragment.registers
    if elements > MAX_REGISTER_TILE:
        yield Violation(
            f"{program.accumulation.name!r} would hold {elements} elements a thread.",
            hint="bind more of the loops over m and n to threads.",
        )
