"""What `tilewright tune` does: a search of one problem, or of each of a list, on the GPU at hand; and its candidates
without one.

`tilewright tune --shapes FILE`: a list of problems, shared with other machines and by all GPUs of this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

from tilewright.cli import output
from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.on_paper import version_of
from tilewright.problem.gemm import Gemm
from tilewright.runtime.driver import Gpu, gpu_count, gpu_problem, open_gpu
from tilewright.runtime.probe import probe
from tilewright.tuner.claims import LEASE_S
from tilewright.tuner.compiling import Builds, Compilers
from tilewright.tuner.first import Asked, First
from tilewright.tuner.fleet import Fleet, Listed, Tune, listed, problem
from tilewright.tuner.measure import GpuMeasurer
from tilewright.tuner.processes import Processes
from tilewright.tuner.session import begun, measured_early
from tilewright.tuner.session import tune as search
from tilewright.tuner.space import Candidate, Space, make_space, todays_order, todays_plan
from tilewright.tuner.storage import default_url, import_ahead, import_while
from tilewright.tuner.tune import Outcome, State, reasons_of, winner_of
from tilewright.winners.database import Database
from tilewright.winners.keys import Key, sources_version
from tilewright.winners.lookup import Lookup
from tilewright.winners.order import ReductionOrder
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner, without_password

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ONE_OF_MANY = "TILEWRIGHT_TUNE_GPU"
"""Set in processes that this command has started, one for each GPU."""

_WHILE_FIRST = 8
"""Processes that compile while the first candidate is measured: more would slow that down."""

_LEASES = 4
"""Budgets of a problem, after which one that another machine took is taken again."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What is asked for. budget_s: of each problem. export: where the winners of all machines are written to."""

    problems: tuple[Listed, ...]
    storage: str
    budget_s: float
    export: Path | None


def one_for_each_gpu(arguments: list[str]) -> int | None:
    """Run the command once for each of several GPUs of this machine: the worst exit code. None for a machine of one, or
    in a process that was started so."""
    count = gpu_count()
    if count < 2 or _ONE_OF_MANY in os.environ:
        return None
    names = os.environ.get(_VISIBLE, "").split(",") if os.environ.get(_VISIBLE) else [str(i) for i in range(count)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tilewright", *arguments],
            env={**os.environ, _VISIBLE: name, _ONE_OF_MANY: name},
        )
        for name in names[:count]
    ]
    return max(process.wait() for process in running)


def tune_list(asked: Shared, spec: DeviceSpec, tune: Tune, database: Database, *, as_json: bool) -> int:
    """The exit code: 1 where problems could not be tuned."""
    fleet = Fleet(asked.storage, asked.problems, spec, lease_s=max(LEASE_S, _LEASES * asked.budget_s))
    total, reports = len(asked.problems), []
    with closing(fleet), output.progress("tuning a list") as advance:
        for report in fleet.run(tune):
            reports.append(report)
            words = f"{report.gemm}: {report.failure or 'tuned'}"
            advance(words, total - report.left, total)
            if not as_json:
                print(f"  {words}")
        winners = fleet.winners()
    taken = database.import_([f"{line}\n" for line in winners], "the list")
    if asked.export is not None:
        asked.export.parent.mkdir(parents=True, exist_ok=True)
        asked.export.write_text("".join(f"{line}\n" for line in winners), encoding="utf-8")
    failed = [report for report in reports if report.failure]
    if as_json:
        told = [{"problem": str(report.gemm), "failure": report.failure} for report in reports]
        output.print_json({"device": spec.name, "here": told, "problems": total, "winners": len(winners)})
    else:
        own = f"{len(reports)} of them here" if reports else "none of them here"
        print(f"{len(winners)} of {total} problems have a winner, {own}; {taken.added} are new to this machine.")
    return 1 if failed else 0


__all__ = ["Search", "Words", "default_url", "one_for_each_gpu", "print_candidates", "problems_of"]


@dataclass(frozen=True, slots=True)
class Words:
    """What is asked of each search. family: of kernels; None for all."""

    family: str | None
    keep_bits: bool
    as_json: bool


def problems_of(asked: Asked | None, dtype: str | None, order: str | None, shapes: Path | None) -> tuple[Listed, ...]:
    """The one that is asked for, those of a file, or of the suite."""
    if asked is not None:
        return (Listed(problem(*asked)),)
    if shapes is not None:
        return listed(shapes)
    from tilewright.suite.problems import FORMATS, ORDERS, problems  # here: a search of one problem does without

    formats = FORMATS if dtype is None else (dtype,)
    orders = ORDERS if order is None else (order.upper(),)
    return tuple(Listed(one.gemm) for one in problems(formats=formats, orders=orders))


