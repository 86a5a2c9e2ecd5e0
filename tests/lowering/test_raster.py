"""Raster orders: whatever the order, each tile of C is visited exactly once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tilewright.ir.expr import Const, Expr, Var
from tilewright.ir.program import Axis, RasterChoice, RasterOrder
from tilewright.ir.visit import simplify, substitute
from tilewright.lowering.raster import raster

ROWS, COLS = Axis("m_block", "m", 128, None), Axis("n_block", "n", 128, None)
GRIDS = [(1, 1), (1, 7), (7, 1), (2, 3), (5, 5), (8, 8), (9, 8), (8, 9), (17, 10), (16, 24)]


def tiles(choice: RasterChoice, rows: int, cols: int) -> list[tuple[int, int]]:
    """The (row, column) of every block, in launch order."""
    found = []
    for number in range(rows * cols):
        values: dict[str, Expr] = {"blockIdx.x": Const(number)}
        for let in raster(choice, Var("blockIdx.x"), Const(rows), Const(cols), ROWS, COLS):
            values[let.name] = simplify(substitute(let.value, values))
        row, col = values["m_block"], values["n_block"]
        assert isinstance(row, Const) and isinstance(col, Const)
        found.append((int(row.value), int(col.value)))
    return found


@pytest.mark.cross_section("order", "size", every=3)
@pytest.mark.parametrize("size", GRIDS, ids=str)
@pytest.mark.parametrize("order", RasterOrder)
def test_each_tile_once(order: RasterOrder, size: tuple[int, int]) -> None:
    rows, cols = size
    for group in (1, 2, 3, 8):
        visited = tiles(RasterChoice(order, group), rows, cols)
        assert sorted(visited) == [(row, col) for row in range(rows) for col in range(cols)]


def test_orders_of_a_small_grid() -> None:
    def order(name: RasterOrder, group: int = 1) -> list[tuple[int, int]]:
        return tiles(RasterChoice(name, group), 2, 3)

    assert order(RasterOrder.ROW) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert order(RasterOrder.COLUMN) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert order(RasterOrder.GROUPED, 2) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert order(RasterOrder.SERPENTINE, 1) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
    assert order(RasterOrder.LAYERS, 2) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    assert order(RasterOrder.SNAKE, 2) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (0, 2)]


def test_a_hilbert_curve_goes_from_neighbour_to_neighbour() -> None:
    walk = tiles(RasterChoice(RasterOrder.HILBERT), 8, 8)
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairwise(walk))


@pytest.mark.parametrize("size", [(5, 12), (7, 9), (1, 6)], ids=str)
@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_snake_changes_panels_in_the_row_where_it_is(size: tuple[int, int], group: int) -> None:
    """From one panel of columns to the next the row stays, so that its strip of A is in the L2."""
    walk = tiles(RasterChoice(RasterOrder.SNAKE, group), *size)
    changes = [(one, other) for one, other in pairwise(walk) if one[1] // group != other[1] // group]
    assert len(changes) == -(-size[1] // group) - 1
    assert all(one[0] == other[0] for one, other in changes)
    assert all(abs(one[0] - other[0]) <= 1 for one, other in pairwise(walk))
