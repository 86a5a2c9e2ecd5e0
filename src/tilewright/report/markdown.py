"""Tables in Markdown files, between markers, written from the recorded measurements and never by hand.

<!-- ladder:worklog -->
| rung | ...
<!-- /ladder:worklog -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.errors import TilewrightError
from tilewright.ladders import find_ladder
from tilewright.report.figures import TIMED_SIZE, Figure, recorded_figure


def ladder_table(name: str) -> str:
    """The recorded figures of a ladder as a Markdown table, and a line that says where they come from."""
    rungs = find_ladder(name)
    figures = [recorded_figure(rung, TIMED_SIZE) for rung in rungs]
    lines = ["| rung | what is new | TFLOP/s | share of cuBLAS |", "|---|---|---:|---:|"]
    for rung, figure in zip(rungs, figures, strict=True):
        tflops = "" if figure is None else f"{figure.tflops:.2f}"
        share = "" if figure is None or figure.share_of_cublas is None else f"{100 * figure.share_of_cublas:.1f} %"
        lines.append(f"| {rung.title.removeprefix(name + '/')} | {rung.idea} | {tflops} | {share} |")
    return "\n".join([*lines, "", *_sources([figure for figure in figures if figure is not None])])


def _sources(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return ["No figures are recorded yet."]
    told = dict.fromkeys(
        f"Recorded on {figure.device}, {' x '.join(str(extent) for extent in figure.size)}, {figure.date[:10]}, "
        f"by `{figure.command}`."
        for figure in figures
    )
    return list(told)


def updated(text: str, name: str) -> str:
    """A Markdown text with the table of a ladder between its markers.

    Raises TilewrightError where the markers are missing or do not pair.
    """
    begin, end = f"<!-- ladder:{name} -->", f"<!-- /ladder:{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise TilewrightError(
            f"The text has no place for the table of ladder {name!r}.",
            hint=f"put the lines {begin} and {end} where it belongs, each once.",
        )
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{ladder_table(name)}\n{end}", text)
