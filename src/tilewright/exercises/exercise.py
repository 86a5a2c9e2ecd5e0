"""`Exercise`: a puzzle as data: the file it starts from, the counts that solve it, and hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from tilewright.exercises.kernel_edits import taken_out
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Stmt
from tilewright.ir.text import kernel_lines
from tilewright.ladders import find_rung
from tilewright.problem.gemm import Gemm
from tilewright.simulator import Counters
from tilewright.toolchain import build


@dataclass(frozen=True, slots=True)
class Goal:
    """A count of the simulated kernel, and the most that it may be."""

    sentence: str
    measure: Callable[[Counters, Kernel], float]
    at_most: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Statements that are missing from a rung's kernel. part: what one of them is called where it is put back."""

    rung: str
    part: str
    is_missing: Callable[[Stmt], bool]

    def kernel(self, gemm: Gemm) -> tuple[Kernel, Stmt]:
        """The kernel without them, for a problem, and the first of them."""
        return taken_out(build(gemm, find_rung(self.rung)).kernel, self.is_missing)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A puzzle.

    title: what is to be reached, in a few words. page: what to read first. gemm: the problem at which it is counted.
    hints: in the order in which they are given; the last one is next to the solution. edges: a problem that no tile
    divides, for which a schedule must be right as well. gap: None where the answer is a schedule.
    """

    name: str
    title: str
    page: str
    gemm: Gemm
    goals: tuple[Goal, ...]
    hints: tuple[str, ...]
    edges: Gemm | None = None
    gap: Gap | None = None

    def start(self) -> str:
        """The text of the file to edit."""
        text = (files("tilewright.exercises") / "starts" / f"{self.name}.py.txt").read_text("utf-8")
        if self.gap is None:
            return text
        lines = kernel_lines(self.gap.kernel(self.gemm)[0])
        return text.replace("KERNEL", "\n".join(f"{number:4}  {line.text}" for number, line in enumerate(lines, 1)))
