"""`tilewright resources`: registers, spills, conflicts and barriers of every rung."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.errors import TilewrightError
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
    if write is not None and check is not None:
        raise typer.BadParameter("--write and --check exclude each other.")
    text = page()
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(text, encoding="utf-8")
    elif check is not None:
        if not same(check.read_text(encoding="utf-8"), text):
            raise TilewrightError(
                f"{str(check)!r} is not what the rungs use today.", hint=f"tilewright resources --write {check}"
            )
    else:
        print(text, end="")
    return 0
