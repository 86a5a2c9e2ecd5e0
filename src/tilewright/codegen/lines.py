"""Laying out emitted lines: indentation, wrapping, notes in a column."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.visit import Path

WIDTH = 110
"""The widest line of emitted text, in columns."""

_INDENT = "    "

# Where a long line may be cut, the loosest binding first; the number is what stays on the line that is cut. Each begins
# with a comma or a blank.
_CUTS = ((", ", 1), (" ? ", 0), (" : ", 0), (" || ", 0), (" && ", 0), (" + ", 0), (" = ", 2), (" += ", 3), (" * ", 0))
_DEPTHS = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}


@dataclass(frozen=True, slots=True)
class Line:
    """One line before layout: `depth` levels in, `code`, and a note that follows it as a comment. path: of its
    statement, None where it is of none."""

    depth: int
    code: str
    note: str = ""
    path: Path | None = None

    @property
    def width(self) -> int:
        return len(_INDENT) * self.depth + len(self.code)


def layout(lines: Sequence[Line]) -> str:
    """The lines as text: wrapped at `WIDTH`, the notes of neighbouring lines in one column."""
    return "".join(f"{row}\n" for row, _ in rows_of(lines))


def rows_of(lines: Sequence[Line]) -> list[tuple[str, Path | None]]:
    """The rows of their text, each with the statement it is of; notes of neighbours stand in one column."""
    columns = _note_columns(lines)
    rows: list[tuple[str, Path | None]] = []
    for line, column in zip(lines, columns, strict=True):
        pad = _INDENT * line.depth
        beside = bool(line.note) and column + len(line.note) + len("//  ") <= WIDTH
        above = comment(line.note, pad) if line.note and not beside else []
        code = wrap(line.code, pad)
        if beside:
            code[-1] = f"{code[-1]:<{column}}  // {line.note}"
        rows += ((row, line.path) for row in (*above, *code))
    return rows


def comment(note: str, pad: str = "") -> list[str]:
    """`note` as comment lines of its own."""
    return textwrap.wrap(note, WIDTH, initial_indent=f"{pad}// ", subsequent_indent=f"{pad}// ")


def wrap(code: str, pad: str = "") -> list[str]:
    """`code` indented by `pad` and cut into lines of at most `WIDTH`, where it can be; further in inside brackets.

    >>> for row in wrap("value = (" + " && ".join(["a_rather_long_condition < 1"] * 6) + ") ? A[row * lda] : 0.0f;"):
    ...     print(row)
    value =
        (a_rather_long_condition < 1 && a_rather_long_condition < 1 && a_rather_long_condition < 1
            && a_rather_long_condition < 1 && a_rather_long_condition < 1 && a_rather_long_condition < 1)
        ? A[row * lda] : 0.0f;
    """
    rows: list[str] = []
    inset, depth = pad, 0
    while len(inset) + len(code) > WIDTH:
        cut = _cut(code, WIDTH - len(inset), depth)
        if cut == 0:
            break
        rows.append(inset + code[:cut].rstrip())
        depth += _opened(code[:cut])
        inset = pad + _INDENT * (1 if depth == 0 else 2)
        code = code[cut:].lstrip()
    return [*rows, inset + code]


def _opened(code: str) -> int:
    """Brackets that `code` opens and does not close."""
    return sum(_DEPTHS.get(char, 0) for char in code)


def _cut(code: str, room: int, depth: int) -> int:
    """Where to cut so that at most `room` columns stay: outside brackets first; 0 if there is no place.

    depth: the brackets that are open where `code` begins.
    """
    best, best_at = (1 << 30, 0), 0
    for at, char in enumerate(code[: room + 1]):
        depth += _DEPTHS.get(char, 0)
        for rank, (text, kept) in enumerate(_CUTS if char in ", " else ()):
            if at and code.startswith(text, at) and at + kept <= room and (depth, rank) <= best:
                best, best_at = (depth, rank), at + kept
    return best_at


def _note_columns(lines: Sequence[Line]) -> list[int]:
    """For each line, the column where the code ends for its note: one for a run of notes, where all of them fit."""
    columns: list[int] = []
    start = 0
    while start < len(lines):
        stop = start + 1
        while stop < len(lines) and lines[start].note and lines[stop].note and _same_run(lines[start], lines[stop]):
            stop += 1
        run = lines[start:stop]
        column = max(line.width for line in run)
        fits = all(column + len("  // ") + len(line.note) <= WIDTH for line in run)
        columns += [column if fits else line.width for line in run]
        start = stop
    return columns


def _same_run(a: Line, b: Line) -> bool:
    return a.depth == b.depth and not a.code.endswith("{") and not b.code.endswith("{")
