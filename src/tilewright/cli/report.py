"""`tilewright report`: a ladder as one HTML page that works offline."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.arguments import (
    DEFAULT_SIZE,
    ArchName,
    FormatName,
    LadderOrFile,
    SizeText,
    chosen_ladder,
    chosen_rungs,
    formats_of,
)
from tilewright.cli.page_files import check_writable
from tilewright.cli.sizes import parse_size
from tilewright.report.collect import target_for
from tilewright.report.page import collect_page, require_plotly, write_page
from tilewright.runtime.cubin_cache import CubinCache

EXAMPLES = (
    "tilewright report --open",
    "tilewright report hopper --output hopper.html",
    "tilewright report worklog --rungs 5-8 --device 'RTX 3090'",
)


def report(
    name: LadderOrFile = "worklog",
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: LADDER.html.")] = None,
    opened: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    size: SizeText = DEFAULT_SIZE,
    rungs: Annotated[str | None, typer.Option(metavar="1-4,6", help="Only these rungs.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Predict for this GPU.")] = None,
    arch: ArchName = None,
    dtype: FormatName = None,
) -> int:
    """Write a ladder as one HTML page that works offline: charts, and pictures of what every rung does.

    Rungs are verified and counted on the simulator at --size; the pictures show what it saw. Speeds are those that were
    recorded for the device, and predictions, each marked as what it is. No GPU is used.
    """
    require_plotly()
    chosen = chosen_rungs(chosen_ladder(name), rungs)
    target = target_for("H200" if device is None and arch is None else device, arch, None)
    path = file or Path(f"{chosen[0].ladder}.html")
    check_writable(path)
    cache = CubinCache()
    with output.progress("climbing") as step:
        page = collect_page(
            chosen,
            parse_size(size),
            target,
            formats=formats_of(dtype),
            cache=cache,
            progress=step,
            workers=os.cpu_count() or 1,
        )
    write_page(page, path)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    for row in (view.row for view in page.views):
        if row.problem:
            output.note(f"{row.rung.name} has no counts. {row.problem}")
    if cache.problem is not None:
        output.note(cache.problem)
    if opened and not webbrowser.open(path.absolute().as_uri()):
        output.note(f"No browser was found: open {path} yourself.")
    return 0
