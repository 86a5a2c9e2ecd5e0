"""`tilewright predict --sweep` and `--all-devices`: one kernel at many sizes, or on every known GPU.

Predictions over sizes as a chart in a page that works offline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.predict_subjects import Subject
from tilewright.cli.tables import Column, fitting_table
from tilewright.device.catalog import DEVICES
from tilewright.device.spec import DeviceSpec
from tilewright.errors import CompileError, CompilerMissing, LaunchError, TilewrightError
from tilewright.extras import require
from tilewright.files import write_whole
from tilewright.prediction import Prediction
from tilewright.units import format_seconds

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
</head>
<body style="font-family: system-ui, sans-serif">
<main>
<h1>{title}</h1>
{chart}
</main>
</body>
</html>
"""


def sweep_page(title: str, found: Sequence[tuple[int, Prediction]]) -> str:
    """TFLOP/s over the size, with intervals; pointing at a size tells its time and limiter. Raises MissingExtra."""
    require("plotly", "A chart of predictions")
    import plotly.graph_objects as go

    rates = [one.tflops for _, one in found]
    chart = go.Figure(
        go.Scatter(
            x=[size for size, _ in found],
            y=rates,
            mode="lines+markers",
            error_y={
                "array": [one.tflops_high - one.tflops for _, one in found],
                "arrayminus": [one.tflops - one.tflops_low for _, one in found],
                "symmetric": False,
            },
            text=[f"{one.seconds * 1e6:,.1f} us, limited by {one.binding.name}" for _, one in found],
            hovertemplate="%{x}: %{y:.3g} TFLOP/s<br>%{text}<extra></extra>",
        )
    )
    chart.update_layout(
        xaxis={"title": {"text": "M = N = K"}, "type": "log", "tickvals": [size for size, _ in found]},
        yaxis={"title": {"text": "TFLOP/s, predicted"}, "rangemode": "tozero"},
    )
    return _PAGE.format(title=escape(title), chart=chart.to_html(include_plotlyjs=True, full_html=False))


_MOST_SIZES = 200
_BAR_COLUMNS = 32

_RANGE = re.compile(r"(?P<first>\d+)-(?P<last>\d+)(?::(?P<step>\d+))?")


Line = tuple[str, Prediction]
"""One prediction of a table: what it is of, a size or a GPU."""


def parse_sweep(text: str) -> list[int]:
    """Sizes from "512-8192" (doubling), "512-4096:256" (in steps) or "1000,1024,4096".

    >>> parse_sweep("512-4096"), parse_sweep("256-768:256"), parse_sweep("100, 7")
    ([512, 1024, 2048, 4096], [256, 512, 768], [100, 7])
    """
    parts = [part.strip() for part in text.split(",")]
    found = _RANGE.fullmatch(text.strip())
    sizes: list[int] = []
    if found is not None:
        first, last, step = int(found["first"]), int(found["last"]), int(found["step"] or 0)
        while 0 < first <= last and len(sizes) <= _MOST_SIZES and step >= (found["step"] is not None):
            sizes.append(first)
            first = first + step if step else 2 * first
    elif all(re.fullmatch(r"\d+", word) for word in parts):
        sizes = [int(word) for word in parts]
    if not sizes or not all(sizes) or len(sizes) > _MOST_SIZES:
        raise typer.BadParameter(
            f"{text!r} is not a list of 1 to {_MOST_SIZES} sizes: write 512-8192 to double, 512-4096:256 for steps, "
            "or 1000,1024.",
            param_hint="'--sweep'",
        )
    return sizes


def sweep(
    subject: Subject, spec: DeviceSpec, sizes: Sequence[int], clock: int | None, page: Path | None, as_json: bool
) -> int:
    """Square problems with the same formats, one after the other, as a table with bars; as a page where asked."""
    found = []
    with output.progress("predicting") as step:
        for at, size in enumerate(sizes):
            step(f"predicting {size}", at, len(sizes))
            found.append((size, subject.sized(size).predict(spec, clock)))
    title = f"{subject.title} on {spec.name}, {subject.formats}: predicted, not measured"
    if page is not None:
        write_whole(page, sweep_page(title, found))
    if as_json:
        output.print_json([{"size": size, **_plain(one)} for size, one in found])
        return 0
    _print(title, "size", [(f"{size}", one) for size, one in found])
    if page is not None:
        output.note(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
    return 0


def all_devices(subject: Subject, as_json: bool) -> int:
    """A line for each GPU of the catalogue, the fastest first; then those that cannot run the kernel, and why."""
    lines: list[Line] = []
    unable: dict[str, list[str]] = {}
    with output.progress("predicting") as step:
        for at, spec in enumerate(DEVICES):
            step(f"predicting for {spec.name}", at, len(DEVICES))
            try:
                lines.append((spec.name, subject.predict(spec)))
            except CompilerMissing:
                raise
            except (LaunchError, CompileError) as error:
                unable.setdefault(_reason(error, spec), []).append(spec.name)
    lines.sort(key=lambda line: -line[1].tflops)
    if as_json:
        problems = [{"device": name, "problem": reason} for reason, names in unable.items() for name in names]
        output.print_json([*({**_plain(one), "device": name} for name, one in lines), *problems])
        return 0 if lines else 1
    sizes = " x ".join(map(str, subject.sizes))
    title = f"{subject.title}, {subject.formats}, {sizes}: predicted at the clocks of the data sheets, not measured"
    _print(title, "GPU", lines)
    for reason, names in unable.items():
        output.paragraph(output.out(), f"Not on {', '.join(names)}: {reason}", style="dim", hanging=2)
    return 0 if lines else 1


def _reason(error: TilewrightError, spec: DeviceSpec) -> str:
    """The first reason, without names of GPUs and architectures, so that those with the same reason share a line."""
    first = error.headline.partition(f"{spec.name}: ")[2] or error.headline
    return re.sub(r", and the kernel is compiled for \w+", "", first.replace(spec.name, "this GPU"))


def _plain(one: Prediction) -> dict[str, object]:
    names = ("device", "seconds", "low_s", "high_s", "tflops", "clock_hz", "sustained_hz", "sustained_s")
    told = output.picked(one, *names, "sustained_tflops", "blocks_per_sm")
    return {"figure": "predicted", **told, "binding": one.binding.name}


def _print(title: str, what: str, lines: Sequence[Line]) -> None:
    console = output.out()
    output.paragraph(console, title, style="bold")
    console.print()
    most = max((one.tflops for _, one in lines), default=1.0)
    columns: tuple[Column[Line], ...] = (
        Column(what, lambda line: line[0], 99, justify_left=True),
        Column("time", lambda line: format_seconds(line[1].seconds), 97),
        Column("TFLOP/s", lambda line: f"{line[1].tflops:.3g}", 98),
        Column("interval", lambda line: f"{line[1].tflops_low:.3g} to {line[1].tflops_high:.3g}", 10),
        Column("", lambda line: _bar(line[1].tflops / most), 50, justify_left=True),
        Column("limited by", lambda line: line[1].binding.name, 90, justify_left=True),
    )
    console.print(fitting_table(console, columns, lines))


def _bar(share: float) -> Text:
    return Text("█" * max(1, round(_BAR_COLUMNS * share)), "cyan")
