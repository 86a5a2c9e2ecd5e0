"""Files that are there whole, or as they were; and what somebody else may have written, read with care."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tilewright.errors import TilewrightError

Line = TypeVar("Line")

MOST_NESTED = 100
"""Lists and objects of a JSON text inside each other."""


def is_ordinary(path: Path) -> bool:
    """Whether it is neither a pipe nor a device, which might never end. What is not there, or is a folder, passes:
    opening it says so."""
    return not path.exists() or stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)


def check_ordinary(path: Path) -> None:
    """Raise TilewrightError for a pipe or a device."""
    if not is_ordinary(path):
        raise TilewrightError(f"{str(path)!r} is not an ordinary file.")


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The text of an ordinary file, in UTF-8. Raises OSError, UnicodeDecodeError, and TilewrightError for a pipe."""
    check_ordinary(path)
    return path.read_text(encoding="utf-8", errors=errors)


def append_text(path: Path, text: str) -> None:
    """Add to the end of an ordinary file, which is made if it is not there. Raises OSError, and TilewrightError for a
    pipe, whose reader might never come."""
    check_ordinary(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError where it is none, has a number that is not finite, or is nested
    more than MOST_NESTED deep, which no reader of ours could follow.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MOST_NESTED and _is_deep(found):
        raise ValueError(_TOO_DEEP)
    return found


def json_lines(path: Path, read: Callable[[dict[str, Any]], Line], what: str, hint: str) -> Iterator[Line]:
    """What `read` makes of each line of a file of JSON objects. Raises TilewrightError that names a line that is none,
    or of which `read` raises ValueError, TypeError or KeyError; what: it should be. Raises OSError."""
    for number, line in enumerate(read_text(path, errors="replace").splitlines(), 1):
        try:
            data = parse_json(line)
            if not isinstance(data, dict):
                raise ValueError("it holds no names")
            yield read(data)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise TilewrightError(f"Line {number} of {path.name} is not {what}: {reason}.", hint=hint) from None


_TOO_DEEP = f"it is nested more than {MOST_NESTED} deep"


def _finite(text: str) -> float:
    """A number of JSON, of which "1e999" is infinite in Python, too."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_NESTED + 1):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for several in inside for one in several]
    return bool(level)


Content = str | bytes | Callable[[BinaryIO], object]
"""Of a file: text, which is written as UTF-8, bytes, or what writes them."""


def replace_file(path: Path, content: Content) -> None:
    """Write beside the place and rename. Raises OSError where it cannot be.

    The temporary name is random and must be new: a link that somebody has put there is not followed.
    """
    unfinished = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}.tmp")
    with unfinished.open("xb") as file:
        try:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.close()
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: Content) -> None:
    """`replace_file`, of a file that a user has named. Raises TilewrightError where it cannot be written."""
    try:
        replace_file(path, content)
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise TilewrightError(f"Cannot write {str(path)!r}: {reason}.", hint="name a file elsewhere.") from None