def print_candidates(problems: tuple[Listed, ...], device: str | None, words: Words, *, is_list: bool) -> int:
    """All candidates of a problem by their predicted times, or the problems of a list; needs no GPU. device: the GPU at
    hand, else an H200, where there is no name."""
    if device is None and gpu_problem() is None:
        spec = probe(open_gpu())
    else:
        spec = known_device("H200" if device is None else device)
    if is_list:
        lines = [str(one.gemm) for one in problems]
        output.print_json({"device": spec.name, "problems": lines}) if words.as_json else print("\n".join(lines))
        return 0
    gemm = problems[0].gemm
    like = _like(gemm, todays_plan(gemm, spec, Lookup(version_of, Database())), words)
    with output.progress("listing and ranking candidates"):
        space = make_space(gemm, spec, family=words.family, like=like)
    _print_ranking(space, words.as_json)
    return 0


def _like(gemm: Gemm, today: PlanConfig, words: Words) -> ReductionOrder | None:
    """The order of summation that candidates must keep."""
    return todays_order(gemm, today) if words.keep_bits else None


class Search:
    """Searches on the GPU at hand, one after another. storage: where they are kept."""

    def __init__(self, gpu: Gpu, processes: Processes, storage: str, words: Words) -> None:
        self.gpu, self.spec, self.compilers = gpu, probe(gpu), Compilers(processes)
        self.storage, self.words, self.database = storage, words, Database()

    def one(self, gemm: Gemm, seconds: float, *, started: float, beginning: Future[First] | None = None) -> int:
        """One problem, within seconds since `started`. beginning: what is to be measured first, where it is in work.
        The exit code."""
        job = self._job(gemm, beginning)
        space, outcome = job.run(self.storage, seconds, started)
        stored = job.store(outcome)
        _print_outcome(space, outcome, stored, self.words.as_json, job.first.plan)
        for complaint in self.database.complaints:
            output.note(complaint)
        return 0

    def all_of(self, problems: tuple[Listed, ...], seconds: float, export: Path | None) -> int:
        """All problems of a list, with so many seconds for each. The exit code."""

        def tune_one(gemm: Gemm) -> str:
            job = self._job(gemm)
            _, outcome = job.run(self.storage, seconds, monotonic())
            job.store(outcome)
            return winner_of(outcome, Key.of(self.spec, gemm), gemm.flops).to_json()

        shared = Shared(problems, self.storage, seconds, export)
        return tune_list(shared, self.spec, tune_one, self.database, as_json=self.words.as_json)

    def _job(self, gemm: Gemm, beginning: Future[First] | None = None) -> _Job:
        return _Job(self.gpu, gemm, self.spec, self.words, self.database, self.compilers, beginning)


@dataclass
class _Job:
    """A search on the GPU at hand, and what becomes of its winner."""

    gpu: Gpu
    gemm: Gemm
    spec: DeviceSpec
    words: Words
    database: Database
    compilers: Compilers
    beginning: Future[First] | None
    earlier: Winner | None = None

    @cached_property
    def first(self) -> First:
        """What `matmul` runs today."""
        if self.beginning is not None:
            with suppress(BrokenProcessPool):
                return self.beginning.result()
        return First(todays_plan(self.gemm, self.spec, Lookup(version_of, self.database)))

    def run(self, storage: str, budget: float, started: float) -> tuple[Space, Outcome]:
        """The candidates, and what the search found."""
        self.earlier = self.database.winner(Key.of(self.spec, self.gemm))
        measurer = GpuMeasurer(self.gpu, self.gemm, self._peers)
        measurer.begin()
        try:
            today = self.first.plan
            like = _like(self.gemm, today, self.words)
            builds = begun(measurer, self.spec, self.compilers, like=like, first=self.first)
            ranking = self._ranking(like)
            sources_version()  # 200 files, read while a first kernel is compiled: beside imports that takes a second
            self._compile_others(builds, like)
            early = measured_early(builds, measurer, today) if self.words.family is None else ()
            self.compilers.processes.start(self.compilers.processes.workers)
            import_ahead()  # behind that: an import takes the interpreter from each of a measurement's calls
            measurer.begin_peers()
            with output.progress("listing and ranking candidates"):
                space = Space(self.gemm, self.spec, ranking.result(), like=like)
            with output.progress(f"tuning {self.gemm}") as advance:

                def step(state: State) -> None:
                    done, left = round(1000 * state.elapsed_s), round(1000 * state.left_s)
                    advance(told(state), done, done + left)

                outcome = search(
                    space,
                    builds,
                    measurer,
                    storage=storage,
                    seconds=budget,
                    started=started,
                    rivals=(today,),
                    early=early,
                    progress=step,
                )
            return space, outcome
        finally:
            measurer.close()

    def _compile_others(self, builds: Builds, like: ReductionOrder | None) -> None:
        """Behind the first candidate, whose compilation nothing may slow down."""
        first = self.first
        if (built := first.built) is not None:
            import_while(lambda: not built.done())
            wait([built])
        if first.others is not None and self.words.family is None and like is None:
            with suppress(BrokenProcessPool, TilewrightError):
                builds.begin(first.others.result())
        self.compilers.processes.start(_WHILE_FIRST)

    def _ranking(self, like: ReductionOrder | None) -> Future[tuple[Candidate, ...]]:
        family, today = self.words.family, self.first.plan
        return self.compilers.ranked(self.gemm, self.spec, family=family, like=like, today=today)

    def _peers(self) -> dict[str, Any]:
        from tilewright.bench.baseline import cublas

        peer = cublas(self.gpu, self.gemm)
        return {} if peer is None else {"cuBLAS": peer.launch}

    def store(self, outcome: Outcome) -> bool:
        """Whether the winner is what `matmul` uses from now on."""
        key = Key.of(self.spec, self.gemm)
        return self.database.record(winner_of(outcome, key, self.gemm.flops), over=self.earlier)


