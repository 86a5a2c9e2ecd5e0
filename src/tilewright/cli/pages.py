"""`tilewright pages`: a Markdown page for every rung."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.errors import TilewrightError
from tilewright.ladders import LADDERS, find_ladder
from tilewright.report.pages import pages as pages_of
from tilewright.report.pages import stale, written

EXAMPLES = (
    "tilewright pages --write docs/rungs",
    "tilewright pages --check docs/rungs",
    "tilewright pages te --write pages",
)


def pages(
    ladders: Annotated[list[str] | None, typer.Argument(metavar="LADDER", help="Default: all.")] = None,
    write: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the pages there.")] = None,
    check: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Fail if a page is not up to date.")] = None,
) -> int:
    """Write a page for every rung: what is new, program, CUDA, counts, occupancy, recorded speed.

    Every rung is simulated and compiled. Registers are compared only where the compiler is the one the page names.
    """
    if (write is None) == (check is None):
        raise typer.BadParameter("say where: --write FOLDER or --check FOLDER.")
    for name in ladders or ():
        find_ladder(name)
    with output.progress("simulating") as step:
        texts = pages_of(ladders or list(LADDERS), step)
    if write is not None:
        written(write, texts)
    elif check is not None and (old := stale(check, texts)):
        raise TilewrightError(
            f"{len(old)} of the pages in {str(check)!r} are not up to date.",
            place="\n".join(old),
            hint=f"tilewright pages --write {check}",
        )
    return 0
