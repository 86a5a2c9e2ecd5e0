"""Laws of sums and of register tiles: what a thread keeps."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.accumulators import accumulator_of, k_loops, promotion_of
from tilewright.ir.program import Program
from tilewright.ir.tiles import fragment_of, result_span
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


def results_leave_after_the_sum(program: Program) -> Iterator[Violation]:
    """A result that leaves part by part does so in a loop over finished sums, through registers."""
    for staged in program.staged:
        if staged.operand != "C" or not staged.under:
            continue
        loop = program.loop(staged.under)
        counted = {axis.name for axis in program.sum_axes}
        if not {axis.name for axis in loop.axes} <= counted:
            yield Violation(
                f"{staged.name!r} cannot be stored under {staged.under!r}, which counts no accumulators of a thread.",
                note="the result is stored after the sum; a subtile is what one iteration of such a loop has summed.",
                hint=f"name one of {', '.join(sorted(counted))}, or leave out under."
                if counted
                else "leave out under.",
            )
            return
        if staged.finished:
            yield Violation(
                f"{staged.name!r} is stored by {staged.route.value}, which takes columns, not the iterations of "
                f"{staged.under!r}.",
                hint='leave out under; Stage("C", Space.SHARED, subtile=...) stores so many columns at a time.',
            )
        inside = {axis.name for axes in program.tile_axes(staged) for axis in axes}
        for axis, _ in () if fragment_of(program, "C") else result_span(program).covered(program.result_vector):
            if axis.name not in inside:
                yield Violation(
                    f"vectors of {program.result_vector} results run through {axis.name!r}, which is outside "
                    f"{staged.name!r}.",
                    hint="stage the result under an outer loop, or use a smaller vector.",
                )


def sum_fits_a_thread(program: Program) -> Iterator[Violation]:
    """The running sum has a fixed, reasonable number of elements."""
    if program.accumulation is None:
        return
    for axis in program.sum_axes:
        if axis.extent is None:
            yield Violation(
                f"{program.accumulation.name!r} would hold every {axis.dim} of the problem, one for each {axis.name}.",
                note="registers have a fixed number; each thread can sum only a fixed number of results.",
                hint=f"Split({axis.name!r}, ...) and Bind the outer loop, or Reorder it outside "
                f"{program.accumulation.over!r}.",
            )
            return
    elements = accumulator_of(program).registers
    if elements > MAX_REGISTER_TILE:
        yield Violation(
            f"{program.accumulation.name!r} would hold {elements} elements a thread.",
            hint="bind more of the loops over m and n to threads.",
        )


def promotions_take_whole_groups(program: Program) -> Iterator[Violation]:
    """A sum is promoted between iterations of a loop over k, when each of its elements has as many products."""
    kept = program.accumulation
    if kept is None or not kept.promote_every:
        return
    loops, every = k_loops(program), kept.promote_every
    doing = f"{kept.name!r} cannot be promoted every {every} of k"
    strides = [loop.axes[0].stride for loop in loops]
    if any(len(loop.axes) > 1 for loop in loops) or strides != sorted(strides, reverse=True):
        yield Violation(
            f"{doing}, which {' and '.join(repr(loop.name) for loop in loops)} do not visit in ascending order.",
            note="a group is of products that follow each other.",
            hint="use one loop for each digit of k, the coarsest outermost.",
        )
        return
    promotion = promotion_of(program)
    steps = ", ".join(f"{loop.name!r} takes {loop.axes[0].stride}" for loop in loops)
    if promotion is None:
        yield Violation(
            f"{doing}: an iteration of {steps}.",
            note="matrix instructions add all products of an iteration at once.",
            hint=f"use a multiple of {strides[-1]}.",
        )
        return
    counted = program.loop(promotion.loop)
    if counted != loops[0] and (counted.extent or 1) % promotion.iterations:
        yield Violation(
            f"{doing}: {counted.extent} iterations of {counted.name!r} are not whole groups of {promotion.iterations}.",
            hint=f"use a divisor or a multiple of {(counted.extent or 1) * counted.axes[0].stride}.",
        )
    order = program.thread_serial_loops
    for loop in order[order.index(loops[0]) : order.index(counted)]:
        if not loop.is_reduction:
            yield Violation(
                f"{doing}: {loop.name!r} stands around {counted.name!r}, and only a part of the sum has its products.",
                hint=f"Reorder {loop.name!r} inside {counted.name!r}, or use a multiple of {strides[0]}.",
            )
            return
