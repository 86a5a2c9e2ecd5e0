"""What scripts that measure share: the time in which they begin something, and records of rows, each a line of JSON
behind the line of its run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.records import this_run

Row = dict[str, Any]


class Budget:
    """The seconds in which something may be begun."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def allows(self, what: str) -> bool:
        """Whether there is time; where not, `what` is said to be left out."""
        if self.left <= 0:
            print(f"{what}: left out", file=sys.stderr)
        return self.left > 0


def origin_of(torch: Any, device: str) -> Row:
    """The line of a run beside PyTorch."""
    return {"device": device, "torch": torch.__version__, **this_run()}


def recorded(origin: Row, rows: Iterable[Row], out: Path | None) -> Iterator[Row]:
    """Rows as they come, each printed, and written behind those before it."""
    lines = [_line(origin)]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    for row in rows:
        lines.append(_line(row))
        print(lines[-1], flush=True)
        if out is not None:
            out.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield row


def _line(row: Row) -> str:
    """Without blanks: records ship with the package."""
    return json.dumps(row, separators=(",", ":"))


def runs_in(path: Path) -> list[tuple[Row, list[Row]]]:
    """The runs of a record: the line of each, and its rows."""
    runs: list[tuple[Row, list[Row]]] = []
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "device" in row:
            runs.append((row, []))
        else:
            runs[-1][1].append(row)
    return runs


def where(origin: Row) -> str:
    """Where rows come from, for people."""
    beside = f", torch {origin['torch']}" if "torch" in origin else ""
    return f"Recorded on {origin['device']}{beside}, {origin['date'][:10]}: `{origin['command']}`."


def with_results(pairs: Sequence[tuple[Any, Any]], results: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    """The operands of calls that write a result: A, B and C of each."""
    return [(*pair, result) for pair, result in zip(pairs, results, strict=True)]