# -- printing ------------------------------------------------------------------------------------------------------


def told(state: State) -> str:
    """Where a search stands, in a line."""
    best = "" if state.best is None else f", best {state.best.measured.median_us:.1f} us"
    failed = f", {state.failed} failed" if state.failed else ""
    return f"{state.measured} of {state.candidates} measured{failed}{best}"


_LISTED = 20


def _print_ranking(space: Space, as_json: bool) -> None:
    if as_json:
        listed = [{**one.config.as_data(), "predicted_us": one.predicted_us} for one in space.ranked]
        output.print_json({"problem": str(space.gemm), "device": space.spec.name, "candidates": listed})
        return
    print(f"{space.gemm} on {space.spec.name}: {len(space.candidates)} candidates. Predicted, not measured:")
    for one in space.ranked[:_LISTED]:
        print(f"  {one.predicted_us:10.1f} us  {one.config}")
    if len(space.ranked) > _LISTED:
        print(f"  ... and {len(space.ranked) - _LISTED} more; --json prints all")


def _print_outcome(space: Space, outcome: Outcome, stored: bool, as_json: bool, today: PlanConfig) -> None:
    time, peer = outcome.time, outcome.times.get("cuBLAS")
    if as_json:
        output.print_json(
            {
                "problem": str(space.gemm),
                "device": space.spec.name,
                **outcome.best.candidate.as_data(),
                "median_us": time.median_us,
                "tflops": time.tflops(space.gemm),
                "share_of_cublas": None if peer is None else peer.median_us / time.median_us,
                "times_us": {name: found.median_us for name, found in outcome.times.items()},
                "candidates": outcome.candidates,
                "measured": len(outcome.results),
                "measured_here": outcome.here,
                "first_measured_s": outcome.pace.first_s if outcome.here else None,
                "measured_per_s": outcome.pace.per_second,
                "failures": {str(candidate): reason for candidate, reason in outcome.failures.items()},
                "exhausted": outcome.exhausted,
                "elapsed_s": outcome.elapsed_s,
                "stored": stored,
            }
        )
        return
    measured = f"{len(outcome.results)} of {outcome.candidates} candidates measured"
    print(f"{space.gemm} on {space.spec.name}: {measured}, {outcome.here} of them now, in {outcome.elapsed_s:.1f} s")
    if outcome.here:
        pace, rate = outcome.pace, outcome.pace.per_second
        then = "" if rate is None else f"; from {pace.since_s:.1f} s on, {rate:.1f} a second"
        print(f"  The first was measured after {pace.first_s:.1f} s{then}.")
    share = "" if peer is None else f", {100 * peer.median_us / time.median_us:.1f} % of cuBLAS"
    print(f"  {time.median_us:.2f} us, {time.tflops(space.gemm):.1f} TFLOP/s{share}: {outcome.best.candidate}")
    own = outcome.times.get(str(today))
    if outcome.best.candidate == today:
        print("  It is what matmul chose already.")
    elif stored:
        print("  matmul uses it from now on." + ("" if own is None else f" Until now it took {own.median_us:.2f} us."))
    for reason, count in reasons_of(outcome.failures)[:5]:
        print(f"  {count} left out: {without_password(reason)}")
    if not outcome.exhausted:
        print("  The same command goes on where this one stopped.")
