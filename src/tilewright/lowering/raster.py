"""Raster orders: which tile of C the block of a given number computes.

Every order visits each tile once, for any number of rows and columns; groups, panels and squares at the edge are
simply smaller.
"""

from __future__ import annotations

from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary
from tilewright.ir.program import Axis, RasterChoice, RasterOrder
from tilewright.ir.stmt import Let

BLOCK = "block_number"


def _div(a: Expr, b: Expr) -> Expr:
    return binary(Op.DIV, a, b)


def _mod(a: Expr, b: Expr) -> Expr:
    return binary(Op.MOD, a, b)


def raster(choice: RasterChoice, numbered: Expr, rows: Expr, cols: Expr, row_axis: Axis, col_axis: Axis) -> list[Let]:
    """`Let`s down to the coordinates of the tile `numbered`; rows and cols are how many tiles C has."""
    number = Var(BLOCK)
    tile_rows, tile_cols = Var(f"{row_axis.name}s"), Var(f"{col_axis.name}s")
    lets = [
        Let(BLOCK, numbered),
        Let(tile_rows.name, rows, "rows of tiles"),
        Let(tile_cols.name, cols, "columns of tiles"),
    ]
    match choice.order:
        case RasterOrder.ROW:
            row, col = _div(number, tile_cols), _mod(number, tile_cols)
        case RasterOrder.COLUMN:
            row, col = _mod(number, tile_rows), _div(number, tile_rows)
        case RasterOrder.GROUPED | RasterOrder.SERPENTINE:
            band, first, height, inside = _bands(number, tile_rows, tile_cols, choice.group, "group", "row")
            lets += band
            row, col = first + _mod(inside, height), _div(inside, height)
            if choice.order is RasterOrder.SERPENTINE:
                lets.append(Let("column_in_group", col))
                there = Var("column_in_group")
                back = binary(Op.EQ, _mod(Var("group"), Const(2)), 1)
                col = Select(back, tile_cols - 1 - there, there)
        case RasterOrder.LAYERS | RasterOrder.SNAKE:
            band, first, width, inside = _bands(number, tile_cols, tile_rows, choice.group, "panel", "column")
            lets += band
            row, col = _div(inside, width), first + _mod(inside, width)
            if choice.order is RasterOrder.SNAKE:
                lets.append(Let("row_in_panel", row))
                down = Var("row_in_panel")
                upward = binary(Op.EQ, _mod(Var("panel"), Const(2)), 1)
                row = Select(upward, tile_rows - 1 - down, down)
        case RasterOrder.HILBERT:
            steps, row, col = _hilbert(number, tile_rows, tile_cols)
            lets += steps
    return [*lets, Let(row_axis.name, row), Let(col_axis.name, col)]


def _bands(
    number: Expr, across: Expr, along: Expr, group: int, band: str, unit: str
) -> tuple[list[Let], Expr, Expr, Expr]:
    """Bands of `group` rows (or columns), one after another: the `Let`s, the first row, their number, and the number
    of the block inside its band."""
    first, extent, inside = Var(f"first_{unit}"), Var(f"{unit}s_in_{band}"), Var(f"block_in_{band}")
    lets = [
        Let(band, _div(number, along * group)),
        Let(first.name, Var(band) * group),
        Let(extent.name, binary(Op.MIN, across - first, group), f"the last {band} may be short"),
        Let(inside.name, _mod(number, along * group)),
    ]
    return lets, first, extent, inside


SQUARE_BITS = 3
"""Squares of 8 x 8 tiles are walked along a Hilbert curve; larger ones would exceed a wave of blocks."""


def _hilbert(number: Expr, rows: Expr, cols: Expr) -> tuple[list[Let], Expr, Expr]:
    """Squares of 8 x 8 tiles row by row, each along a Hilbert curve; cut-off squares row by row.

    The curve turns the number of a tile into its coordinates two bits at a time (Hilbert 1891; the usual loop).
    """
    side = 1 << SQUARE_BITS
    lets, first_row, height, inside = _bands(number, rows, cols, side, "band", "row")
    left, first_col, width = Var("block_in_square"), Var("first_column"), Var("columns_in_square")
    lets += [
        Let("square", _div(inside, height * side)),
        Let(first_col.name, Var("square") * side),
        Let(width.name, binary(Op.MIN, cols - first_col, side)),
        Let(left.name, _mod(inside, height * side)),
    ]
    x: Expr = ZERO
    y: Expr = ZERO
    for bit in range(SQUARE_BITS):
        quarter = (left >> (2 * bit)) & 3
        right, down = Var(f"right_{bit}"), Var(f"down_{bit}")
        lets += [Let(right.name, quarter >> 1), Let(down.name, (quarter ^ right) & 1)]
        size = 1 << bit
        # In the first and last quarters the curve inside is transposed, in the last one from the other corner.
        turned = binary(Op.EQ, down, 0)
        mirrored = binary(Op.LAND, turned, binary(Op.EQ, right, 1))
        mx = Select(mirrored, Const(size - 1) - x, x)
        my = Select(mirrored, Const(size - 1) - y, y)
        next_x, next_y = Var(f"hilbert_x_{bit}"), Var(f"hilbert_y_{bit}")
        lets += [
            Let(next_x.name, Select(turned, my, mx) + right * size),
            Let(next_y.name, Select(turned, mx, my) + down * size),
        ]
        x, y = next_x, next_y
    whole = binary(Op.LAND, binary(Op.EQ, width, side), binary(Op.EQ, height, side))
    row = first_row + Select(whole, y, _div(left, width))
    col = first_col + Select(whole, x, _mod(left, width))
    return lets, row, col
