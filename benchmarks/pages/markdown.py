"""Tables in Markdown files, between markers, written from the recorded measurements and never by hand.

<!-- ladder:worklog -->
| rung | ...
<!-- /ladder:worklog -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import eq
from pathlib import Path

from tilewright.bench.records import Origin
from tilewright.errors import TilewrightError
from tilewright.files import read_text, write_whole
from tilewright.ladders import Rung, find_ladder
from tilewright.problem.formats import FORMATS, format_name
from tilewright.report.figures import TIMED_SIZE, Figure, recorded_figure


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table. A column whose name ends with a colon is of numbers, which stand at the right.

    >>> table(["rung", "TFLOP/s:"], [["worklog/1", 4.5]])
    ['| rung | TFLOP/s |', '|---|---:|', '| worklog/1 | 4.5 |']
    """
    lines = [[column.removesuffix(":") for column in columns], *rows]
    head, *others = [f"| {' | '.join(map(str, cells))} |" for cells in lines]
    return [head, "|" + "".join("---:|" if column.endswith(":") else "---|" for column in columns), *others]


def ladder_table(name: str) -> str:
    """The recorded figures of a ladder as a Markdown table, and a line that says where they come from."""
    rows = [
        (rung, own, recorded_figure(rung, TIMED_SIZE, own))
        for rung in find_ladder(name)
        for own in recorded_formats(rung)
    ]
    several = len({own for _, own, _ in rows}) > 1
    cells = []
    told: set[str] = set()
    for rung, own, figure in rows:
        idea = rung.idea if rung.name not in told else ""
        told.add(rung.name)
        tflops = "" if figure is None else f"{figure.tflops:.2f}"
        share = "" if figure is None or figure.share_of_cublas is None else f"{100 * figure.share_of_cublas:.1f} %"
        formats = [own] if several else []
        cells.append([rung.title.removeprefix(name + "/"), idea, *formats, tflops, share])
    columns = ["rung", "what is new", *(["formats"] if several else []), "TFLOP/s:", "share of cuBLAS:"]
    return "\n".join([*table(columns, cells), "", *_sources([figure for _, _, figure in rows if figure is not None])])


def recorded_formats(rung: Rung) -> list[str]:
    """The formats of the rung, then others in which it was recorded."""
    own = format_name(rung.gemm(*TIMED_SIZE))
    return [own, *(name for name in FORMATS if name != own and recorded_figure(rung, TIMED_SIZE, name) is not None)]


def _sources(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return ["No figures are recorded yet."]
    told = dict.fromkeys(
        f"Recorded on {figure.device}, {' x '.join(str(extent) for extent in figure.size)}, {figure.date[:10]}, "
        f"by `{figure.command}`."
        for figure in figures
    )
    return list(told)


def measured(origins: Iterable[Origin]) -> str:
    """Where and how measurements were taken, a line each."""
    told = dict.fromkeys(
        f"* {one.date[:10]}, commit {one.commit or 'unknown'}, driver {one.driver}, {one.compiler}, {one.peer}: "
        f"`{one.command}`"
        for one in origins
    )
    return "\n".join(["Measured:\n", *told])


def updated(text: str, name: str) -> str:
    """A Markdown text with the table of a ladder between its markers.

    Raises TilewrightError where the markers are missing or do not pair.
    """
    return with_part(text, f"ladder:{name}", ladder_table(name), what=f"the table of ladder {name!r}")


def with_part(text: str, marker: str, part: str, *, what: str) -> str:
    """A Markdown text with `part` between its markers. Raises TilewrightError where they are missing or do not pair."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise TilewrightError(
            f"The text has no place for {what}.",
            hint=f"put the lines {begin} and {end} where it belongs, each once.",
        )
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{part}\n{end}", text)


def kept_up_to_date(
    write: Path | None,
    check: Path | None,
    fresh: Callable[[str], str],
    command: str,
    *,
    same: Callable[[str, str], bool] = eq,
    source: str = "what the records say",
) -> None:
    """Write a file, or fail where it is not what it would be written as.

    fresh: what the file should hold, given what it holds; "" where there is none. command: that writes it, but
    for the file. source: of what it should hold.
    """
    if write is not None:
        write_whole(write, fresh(read_text(write) if write.exists() else ""))
    elif check is not None:
        old = read_text(check)
        if not same(old, fresh(old)):
            raise TilewrightError(f"{str(check)!r} is not {source}.", hint=f"{command} {check}")
