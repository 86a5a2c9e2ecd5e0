"""Many problems tuned in one budget: what fills the table that ships with the package.

Each problem has a short list: what `matmul` runs now and the best predicted plans, few of a kind. Processes rank and
compile the lists while the GPU checks and times those that are ready, each list side by side in one run, with cuBLAS.
What comes of it is a line of a record at once, and the winner goes to the database; a run that was stopped goes on
where it was. When all problems are done and time is left, they are gone through again with the next best plans.

The problems whose plan by estimate is the least sure come first: those that take several launches, or have fewer
tiles than the GPU has SMs. Of these, and of the rest, the short ones first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from tilewright.bench import records
from tilewright.bench.protocol import Timing
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.files import append_text, parse_json, read_text
from tilewright.kernels.gemv import GemvConfig
from tilewright.suite.problems import ORDERS, Problem
from tilewright.tuner.measure import GpuLost
from tilewright.tuner.tune import winner_from
from tilewright.units import ceil_div
from tilewright.winners.database import Database
from tilewright.winners.keys import Key, sources_version
from tilewright.winners.plan_config import PlanConfig

CANDIDATES = 5
"""Plans of a problem that are timed in one pass."""

_TILE = 128 * 128
"""Results of a block of most kernels: fewer blocks than SMs leave some idle."""

_DEATHS = 2
"""Measurements of a problem that ended with the death of the process, after which it is left alone."""

_CRASHES = 3

FORMAT = 2
PEER = "cuBLAS"


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of a process. known: plans that were measured or failed before. best: of those, to be timed
    again beside the new ones; None the first time."""

    problem: Problem
    number: int
    today: PlanConfig
    known: frozenset[PlanConfig] = frozenset()
    best: PlanConfig | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A short list, compiled: `Prepared` by name. failures: why others are not. exhausted: there is nothing new."""

    prepared: Mapping[str, Any]
    failures: Mapping[str, str]
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """What a GPU says of a short list. times: of those that gave the right result, and of cuBLAS."""

    times: Mapping[str, Timing]
    failures: Mapping[str, str]


class Preparing(Protocol):
    """Ranks and compiles short lists, several at a time."""

    def submit(self, task: Task) -> Future[Ready]: ...


class TableMeasurer(Protocol):
    """A GPU that checks and times one short list after another."""

    def measure(self, problem: Problem, ready: Ready) -> Timed:
        """Raises GpuLost where nothing more can be measured."""
        ...

    def ahead(self, problem: Problem) -> None:
        """This problem is next: what the host must make for it may be made now."""
        ...


@dataclass(frozen=True)
class Row:
    """One problem that was measured, or why not. left: problems without a result yet."""

    problem: Problem
    best: str = ""
    median_us: float = 0.0
    share_of_cublas: float | None = None
    failure: str = ""
    left: int = 0


@dataclass
class _Known:
    """What the record says of one problem."""

    plans: dict[str, PlanConfig] = field(default_factory=dict)
    best: PlanConfig | None = None
    passes: int = 0
    deaths: int = 0
    exhausted: bool = False


class Table:
    """One run. record: the file of lines. today: what `matmul` would run for a problem."""

    def __init__(
        self,
        problems: Sequence[Problem],
        spec: DeviceSpec,
        database: Database,
        record: Path,
        *,
        today: Callable[[Problem], PlanConfig],
        passes: int = 2,
    ) -> None:
        self.spec, self.database, self.record, self.today, self.passes = spec, database, record, today, passes
        self.problems = ordered(problems, spec, today)
        self._known = {problem: _Known() for problem in self.problems}
        self._read()

    @property
    def left(self) -> int:
        """Problems that have no result."""
        return sum(not one.passes and one.deaths < _DEATHS for one in self._known.values())

    def run(
        self,
        preparing: Preparing,
        measurer: TableMeasurer,
        *,
        seconds: float,
        now: Callable[[], float] = monotonic,
        started: float | None = None,
    ) -> Iterator[Row]:
        """Rows as problems are measured, until the budget is spent. Raises GpuLost."""
        started = now() if started is None else started
        longest_s = 0.0
        for number in range(self.passes):
            turns = [one for one in self.problems if self._is_due(one, number)]
            work = {problem: preparing.submit(self._task(problem, number)) for problem in turns}
            try:
                for at, problem in enumerate(turns):
                    if at + 1 < len(turns):
                        measurer.ahead(turns[at + 1])
                    try:
                        ready = self._ready(preparing, work, problem, number, seconds - (now() - started))
                    except TimeoutError:
                        return
                    except TilewrightError as failure:
                        yield Row(problem, failure=failure.headline, left=self.left)
                        continue
                    begun = now()
                    if begun - started + longest_s > seconds:
                        return
                    yield self._row(problem, number, ready, measurer)
                    longest_s = max(longest_s, now() - begun)
            finally:
                for future in work.values():
                    future.cancel()

    def _ready(
        self, preparing: Preparing, work: dict[Problem, Future[Ready]], problem: Problem, number: int, seconds: float
    ) -> Ready:
        for _ in range(_CRASHES):
            try:
                return work[problem].result(timeout=max(0.0, seconds))
            except BrokenProcessPool:  # one problem's compiler takes the lists of the others with it
                work[problem] = preparing.submit(self._task(problem, number))
        raise TilewrightError(f"the compiler crashed, {_CRASHES} times")

    def _is_due(self, problem: Problem, number: int) -> bool:
        known = self._known[problem]
        return known.passes <= number and known.deaths < _DEATHS and not known.exhausted

    def _task(self, problem: Problem, number: int) -> Task:
        known = self._known[problem]
        return Task(problem, number, self.today(problem), frozenset(known.plans.values()), known.best)

    def _row(self, problem: Problem, number: int, ready: Ready, measurer: TableMeasurer) -> Row:
        known = self._known[problem]
        if ready.exhausted:
            known.exhausted = True
            self._write(problem, {"exhausted": True})
            return Row(problem, failure="every plan was measured", left=self.left)
        self._write(problem, {"begun": True})
        try:
            timed = measurer.measure(problem, ready)
        except GpuLost as lost:
            self._write(problem, {"lost": lost.headline})
            raise
        failures = {**ready.failures, **timed.failures}
        ours = {name: timing for name, timing in timed.times.items() if name != PEER}
        best = _winner({name: timing.median_us for name, timing in ours.items()}, str(self.today(problem)))
        peer = timed.times.get(PEER)
        plans = {name: prepared.candidate for name, prepared in ready.prepared.items()}
        self._write(
            problem,
            {
                "pass": number,
                "plans": {name: plan.as_data() for name, plan in plans.items()},
                "times_us": {name: round(timing.median_us, 3) for name, timing in timed.times.items()},
                "failures": failures,
                "best": best,
                "today": str(self.today(problem)),
            },
        )
        known.passes, known.deaths = number + 1, 0
        known.plans |= plans
        if best is None:
            reasons = "; ".join(sorted(set(failures.values())))
            return Row(problem, failure=f"no plan gave a result: {reasons}", left=self.left)
        known.best = plans[best]
        key = Key.of(self.spec, problem.gemm)
        winner = winner_from(
            key, ready.prepared[best], ours[best], peer, flops=problem.gemm.flops, tried=len(known.plans)
        )
        self.database.record(winner, over=self.database.winner(key, winner.order))
        return Row(problem, best, winner.median_us, winner.share_of_cublas, left=self.left)

    # -- the record -------------------------------------------------------------------------------------------------

    def _write(self, problem: Problem, what: Mapping[str, Any]) -> None:
        line = {"format": FORMAT, "problem": str(problem), "device": self.spec.name, "sources": sources_version()}
        origin = {"commit": records.commit(), "command": records.command(), "date": records.now()}
        append_text(self.record, json.dumps({**line, **what, **origin}) + "\n")

    def _read(self) -> None:
        """What runs of the same sources on the same kind of device have left."""
        by_name = {str(problem): problem for problem in self.problems}
        text = read_text(self.record) if self.record.exists() else ""
        if text and not text.endswith("\n"):
            append_text(self.record, "\n")
        for line in text.splitlines():
            try:
                data = parse_json(line)
                problem = by_name.get(data["problem"])
                mine = (data["device"], data["sources"]) == (self.spec.name, sources_version())
            except (ValueError, KeyError, TypeError):  # a line that was cut off by a kill
                continue
            if problem is not None and mine:
                self._take(self._known[problem], data)

    def _take(self, known: _Known, data: Mapping[str, Any]) -> None:
        if data.get("begun"):
            known.deaths += 1
        elif data.get("exhausted"):
            known.exhausted = True
        elif "pass" in data:
            plans = {name: PlanConfig.from_data(one) for name, one in data["plans"].items()}
            known.plans |= plans
            known.passes, known.deaths = data["pass"] + 1, 0
            known.best = plans.get(data["best"] or "", known.best)


def _winner(times_us: Mapping[str, float], today: str) -> str | None:
    """The fastest plan, or what runs today where nothing is clearly faster."""
    best = min(times_us, key=lambda name: times_us[name], default=None)
    if best is not None and times_us.get(today, float("inf")) * _CLEARLY_FASTER <= times_us[best]:
        return today
    return best


_CLEARLY_FASTER = 0.99
"""The same plan, timed in different minutes, takes 1 to 3 % more or less: measured on the H200, 2048^3 in bf16, where a
plan that was 0.4 % ahead in one run was 4 % behind in the next."""


def ordered(
    problems: Sequence[Problem], spec: DeviceSpec, today: Callable[[Problem], PlanConfig]
) -> tuple[Problem, ...]:
    """The most valuable first."""

    def place(problem: Problem) -> tuple[int, int, int]:
        gemm, plan = problem.gemm, today(problem)
        unsure = bool(plan.packed) or plan.shares_k or isinstance(plan.kernel, GemvConfig)
        few = ceil_div(gemm.m * gemm.n, _TILE) < spec.sm_count
        return (0 if unsure or few else 1, list(ORDERS).index(problem.orders), gemm.flops)

    return tuple(sorted(problems, key=place))
