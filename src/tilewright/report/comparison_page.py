"""Two kernels side by side as one HTML page that loads nothing."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from tilewright.report.templates import rendered


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two kernels: its name, its idea, and its texts."""

    name: str
    idea: str
    schedule: str
    program: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of either text, or of both. kind: `same`, `changed`, `only-a`, `only-b`."""

    kind: str
    a_number: int | None
    a: str
    b_number: int | None
    b: str


def pairs(a: str, b: str) -> list[Pair]:
    """The lines of two texts laid side by side.

    >>> [(pair.kind, pair.a, pair.b) for pair in pairs("x\\ny", "x\\nz\\nw")]
    [('same', 'x', 'x'), ('changed', 'y', 'z'), ('only-b', '', 'w')]
    """
    left, right = a.splitlines(), b.splitlines()
    found: list[Pair] = []
    for change, i1, i2, j1, j2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for step in range(max(i2 - i1, j2 - j1)):
            i, j = i1 + step, j1 + step
            has_a, has_b = i < i2, j < j2
            kind = "same" if change == "equal" else "changed" if has_a and has_b else "only-a" if has_a else "only-b"
            found.append(
                Pair(
                    kind,
                    i + 1 if has_a else None,
                    left[i] if has_a else "",
                    j + 1 if has_b else None,
                    right[j] if has_b else "",
                )
            )
    return found


def page_text(a: Side, b: Side, counts: Sequence[tuple[str, str, str, str]]) -> str:
    """The page. counts: what, of a, of b, and the change in words."""
    texts = [
        ("Schedule", pairs(a.schedule, b.schedule)),
        ("Program", pairs(a.program, b.program)),
        ("CUDA", pairs(a.cuda, b.cuda)),
    ]
    page = files("tilewright.report") / "assets" / "comparison.html"
    return rendered(page, a=a, b=b, counts=counts, texts=texts)
