"""`tilewright table`: a ladder's recorded figures as Markdown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.arguments import LadderName
from tilewright.errors import TilewrightError
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
    if write is not None and check is not None:
        raise typer.BadParameter("--write and --check exclude each other.")
    if write is not None:
        _replace(write, updated(_read(write), name))
    elif check is not None:
        text = _read(check)
        if updated(text, name) != text:
            raise TilewrightError(
                f"The table of ladder {name!r} in {str(check)!r} is not what the records say.",
                hint=f"tilewright table {name} --write {check}",
            )
    else:
        print(ladder_table(name))
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TilewrightError(f"{str(path)!r} is no UTF-8 text.") from None


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
