"""Files that commands write: whether a place takes one, said before the work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tilewright.errors import TilewrightError


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
        except NotADirectoryError:
            problem = f"{str(folder)!r} is not a folder"
        except OSError as error:
            problem = f"{str(folder)!r} takes no file ({error.strerror or error})"
            if not folder.is_dir():
                problem = f"there is no folder {str(path.parent)!r}"
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
