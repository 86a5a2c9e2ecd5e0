"""Sites: the statements of a kernel as places that events and findings name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.buffer import Buffer
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Stmt
from tilewright.ir.text import kernel_lines
from tilewright.ir.visit import Path


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One statement. index: position among the sites of the kernel. line: from 1, in `ir.text.kernel_text`.

    origin: the declared thing it comes from ("" if none). loops: the enclosing loops, outermost first: the name of
    each and the slot that holds its value. memory: which buffer the site is about, where the statement touches two
    (an asynchronous copy has a site for its source and one for its target).
    """

    index: int
    path: Path
    line: int
    text: str
    stmt: Stmt
    origin: str = ""
    loops: tuple[tuple[str, int], ...] = ()
    memory: Buffer | None = None

    def values(self, slots: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """The enclosing loops with their current values."""
        return tuple((name, slots[slot]) for name, slot in self.loops)

    @property
    def loop_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.loops)


class Sites:
    """Makes the sites of one kernel, in the order in which its statements are translated."""

    def __init__(self, kernel: Kernel) -> None:
        self._lines = {
            line.path: (number, line.text.strip())
            for number, line in enumerate(kernel_lines(kernel), start=1)
            if line.path is not None
        }
        self.all: list[Site] = []

    def place(self, path: Path, stmt: Stmt, loops: tuple[tuple[str, int], ...]) -> Site:
        """A statement as an observer is told of it: a place that no counter counts by, index -1."""
        line, text = self._lines[path]
        return Site(-1, path, line, text, stmt, getattr(stmt, "origin", ""), loops)

    def add(self, path: Path, stmt: Stmt, loops: tuple[tuple[str, int], ...], memory: Buffer | None = None) -> Site:
        line, text = self._lines[path]
        origin = getattr(stmt, "origin", "")
        site = Site(len(self.all), path, line, text, stmt, origin, loops, memory)
        self.all.append(site)
        return site
