"""`tilewright table`: a ladder's recorded figures as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.arguments import LadderName
from tilewright.cli.page_files import kept_up_to_date
from tilewright.ladders import find_ladder
from tilewright.report.markdown import ladder_table, updated

EXAMPLES = (
    "tilewright table worklog",
    "tilewright table worklog --write README.md",
    "tilewright table worklog --check README.md",
)


def table(
    name: LadderName,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Put it between the markers of a file.")] = None,
    check: Annotated[Path | None, typer.Option(metavar="FILE", help="Fail if the file is not up to date.")] = None,
) -> int:
    """Write a ladder's table of recorded figures into a Markdown file.

    It goes between <!-- ladder:NAME --> and <!-- /ladder:NAME -->; without a file it is printed.
    """
    find_ladder(name)
    if write is None and check is None:
        print(ladder_table(name))
    kept_up_to_date(write, check, lambda old: updated(old, name), f"tilewright table {name}")
    return 0
