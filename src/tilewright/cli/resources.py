"""`tilewright resources`: registers, spills, conflicts and barriers of every rung."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.page_files import kept_up_to_date
from tilewright.report.resources import page, same

EXAMPLES = ("tilewright resources --write docs/resources.md", "tilewright resources --check docs/resources.md")


def resources(
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page to a file.")] = None,
    check: Annotated[Path | None, typer.Option(metavar="FILE", help="Fail if the file is not up to date.")] = None,
) -> int:
    """Write what every rung uses on each architecture into a Markdown file.

    Every rung of every ladder is compiled for sm_80, sm_86, sm_89 and sm_90a and simulated. Registers are compared
    only where the compiler is the one the page names.
    """
    text = page()
    if write is None and check is None:
        print(text, end="")
    kept_up_to_date(write, check, lambda _: text, "tilewright resources", same=same, source="what the rungs use today")
    return 0
