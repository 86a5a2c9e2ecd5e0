"""What holds for every program, whatever steps made it: stated once, checked after each step that could break it.

A law looks at the whole program, because a step can break what another one declared: moving a loop inward can make a
tile span the whole of k, and a pad can misalign a vector load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.errors import ScheduleError
from tilewright.ir.program import Program
from tilewright.schedule.laws.copies import (
    asynchronous_copies_are_legal,
    early_copies_are_shared_out,
    pipelines_have_tiles,
)
from tilewright.schedule.laws.order import (
    loops_run_ahead_by_one_digit,
    rasters_number_a_plane,
    turning_loops_have_a_count,
)
from tilewright.schedule.laws.sums import (
    promotions_take_whole_groups,
    results_leave_after_the_sum,
    sum_fits_a_thread,
    sums_stay_inside,
)
from tilewright.schedule.laws.tiles import (
    arrangements_fit,
    patches_cover_tiles,
    registers_fill_from_shared,
    tiles_are_filled_together,
    tiles_are_fixed,
)
from tilewright.schedule.laws.units import (
    dependent_launch_needs_tma,
    lanes_belong_to_instructions,
    persistent_tma_has_a_producer,
    roles_have_work,
    tma_boxes_are_whole,
)
from tilewright.schedule.laws.vectors import vectors_are_whole
from tilewright.schedule.laws.violation import Violation

LAWS: tuple[Callable[[Program], Iterator[Violation]], ...] = (
    sums_stay_inside,
    sum_fits_a_thread,
    promotions_take_whole_groups,
    results_leave_after_the_sum,
    tiles_are_fixed,
    tiles_are_filled_together,
    registers_fill_from_shared,
    arrangements_fit,
    lanes_belong_to_instructions,
    tma_boxes_are_whole,
    roles_have_work,
    persistent_tma_has_a_producer,
    dependent_launch_needs_tma,
    vectors_are_whole,
    patches_cover_tiles,
    early_copies_are_shared_out,
    asynchronous_copies_are_legal,
    pipelines_have_tiles,
    turning_loops_have_a_count,
    loops_run_ahead_by_one_digit,
    rasters_number_a_plane,
)
"""In the order in which they are checked: later ones rely on earlier ones."""


def check_program(program: Program, doing: str) -> Program:
    """The program itself, or a `ScheduleError` that begins with `doing` and names the first law it breaks."""
    for law in LAWS:
        for broken in law(program):
            raise ScheduleError(f"{doing}: {broken.reason}", note=broken.note, hint=broken.hint)
    return program


__all__ = ["LAWS", "Violation", "check_program"]
