"""Tables that fit: where the terminal is narrow, the least telling columns stay away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = TypeVar("Row")

NOTHING = Text("-", "dim")
"""What stands in a cell that has nothing to say."""

_FEWEST_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column. title: may have two lines. keep: the column with the lowest number goes first."""

    title: str
    cell: Callable[[Row], Text | str]
    keep: int
    justify_left: bool = False


def fitting_table(console: Console, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Table:
    """The rows with as many columns as the console has room for."""
    kept = list(columns)
    roomy = console.options.update(width=1000)
    while True:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0, header_style="dim")
        for column in kept:
            table.add_column(column.title, justify="left" if column.justify_left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(column.cell(row) for column in kept))
        if len(kept) <= _FEWEST_COLUMNS or console.measure(table, options=roomy).maximum <= console.width:
            return table
        kept.remove(min(kept, key=lambda column: column.keep))
