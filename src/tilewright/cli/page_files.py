"""Files that commands write: Markdown from records, or held against them; and whether a place takes a file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from operator import eq
from pathlib import Path

import typer

from tilewright.errors import TilewrightError
from tilewright.files import read_text, write_whole


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

    fresh: what the file should hold, given what it holds; "" where there is none. command: that writes it. source: of
    what it should hold.
    """
    if write is not None and check is not None:
        raise typer.BadParameter("--write and --check exclude each other.")
    if write is not None:
        text = fresh(_read(write) if write.exists() else "")
        write_whole(write, text)
    elif check is not None:
        old = _read(check)
        if not same(old, fresh(old)):
            raise TilewrightError(f"{str(check)!r} is not {source}.", hint=f"{command} --write {check}")


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except UnicodeDecodeError:
        raise TilewrightError(f"{str(path)!r} is no UTF-8 text.") from None


def check_writable(path: Path) -> None:
    """Raises TilewrightError where no file can be written: said before the work, not after it."""
    problem = ""
    if path.is_dir():
        problem = "it is a folder"
    elif path.exists() and not path.is_file():
        problem = "it is not a plain file"
    else:
        folder = path.absolute().parent
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except FileNotFoundError:
            problem = f"there is no folder {str(path.parent)!r}"
        except NotADirectoryError:
            problem = f"{str(folder)!r} is not a folder"
        except OSError as error:
            problem = f"{str(folder)!r} takes no file ({error.strerror or error})"
    if problem:
        raise TilewrightError(f"Cannot write {str(path)!r}: {problem}.", hint="name a file elsewhere.")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet. Raises TilewrightError where one is, and where none can be."""
    check_writable(path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise TilewrightError(f"{str(path)!r} exists.", hint="choose another name, or remove it first.") from None
