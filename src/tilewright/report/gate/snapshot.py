"""Snapshots: a JSON file in the user's repository, with the facts of each schedule by name.

Keys are sorted and each number has a line of its own, so that two branches that touch different schedules merge, and
a review shows which number changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from tilewright.errors import TilewrightError
from tilewright.files import parse_json, read_text, replace_file
from tilewright.report.gate.facts import Facts

SNAPSHOT_NAME = "tilewright.gate.json"
VERSION = 1


def read(path: Path, *, how: str = "--update") -> dict[str, Facts]:
    """The facts in a snapshot, by name. how: what writes a new one, for messages.

    Raises TilewrightError where it is none, or of a newer version.
    """
    try:
        data = parse_json(read_text(path))
    except FileNotFoundError:
        raise TilewrightError(
            f"There is no snapshot {str(path)!r}.", hint=f"write one with {how}, and keep it in your repository."
        ) from None
    except ValueError as error:
        raise TilewrightError(
            f"{str(path)!r} is not a snapshot: {error}.",
            hint=f"if a merge left its markers there, take either side and write it again with {how}.",
        ) from None
    version = data.get("version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise TilewrightError(
            f"{str(path)!r} was written by a newer tilewright: its version is {version}, and this one reads {VERSION}.",
            hint="python -m pip install --upgrade tilewright",
        )
    try:
        if version != VERSION:
            raise ValueError(f"its version is {version!r}, not {VERSION}")
        return {name: _facts(entry) for name, entry in data["schedules"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TilewrightError(
            f"{str(path)!r} is not a snapshot: {error}.", hint=f"delete it and write a new one with {how}."
        ) from None


def _facts(entry: Mapping[str, Any]) -> Facts:
    counts, targets = entry["counts"], entry["targets"]
    numbers = [*counts.values(), *(value for target in targets.values() for value in target.values())]
    if not all(isinstance(number, (int, float, str)) for number in numbers):
        raise ValueError("a value is neither a number nor a text")
    return Facts(str(entry["problem"]), {name: int(count) for name, count in counts.items()}, targets)


def update(path: Path, facts: Mapping[str, Facts], *, forget: Iterable[str] = ()) -> None:
    """Put facts into a snapshot, made if there is none; names to forget are taken out.

    Two processes that write at once, as test workers do, both get their facts in.
    """
    if not path.parent.is_dir():
        raise TilewrightError(f"There is no folder {str(path.parent)!r} for the snapshot.")
    lock = _lock_of(path)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        kept = read(path) if path.exists() else {}
        merged = {**{name: old for name, old in kept.items() if name not in set(forget)}, **facts}
        replace_file(path, _text(merged))


def _lock_of(path: Path) -> Path:
    """Outside of the repository, where a file that stays would be in the way, and where no other user can put one."""
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("tilewright")) / f"gate-{name}.lock"


def _text(facts: Mapping[str, Facts]) -> str:
    data = {"version": VERSION, "schedules": {name: one.as_data() for name, one in facts.items()}}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
