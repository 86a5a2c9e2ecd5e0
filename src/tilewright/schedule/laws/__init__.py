"""What holds for every program, whatever steps made it: stated once, checked after each step that could break it.

A law looks at the whole program, because a step can break what another one declared: moving a loop inward can make a
tile span the whole of k, and a pad can misalign a vector load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.errors import ScheduleError
from tilewright.ir.program import Program
from tilewright.schedule.laws import copies, order, sums, tiles, units, vectors
from tilewright.schedule.laws.violation import Violation

LAWS: tuple[Callable[[Program], Iterator[Violation]], ...] = (
    sums.sums_stay_inside,
    sums.sum_fits_a_thread,
    sums.promotions_take_whole_groups,
    sums.results_leave_after_the_sum,
    tiles.tiles_are_fixed,
    tiles.tiles_are_filled_together,
    tiles.registers_fill_from_shared,
    tiles.arrangements_fit,
    units.lanes_belong_to_instructions,
    units.tma_boxes_are_whole,
    units.roles_have_work,
    units.persistent_tma_has_a_producer,
    vectors.vectors_are_whole,
    tiles.patches_cover_tiles,
    copies.early_copies_are_shared_out,
    copies.asynchronous_copies_are_legal,
    copies.pipelines_have_tiles,
    order.turning_loops_have_a_count,
    order.loops_run_ahead_by_one_digit,
    order.rasters_number_a_plane,
)
"""In the order in which they are checked: later ones rely on earlier ones."""


def check_program(program: Program, doing: str) -> Program:
    """The program itself, or a `ScheduleError` that begins with `doing` and names the first law it breaks."""
    for law in LAWS:
        for broken in law(program):
            raise ScheduleError(f"{doing}: {broken.reason}", note=broken.note, hint=broken.hint)
    return program


__all__ = ["LAWS", "Violation", "check_program"]
