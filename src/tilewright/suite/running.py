"""The run over a suite: problem by problem, each recorded as soon as it is measured, so that a stop loses nothing.

Problems that torch.compile has yet to tune take long (8 to 31 s each, measured), so they are measured twice: first all
of them without it, then, while the budget lasts, each again with it. A ratio is always of one run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tilewright.bench import records
from tilewright.suite.outcomes import Outcome, outcomes
from tilewright.suite.problems import Problem
from tilewright.suite.timing import Times

OURS, CUBLAS, CUBLASLT, COMPILED = "tilewright", "cuBLAS", "cuBLASLt", "torch.compile"
PEERS = (CUBLAS, CUBLASLT, COMPILED)
NAME = "matmul"
"""What the records of this suite call the kernel; which one ran is in their `extra`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One problem, checked and timed. chosen: what ran, for people. notes: peers that could not be timed, and why."""

    times: dict[str, Times]
    relative_error: float
    chosen: str
    origin: records.Origin
    notes: dict[str, str] = field(default_factory=dict)


class Bench(Protocol):
    """A GPU that can measure."""

    @property
    def device(self) -> str:
        """Its name, as its driver tells it."""
        ...

    def measure(self, problem: Problem, peers: Sequence[str]) -> Measured:
        """Ours and the peers, in turn. Raises TilewrightError for a wrong result."""
        ...


Turn = tuple[Problem, tuple[str, ...]]
"""One measurement: a problem, and the peers that are timed with it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. budget_s: no problem is begun after so many seconds. again: also what is recorded already."""

    problems: tuple[Problem, ...]
    peers: tuple[str, ...] = PEERS
    record: Path | None = None
    budget_s: float | None = None
    again: bool = False

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every problem with its peers, in the order of measuring."""
        quick = tuple(peer for peer in self.peers if peer != COMPILED)
        turns = [(problem, quick) for problem in self.problems] if quick or COMPILED not in self.peers else []
        if COMPILED in self.peers:
            turns += [(problem, self.peers) for problem in self.problems]
        return tuple(turns)


def turns_left(plan: Plan, device: str, commit: str) -> tuple[Turn, ...]:
    """What a commit has yet to measure on a device."""
    known = set() if plan.again or plan.record is None else _known(plan.record, device, commit)
    return tuple(turn for turn in plan.turns if not _is_covered(turn, known))


def run(
    plan: Plan,
    bench: Bench,
    *,
    commit: str = "",
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Outcome[Turn, records.Record]]:
    """Records as they are measured. What the same commit has recorded on the same device is not measured again."""

    def record(turn: Turn) -> records.Record:
        found = record_of(turn[0], bench.measure(*turn))
        if plan.record is not None:
            records.write(plan.record, [found])
        return found

    left = turns_left(plan, bench.device, commit)
    return outcomes(left, record, told=_told, budget_s=plan.budget_s, progress=progress, clock=clock)


def _told(turn: Turn) -> str:
    problem, peers = turn
    return f"{problem}{' with torch.compile' if COMPILED in peers else ''}"


_Key = tuple[Problem, frozenset[str]]


def _known(path: Path, device: str, commit: str) -> set[_Key]:
    """Problems, and the peers they were timed with, that a commit has recorded on a device."""
    if not path.is_file():
        return set()
    rows = [r for r in records.read(path) if r.rung == NAME and (r.origin.device, r.origin.commit) == (device, commit)]
    return {(problem_of(row), frozenset(peers_us(row)) | frozenset(row.extra.get("notes", {}))) for row in rows}


def _is_covered(turn: Turn, known: set[_Key]) -> bool:
    problem, peers = turn
    return any(problem == other and set(peers) <= timed for other, timed in known)


def problem_of(record: records.Record) -> Problem:
    return Problem(record.m, record.n, record.k, record.dtype, record.orders)


def peers_us(record: records.Record) -> dict[str, float]:
    """The median times of the peers of a record, by name."""
    found = record.extra.get("peers_us", {})
    return {str(name): float(value) for name, value in found.items()}


def shares(record: records.Record) -> dict[str, float]:
    """How much faster than each peer, above 1 where faster."""
    found = record.extra.get("shares", {})
    return {str(name): float(value) for name, value in found.items()}


def record_of(problem: Problem, measured: Measured) -> records.Record:
    """A measurement as a line of the records."""
    own = measured.times[OURS]
    peers = {name: times for name, times in measured.times.items() if name != OURS}
    told = {name: own.share_of(times) for name, times in peers.items()}
    extra: dict[str, Any] = {
        "chosen": measured.chosen,
        "peers_us": {name: round(times.median_us, 3) for name, times in peers.items()},
        "shares": {name: round(share, 4) for name, share in told.items()},
        "rounds": len(own.each_us),
    }
    if measured.notes:
        extra["notes"] = measured.notes
    return records.Record(
        rung=NAME,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        dtype=problem.format,
        orders=problem.orders,
        tflops=round(problem.gemm.flops / own.median_us / 1e6, 3),
        median_us=round(own.median_us, 3),
        fastest_us=round(min(own.each_us), 3),
        slowest_us=round(max(own.each_us), 3),
        relative_error=float(f"{measured.relative_error:.3g}"),
        cublas_us=round(peers[CUBLAS].median_us, 3) if CUBLAS in peers else None,
        share_of_cublas=round(told[CUBLAS], 4) if CUBLAS in told else None,
        origin=measured.origin,
        extra=extra,
    )
