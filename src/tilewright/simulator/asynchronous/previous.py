"""The grid before, under which a kernel starts (programmatic dependent launch): what it may still touch, until a thread
has waited for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import Array
from tilewright.simulator.asynchronous.clocks import Clocks
from tilewright.simulator.findings import Findings, Kind, Where


@dataclass(frozen=True, slots=True)
class PreviousGrid:
    """What the launches before may do while this one begins, by the names that this one has for the memory.

    written: flat storage that they leave behind; a thread finds it there once one has waited. read: what they read.
    anything: they may also write every other matrix, and read it.
    """

    written: Mapping[str, Array] = field(default_factory=dict)
    read: frozenset[str] = frozenset()
    anything: bool = False

    def concerns(self, name: str, *, store: bool) -> bool:
        """Whether an access to this memory must wait for them."""
        return self.anything or name in self.written or (store and name in self.read)


ANY_GRID = PreviousGrid(anything=True)


class Waiting:
    """Who knows that the grid before has ended: warps that have waited for it, and those ordered behind them."""

    def __init__(self, grid: PreviousGrid) -> None:
        self.grid = grid
        self.is_over = False
        """Whether any thread of the launch has waited."""

    def wait(self, clocks: Clocks, rows: Array, arrays: Mapping[str, Array]) -> None:
        """Warps have waited: all that the grid wrote is there."""
        if not self.is_over:
            self.is_over = True
            for name, values in self.grid.written.items():
                arrays[name][...] = values
        clocks.rows[rows, clocks.previous] = 1

    def late(self, clocks: Clocks, rows: Array, buffer: str, *, store: bool) -> Array:
        """Which warps (rows) would touch this global memory while the grid before may still use it, (rows,) bool."""
        if not self.grid.concerns(buffer, store=store):
            return np.zeros(len(rows), np.bool_)
        late: Array = clocks.rows[rows, clocks.previous] == 0
        return late


def report_early_access(findings: Findings, name: str, where: Where, *, store: bool) -> None:
    """An access to global memory that comes before the wait for the grid before."""
    findings.report(
        Kind.RACE,
        f"Race on {name}: {'written' if store else 'read'} here, while the grid before may still use it.",
        where,
        name,
        note="the kernel starts under the one before it (programmatic dependent launch).",
        hint="wait for the grid before first (WaitPreviousGrid), or behind a barrier with a thread that has waited.",
    )


def report_never_waited(findings: Findings) -> None:
    """A launch of which no thread has waited."""
    findings.report(
        Kind.UNFINISHED,
        "The kernel ends, and no thread has waited for the grid before.",
        Where(0, "the end of the kernel", (0, 0, 0), 0, ()),
        note="the kernel behind it waits for this one, and takes all grids before to have ended then.",
        hint="let a thread wait for the grid before (WaitPreviousGrid).",
    )
