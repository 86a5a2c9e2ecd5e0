"""A search within a budget: candidates compiled ahead, measured one by one, the best few timed side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from tilewright.bench import records
from tilewright.bench.protocol import Timing
from tilewright.errors import TilewrightError
from tilewright.tuner.claims import Claim
from tilewright.tuner.measure import FINAL_ROUNDS, GRAPH_MS, GpuLost, Measured, Measurer
from tilewright.tuner.study import Result, TuningStudy
from tilewright.winners.keys import Key, sources_version
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner, without_password

FINALISTS = 4
"""Candidates that are timed side by side at the end."""

_FINAL_S = 1.0
"""Of the budget, kept back for loading the finalists, and what their replays take on top."""

_FINAL_WAIT_S = 10.0
"""For a finalist of another process, compiled before: a candidate that is still being compiled may be in its way."""

_CRASHES = 3
_POLL_S, _LEAST_POLL_S = 0.25, 0.01

Progress = Callable[["State"], None]


class Compiling(Protocol):
    """What makes candidates ready. ahead: how many are worth having in work at once."""

    @property
    def ahead(self) -> int: ...
    def submit(self, candidate: PlanConfig) -> Future[Any]: ...


@dataclass(frozen=True, slots=True)
class State:
    """Where a search stands. measured, failed: of all processes; here: measured by this one."""

    candidates: int
    measured: int
    failed: int
    here: int
    best: Result | None
    elapsed_s: float
    left_s: float


@dataclass(slots=True)
class Pace:
    """How many candidates a process has measured, and when: seconds from its start to the end of the first measurement,
    of the first one of the search itself, and of the last. early: of them, those before the search."""

    measured: int = 0
    early: int = 0
    first_s: float = 0.0
    since_s: float = 0.0
    last_s: float = 0.0

    def count(self, at_s: float, *, early: bool = False) -> None:
        self.measured, self.early = self.measured + 1, self.early + early
        self.first_s, self.last_s = min(self.first_s or at_s, at_s), max(self.last_s, at_s)
        if not early:
            self.since_s = self.since_s or at_s

    @property
    def per_second(self) -> float | None:
        """Behind the first one of the search; None where there is no other."""
        span_s = self.last_s - self.since_s
        return (self.measured - self.early - 1) / span_s if self.since_s and span_s > 0 else None


@dataclass(frozen=True, slots=True)
class Early:
    """A candidate that was measured before its search began. at_s: when, of the search's clock."""

    candidate: PlanConfig
    prepared: Any
    measured: Measured
    at_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found. times: of the finalists and their peers, by name, in one run.

    exhausted: every candidate is measured or failed. pace: of this process.
    """

    candidates: int
    results: tuple[Result, ...]
    failures: Mapping[PlanConfig, str]
    best: Result
    times: Mapping[str, Timing]
    pace: Pace
    exhausted: bool
    elapsed_s: float

    @property
    def here(self) -> int:
        """Measured by this process."""
        return self.pace.measured

    @property
    def time(self) -> Timing:
        """Of the best."""
        return self.times[str(self.best.candidate)]


class Tuning:
    """One search by this process.

    seconds: the budget, of `now`'s seconds since `started`. rivals: candidates that are among the finalists whatever
    they took in the search, such as an earlier winner. early: what was measured before.
    """

    def __init__(
        self,
        study: TuningStudy,
        compilers: Compiling,
        measurer: Measurer,
        *,
        seconds: float,
        started: float | None = None,
        now: Callable[[], float] = monotonic,
        rivals: tuple[PlanConfig, ...] = (),
        early: Sequence[Early] = (),
        progress: Progress = lambda state: None,
    ) -> None:
        self.study, self.compilers, self.measurer = study, compilers, measurer
        self.now, self.rivals, self.progress = now, rivals, progress
        self.started = now() if started is None else started
        self.deadline = self.started + seconds
        self.pace = Pace()
        self._search_started = now()
        self._crashes: Counter[PlanConfig] = Counter()
        self._early = early
        self._prepared: dict[PlanConfig, Any] = {one.candidate: one.prepared for one in early}
        """What was measured here: a finalist need not wait for the compilers, which are busy until the end."""

    def run(self) -> Outcome:
        """Search until the budget is spent or all is measured. Raises TilewrightError if nothing was measured."""
        self.study.free_the_dead()
        for one in self._early:  # in time or not
            claim = self.study.claim_of(one.candidate)
            if claim is not None:
                self.pace.count(one.at_s - self.started, early=True)
                self.study.tell(claim, one.measured)
        exhausted = self._search()
        self.study.refresh()
        results = self.study.results()
        failures = self.study.failures()
        if not results:
            raise self._nothing(failures)
        times = self._final(results)
        best = min(
            (result for result in results if str(result.candidate) in times),
            key=lambda result: times[str(result.candidate)].median_us,
            default=None,
        )
        if best is None:
            raise TilewrightError("None of the fastest candidates could be timed again.", hint="run it again.")
        every = len(self.study.candidates)
        return Outcome(every, tuple(results), failures, best, times, self.pace, exhausted, self.now() - self.started)

    # -- the search -------------------------------------------------------------------------------------------------

    def _search(self) -> bool:
        """Whether every candidate was met."""
        work: dict[Future[Any], Claim[PlanConfig]] = {}
        all_taken = False
        try:
            while not self._is_late():
                # What is ready is measured before more is claimed.
                while len(work) < self.compilers.ahead and not (all_taken or self._is_late() or _any_done(work)):
                    claim = self.study.claim()
                    if claim is None:
                        all_taken = self.study.free_the_dead() == 0
                        continue
                    work[self.compilers.submit(claim.candidate)] = claim
                if not work:
                    if all_taken:
                        return True
                    continue
                left = max(_LEAST_POLL_S, self._seconds_left())
                done, _ = wait(work, timeout=min(_POLL_S, left), return_when=FIRST_COMPLETED)
                if done and not self._is_late():
                    first = min(done, key=lambda one: work[one].number)
                    self._measured(work.pop(first), first)
                self.progress(self._state())
            return False
        finally:
            for future in work:
                future.cancel()
            self.study.release(work.values())

    def _measured(self, claim: Claim[PlanConfig], future: Future[Any]) -> None:
        try:
            prepared = future.result()
        except BrokenProcessPool:
            self._compiler_died(claim)
            return
        except TilewrightError as refusal:
            self.study.tell_failure(claim, refusal.headline)
            return
        self.study.started(claim)
        try:
            measured = self.measurer.measure(prepared)
        except GpuLost as lost:
            self.study.tell_failure(claim, lost.headline)
            raise
        except TilewrightError as failure:
            self.study.tell_failure(claim, failure.headline)
            return
        self.pace.count(self.now() - self.started)
        self._prepared[claim.candidate] = prepared
        self.study.tell(claim, measured)

    def _compiler_died(self, claim: Claim[PlanConfig]) -> None:
        """All that was in work dies with one process of a pool: only who is there each time is the reason."""
        self._crashes[claim.candidate] += 1
        if self._crashes[claim.candidate] == _CRASHES:
            self.study.tell_failure(claim, f"the compiler crashed, {_CRASHES} times")
        else:
            self.study.release([claim])

    def _seconds_left(self) -> float:
        """Until the finalists must be timed."""
        best = self.study.best_us
        replay_s = max(GRAPH_MS * 1e-3, 0.0 if best is None else best * 1e-6)
        final_s = _FINAL_S + (FINAL_ROUNDS + 4) * (FINALISTS + len(self.rivals) + 2) * replay_s
        return self.deadline - final_s - self.now()

    def _is_late(self) -> bool:
        """Whether the finalists must be timed now. One candidate is measured in any case, unless the budget is spent
        twice over: a search that ends with nothing has been for nothing."""
        if self.pace.measured or self.study.best_us is not None:
            return self._seconds_left() <= 0
        return self.now() > self.deadline + (self.deadline - self.started)

    def _state(self) -> State:
        results, failures = self.study.results(), self.study.failures()
        open_ = len(self.study.candidates) - len(results) - len(failures)
        spent = self.now() - self._search_started
        each = spent / max(1, self.pace.measured)
        left = max(0.0, min(self._seconds_left(), open_ * each))
        best = results[0] if results else None
        elapsed = self.now() - self.started
        return State(len(self.study.candidates), len(results), len(failures), self.pace.measured, best, elapsed, left)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _final(self, results: list[Result]) -> Mapping[str, Timing]:
        chosen = [result.candidate for result in results[:FINALISTS]]
        known = {result.candidate for result in results}
        chosen += [rival for rival in self.rivals if rival in known and rival not in chosen]
        prepared = {str(candidate): self._prepared[candidate] for candidate in chosen if candidate in self._prepared}
        futures = {str(one): self.compilers.submit(one) for one in chosen if one not in self._prepared}
        for name, future in futures.items():
            try:
                prepared[name] = future.result(timeout=_FINAL_WAIT_S)
            except (TilewrightError, BrokenProcessPool, TimeoutError):
                continue
        return self.measurer.side_by_side(prepared)

    def _nothing(self, failures: Mapping[PlanConfig, str]) -> TilewrightError:
        spent = self.now() - self.started
        headline = f"Nothing was measured in {spent:.0f} s: {len(failures)} of {len(self.study.candidates)} " + (
            "candidates failed." if len(failures) != 1 else "candidates failed, which was all there was time for."
        )
        return TilewrightError(
            headline,
            place="\n".join(f"{count} x {reason}" for reason, count in reasons_of(failures)[:5]),
            hint="give it more time with --budget; the same command goes on where this one stopped.",
        )


def reasons_of(failures: Mapping[PlanConfig, str]) -> list[tuple[str, int]]:
    """Why candidates failed, the most frequent first."""
    return Counter(failures.values()).most_common()


def winner_of(outcome: Outcome, key: Key, flops: int) -> Winner:
    """The best of a search as the database keeps it."""
    best, time, peer = outcome.best, outcome.time, outcome.times.get("cuBLAS")
    return Winner(
        key=key,
        config=best.candidate,
        order=best.measured.order,
        kernel=best.measured.kernel,
        sources=sources_version(),
        median_us=time.median_us,
        tflops=flops / time.median_us / 1e6,
        share_of_cublas=None if peer is None else peer.median_us / time.median_us,
        tried=len(outcome.results),
        command=without_password(records.command()),
        commit=records.commit(),
        date=records.now(),
    )


def _any_done(work: Mapping[Future[Any], Claim[PlanConfig]]) -> bool:
    return any(future.done() for future in work)
