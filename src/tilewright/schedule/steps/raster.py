"""The order in which blocks visit the tiles of C."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program, RasterChoice, RasterOrder
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, check_count, check_member, refuse

MAX_GROUP = 65536
"""Rows or columns of tiles: more than any matrix has, and it is multiplied in 32 bits."""


@dataclass(frozen=True, repr=False)
class Raster(Step):
    """block (x, y) computes tile (y, x)   ->   block number b computes the b-th tile of the order

    The grid becomes one-dimensional. GROUPED goes down `group` rows of tiles, then to the next column of tiles, so that
    blocks which run together share rows of A and columns of B in the L2 cache. SNAKE reverses at the end of each group.
    LAYERS takes the rows of a panel of `group` columns, then the next panel. HILBERT follows a space-filling curve.
    """

    order: RasterOrder
    group: int = 1

    def apply(self, program: Program) -> Program:
        check_member(self.order, RasterOrder)
        doing = f"Cannot set the raster order {self.order.value}"
        check_count(self.group, 1, doing, "its group")
        if self.group > MAX_GROUP or (self.order not in _GROUPS and self.group != 1):
            refuse(
                f"{doing} with group={self.group}.",
                hint=f"a group of 1 to {MAX_GROUP} belongs to {', '.join(order.value for order in _GROUPS)}.",
            )
        return check_program(replace(program, raster=RasterChoice(self.order, self.group)), doing)


_GROUPS = (RasterOrder.GROUPED, RasterOrder.SNAKE, RasterOrder.LAYERS)
