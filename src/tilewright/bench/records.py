"""Measurements as JSON lines: each with the device, the software, the commit, the command and the date.

A record is written by the run that measured it and never edited. Records shipped with the package are what a machine
without a GPU shows, marked as recorded.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.files import append_text, json_lines

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and how a measurement was taken."""

    device: str
    driver: str
    compiler: str
    peer: str
    commit: str
    command: str
    date: str
    clock_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel on one problem. Times in microseconds a multiplication; share_of_cublas of the same run."""

    rung: str
    m: int
    n: int
    k: int
    dtype: str
    orders: str
    tflops: float
    median_us: float
    fastest_us: float
    slowest_us: float
    relative_error: float
    cublas_us: float | None
    share_of_cublas: float | None
    origin: Origin
    extra: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def commit() -> str:
    """The commit of the working tree this runs from, with `+` where it is changed; "" outside of one."""
    given = os.environ.get("TILEWRIGHT_COMMIT")
    if given:
        return given
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def command() -> str:
    """The command line of this process, as a user would type it; folders are left out of absolute paths."""
    program, *words = sys.argv
    words = [Path(word).name if Path(word).is_absolute() else word for word in words]
    name = Path(program).name
    if name == "__main__.py":
        return shlex.join([Path(program).parent.name, *words])
    return shlex.join(["python", name, *words] if name.endswith(".py") else [name, *words])


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def this_run() -> dict[str, str]:
    """What a record tells of the run that made it, beside the device and what is measured."""
    return {"commit": commit(), "command": command(), "date": now()}


def write(path: Path, records: Iterable[Record]) -> None:
    """Append records to a file of JSON lines."""
    append_text(path, "".join(json.dumps(asdict(record)) + "\n" for record in records))


def read(path: Path) -> list[Record]:
    """The records of a file. Raises TilewrightError on a line that is none, and for what is not an ordinary file."""
    hint = "another version may have written it: take the line out, or measure again with --record."
    return list(json_lines(path, _record_of, "a record", hint))


def _record_of(data: dict[str, Any]) -> Record:
    if data.get("format") != FORMAT:
        raise ValueError(f"format {data.get('format')}, not {FORMAT}")
    return Record(**{**data, "origin": Origin(**data["origin"])})


def recorded_folder() -> Path:
    """Where the records that ship with the package lie: inside it, or in the source tree it is installed from."""
    inside = Path(__file__).parent / "recorded"
    if inside.is_dir():
        return inside
    return Path(__file__).parents[3] / "benchmarks" / "results"


@cache
def recorded(ladder: str) -> tuple[Record, ...]:
    """The shipped records of a ladder, newest last."""
    path = recorded_folder() / f"ladder_{ladder}.jsonl"
    if not path.is_file():
        return ()
    return tuple(sorted(read(path), key=lambda record: record.origin.date))


def latest(ladder: str, rung: str, m: int, n: int, k: int, dtype: str = "f32") -> Record | None:
    """The newest shipped record of a rung at a size."""
    wanted = (rung, m, n, k, dtype)
    found = [r for r in recorded(ladder) if (r.rung, r.m, r.n, r.k, r.dtype) == wanted]
    return found[-1] if found else None
