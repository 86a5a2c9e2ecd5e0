"""The order in which blocks visit the tiles of C."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.program import Program, RasterChoice, RasterOrder
from tilewright.schedule.laws import check_program
from tilewright.schedule.step import Step, refuse


@dataclass(frozen=True, repr=False)
class Raster(Step):
    """block (x, y) computes tile (y, x)   ->   block number b computes the b-th tile of the order

    The grid becomes one-dimensional. GROUPED walks `group` rows of tiles down, then the next column of tiles, so that
    blocks which run together share rows of A and columns of B in the L2 cache. SNAKE turns at the end of each group.
    LAYERS walks the rows of a panel of `group` columns, then the next panel. HILBERT follows a space-filling curve.
    """

    order: RasterOrder
    group: int = 1

    def apply(self, program: Program) -> Program:
        doing = f"Cannot set the raster order {self.order.value}"
        if self.group < 1 or (self.order not in _GROUPS and self.group != 1):
            refuse(
                f"{doing} with group={self.group}.",
                hint=f"a group of at least 1 belongs to {', '.join(order.value for order in _GROUPS)}.",
            )
        return check_program(replace(program, raster=RasterChoice(self.order, self.group)), doing)


_GROUPS = (RasterOrder.GROUPED, RasterOrder.SNAKE, RasterOrder.LAYERS)
