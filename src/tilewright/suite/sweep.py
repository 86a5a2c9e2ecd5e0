"""A sweep over drawn problems: each checked and timed beside its peer, recorded at once, summed up by class.

A file of a sweep is JSON lines: an `origin` begins a run (device, software, commit, command, date), then a row a
problem. Figures are microseconds; `share` is the peer's time over ours, above 1 where ours is faster.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tilewright.bench.records import Origin
from tilewright.files import append_text, json_lines
from tilewright.problem.emulation import EMULATIONS
from tilewright.problem.formats import FP8
from tilewright.suite.drawing import Drawn
from tilewright.suite.outcomes import Outcome, outcomes
from tilewright.suite.problems import FORMATS, OPTIONAL_FORMATS
from tilewright.suite.stacks import DrawnStack

Target = Drawn | DrawnStack
_FORMATS = frozenset((*FORMATS, *OPTIONAL_FORMATS, *EMULATIONS, *FP8))

SHORT = (0.95, 0.98)
"""Shares of the peer below which a problem counts as slow."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One problem of a sweep.

    kind: `linear`, `random`, `batched` or `grouped`, with `aligned` or `unaligned`. model_us: what the cost model
    predicted for what ran; 0 where it was not asked. source: the model that has the layer, where it was kept.
    peer_ran: names of the peer's kernels, where they were profiled.
    """

    problem: str
    kind: str
    us: float
    peer_us: float
    share: float
    error: float
    ran: str = ""
    source: str = ""
    model_us: float = 0.0
    peer_ran: str = ""

    @property
    def format(self) -> str:
        """Its format, such as bf16; of FP8 with its scales and sums, such as `e4m3 row fast`.

        >>> [SweepRow(one, "", 1, 1, 1, 0).format for one in ("8x8x8 e4m3 NT row", "2 x 8x8x8 bf16")]
        ['e4m3 row', 'bf16']
        """
        words = self.problem.split()
        first = next(number for number, word in enumerate(words) if word in _FORMATS)
        return " ".join(word for word in words[first:] if word.islower())


@dataclass(frozen=True, slots=True)
class Summary:
    """How a class of problems compares with the peer."""

    problems: int
    mean: float
    tenth: float
    least: float
    below: tuple[float, ...]

    @classmethod
    def of(cls, shares: Sequence[float]) -> Summary:
        """
        >>> Summary.of([0.5, 1.0, 1.0, 2.0])
        Summary(problems=4, mean=1.0, tenth=0.65, least=0.5, below=(0.25, 0.25))
        """
        below = tuple(sum(share < limit for share in shares) / len(shares) for limit in SHORT)
        tenth = statistics.quantiles(shares, n=10, method="inclusive")[0] if len(shares) > 1 else shares[0]
        mean = round(statistics.geometric_mean(shares), 4)
        return cls(len(shares), mean, round(tenth, 4), min(shares), below)


def append_origin(path: Path, origin: Origin) -> None:
    """Begin a run in a file of a sweep."""
    _append(path, {"origin": asdict(origin)})


def append_row(path: Path, row: SweepRow) -> None:
    """Record a problem of the running sweep; empty fields are left out."""
    _append(path, {name: value for name, value in asdict(row).items() if value or name == "error"})


def _append(path: Path, data: dict[str, object]) -> None:
    append_text(path, json.dumps(data, separators=(",", ":")) + "\n")


def read(path: Path) -> Iterator[tuple[Origin, SweepRow]]:
    """The rows of a file, each with the origin of its run. Raises TilewrightError on a line that is not a row."""
    origin: Origin | None = None

    def row_of(data: dict[str, Any]) -> SweepRow | None:
        nonlocal origin
        if "origin" in data:
            origin = Origin(**data["origin"])
            return None
        if origin is None:
            raise ValueError("no origin stands before it")
        return SweepRow(**data)

    hint = "take the line out, or record into another file with --record."
    for row in json_lines(path, row_of, "a row of a sweep", hint):
        if row is not None and origin is not None:
            yield origin, row


def measured_by(path: Path, device: str, commit: str) -> frozenset[str]:
    """Problems that a commit has recorded on a device."""
    if not path.is_file():
        return frozenset()
    rows = read(path)
    return frozenset(row.problem for origin, row in rows if (origin.device, origin.commit) == (device, commit))


def classes(rows: Iterable[SweepRow]) -> dict[tuple[str, str], list[SweepRow]]:
    """Rows by format and kind, in the order of first appearance."""
    found: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        found.setdefault((row.format, row.kind), []).append(row)
    return found


def worst(rows: Iterable[SweepRow], count: int = 20) -> list[SweepRow]:
    """The rows with the smallest shares."""
    return sorted(rows, key=lambda row: row.share)[:count]


class SweepBench(Protocol):
    """A GPU that checks and times drawn problems."""

    @property
    def device(self) -> str:
        """Its name, as its driver tells it."""
        ...

    @property
    def origin(self) -> Origin:
        """Where and how the rows are measured."""
        ...

    def row(self, drawn: Target) -> SweepRow:
        """Check and time one problem. Raises TilewrightError for a wrong result."""
        ...


def sweep(
    targets: Sequence[Target],
    bench: SweepBench,
    path: Path,
    *,
    budget_s: float | None = None,
    again: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome[Target, SweepRow]]:
    """Measure problems in order and record each at once; those that this commit has recorded are left out."""
    origin = bench.origin
    known = frozenset() if again else measured_by(path, origin.device, origin.commit)
    begun = False

    def row_of(target: Target) -> SweepRow:
        nonlocal begun
        row = bench.row(target)
        if not begun:
            append_origin(path, origin)
            begun = True
        append_row(path, row)
        return row

    left = [target for target in targets if str(target.problem) not in known]
    told: Callable[[Target], str] = lambda target: str(target.problem)  # noqa: E731
    yield from outcomes(left, row_of, told=told, budget_s=budget_s, progress=progress, clock=clock)
