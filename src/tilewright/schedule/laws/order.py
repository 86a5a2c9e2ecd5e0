"""Laws of loops and of the grid: what can be counted, and reversed."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.program import Program
from tilewright.schedule.laws.violation import Violation


def turning_loops_have_a_count(program: Program) -> Iterator[Violation]:
    """A serpentine loop stands inside one that counts its runs."""
    around = False
    for loop in program.thread_serial_loops:
        around = around or not loop.turning
        if not around:
            yield Violation(f"no loop around {loop.name!r} counts its runs.", hint="reverse an inner loop.")


def loops_run_ahead_by_one_digit(program: Program) -> Iterator[Violation]:
    """A loop whose copies run ahead counts one digit, so that the next iteration is that digit plus 1."""
    ahead = [(staged.name, staged.under) for staged in program.staged if staged.prefetched]
    if program.pipelined is not None:
        ahead.append(("the pipeline", program.pipelined.loop))
    for what, name in ahead:
        digits = [axis.name for axis in program.loop(name).axes]
        if len(digits) > 1:
            yield Violation(
                f"{what} would run ahead in {name!r}, which is fused of {', '.join(digits)}.",
                hint="stage under a loop that counts tiles of k by itself.",
            )


def rasters_number_a_plane(program: Program) -> Iterator[Violation]:
    """Blocks that are numbered in an order of their own count tiles of m and of n, and nothing else."""
    dims = [loop.axes[0].dim for loop in program.grid_loops if len(loop.axes) == 1]
    if program.raster is not None and (sorted(dims) != ["m", "n"] or len(program.grid_loops) != 2):
        bound = ", ".join(loop.name for loop in program.grid_loops) or "none"
        yield Violation(
            f"the grid must count tiles of m and of n, a loop each; bound to it: {bound}.",
            note="a raster order maps the number of a block to a row and a column of tiles.",
            hint="Bind('m_block', Level.GRID_Y) and Bind('n_block', Level.GRID_X) before Raster, and no other loop.",
        )
