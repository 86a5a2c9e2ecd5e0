"""Searches by formula: what is found, what is left out, the budget, and going on after a kill."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from threading import Timer
from time import sleep
from typing import Any

import pytest
from tuning_fakes import BEST, CANDIDATES, Compilers, Measurer, a_search, a_study, url_of

from tilewright.errors import TilewrightError
from tilewright.kernels.simt import SimtConfig
from tilewright.problem.gemm import Gemm
from tilewright.tuner.measure import GpuLost, GpuMeasurer, Measured
from tilewright.tuner.session import measured_until
from tilewright.tuner.study import TuningStudy
from tilewright.tuner.tune import Early, Tuning
from tilewright.winners.plan_config import PlanConfig

HERE = Path(__file__).parent


def test_with_time_enough_everything_is_measured_once_and_the_fastest_wins(tmp_path: Path) -> None:
    measurer = Measurer()
    outcome = a_search(tmp_path, measurer).run()
    assert outcome.exhausted
    assert outcome.best.candidate == BEST
    assert sorted(measurer.log, key=str) == sorted(CANDIDATES, key=str)


def test_less_than_half_of_the_bowl_is_enough_to_find_its_ground(tmp_path: Path) -> None:
    outcome = a_search(tmp_path, Measurer(), seconds=len(CANDIDATES) / 3 * 0.1 + 1.7).run()
    assert not outcome.exhausted
    assert outcome.here <= len(CANDIDATES) // 2
    assert outcome.time.median_us <= 1.03 * 100.0


def test_a_candidate_that_does_not_compile_is_reported_and_never_chosen(tmp_path: Path) -> None:
    outcome = a_search(tmp_path, Measurer(), Compilers({BEST: "error: too many registers"})).run()
    assert outcome.failures == {BEST: "error: too many registers"}
    assert outcome.best.candidate != BEST


def test_a_wrong_result_is_reported_and_never_chosen(tmp_path: Path) -> None:
    outcome = a_search(tmp_path, Measurer(fails={BEST: TilewrightError("wrong result: 3 elements")})).run()
    assert outcome.failures == {BEST: "wrong result: 3 elements"}
    assert str(BEST) not in outcome.times


def test_the_budget_is_kept_finalists_included(tmp_path: Path) -> None:
    measurer = Measurer()
    outcome = a_search(tmp_path, measurer, seconds=3.0).run()
    assert 2.0 < outcome.elapsed_s <= 3.0
    assert 0 < outcome.here < len(CANDIDATES)


def test_what_was_measured_early_is_told_and_not_measured_again(tmp_path: Path) -> None:
    """The first time: a study that knows it, or a space without it, has no use for it."""
    stranger = PlanConfig(SimtConfig(stages=9))
    early = [Early(one, one, Measured(50.0, 32, 0.0, "kernel", "order"), 0.25) for one in (BEST, stranger)]
    for here in (len(CANDIDATES), 0):
        measurer = Measurer()
        outcome = a_search(tmp_path, measurer, early=early).run()
        assert BEST not in measurer.log and outcome.exhausted and outcome.here == here
        assert outcome.best.candidate == BEST and outcome.best.measured.median_us == 50.0
        assert len(outcome.results) == len(CANDIDATES)
        if here:
            assert outcome.pace.first_s == pytest.approx(0.1) and outcome.pace.last_s > 1


def test_a_search_whose_time_is_up_behind_what_was_measured_early_has_not_met_the_others(tmp_path: Path) -> None:
    early = Early(BEST, BEST, Measured(50.0, 32, 0.0, "kernel", "order"), 0.25)
    measurer = Measurer()
    study = a_study(tmp_path, (BEST,))
    outcome = Tuning(study, Compilers(), measurer, seconds=1.0, now=measurer.clock, early=[early]).run()
    assert not outcome.exhausted and not measurer.log
    assert [result.candidate for result in outcome.results] == [BEST]


def test_what_was_measured_early_is_a_result_though_the_search_begins_too_late(tmp_path: Path) -> None:
    """An import may take longer than a small budget twice over."""
    early = Early(BEST, BEST, Measured(50.0, 32, 0.0, "kernel", "order"), 0.25)
    measurer = Measurer()
    study = a_study(tmp_path)
    outcome = Tuning(study, Compilers(), measurer, seconds=1.0, started=-9.0, now=measurer.clock, early=[early]).run()
    assert (outcome.here, outcome.best.candidate) == (1, BEST)


def test_the_pace_of_a_search_is_that_of_its_measurements(tmp_path: Path) -> None:
    """Each takes 0.1 s; the finalists at the end do not count."""
    pace = a_search(tmp_path, Measurer()).run().pace
    assert pace.measured == len(CANDIDATES)
    assert pace.first_s == pytest.approx(0.1) and pace.per_second == pytest.approx(10.0)
    assert a_search(tmp_path / "one", Measurer(), seconds=0.1).run().pace.per_second is None


def test_the_next_search_goes_on_where_the_budget_ended(tmp_path: Path) -> None:
    first, second = Measurer(), Measurer()
    a_search(tmp_path, first, seconds=4.0).run()
    outcome = a_search(tmp_path, second).run()
    assert not set(first.log) & set(second.log)
    assert outcome.exhausted
    assert outcome.here == len(second.log) == len(CANDIDATES) - len(first.log)


def test_a_search_does_not_end_before_one_candidate_is_measured(tmp_path: Path) -> None:
    outcome = a_search(tmp_path, Measurer(), seconds=0.1).run()
    assert (outcome.here, len(outcome.results)) == (1, 1)


def test_where_no_candidate_is_compiled_in_twice_the_budget_an_error_says_so(tmp_path: Path) -> None:
    class Never(Compilers):
        def submit(self, candidate: PlanConfig) -> Future[PlanConfig]:
            return Future()

    ticks = count()
    with pytest.raises(TilewrightError, match="Nothing was measured in") as refusal:
        a_search(tmp_path, Measurer(), Never(), seconds=3.0, now=lambda: next(ticks) * 0.5).run()
    assert "--budget" in str(refusal.value)


def test_what_is_ready_is_measured_before_more_is_claimed(tmp_path: Path) -> None:
    """However many candidates the compilers like to have in work."""
    claimed: list[int] = []

    class Counted(Measurer):
        def measure(self, prepared: PlanConfig) -> Measured:
            claimed.append(len(search.study.refresh()))
            return super().measure(prepared)

    search = a_search(tmp_path, Counted(), Compilers(ahead=40))
    search.run()
    assert claimed[:3] == [1, 2, 3]


def test_a_claim_writes_the_name_of_its_candidate_and_no_parameters(tmp_path: Path) -> None:
    """Each would be a row of its own, and a database takes milliseconds for the lot."""
    study = a_study(tmp_path)
    assert study.claim() is not None
    (trial,) = study.refresh()
    assert trial.params == {} and trial.user_attrs["candidate"] == CANDIDATES[0].key


def test_where_every_candidate_fails_the_reasons_are_told(tmp_path: Path) -> None:
    broken = Compilers(dict.fromkeys(CANDIDATES, "error: no"))
    with pytest.raises(TilewrightError, match="30 of 30 candidates failed") as refusal:
        a_search(tmp_path, Measurer(), broken).run()
    assert refusal.value.place == "30 x error: no"


def test_an_earlier_winner_is_timed_with_the_finalists(tmp_path: Path) -> None:
    worst = CANDIDATES[0]
    outcome = a_search(tmp_path, Measurer(), rivals=(worst,)).run()
    assert str(worst) in outcome.times


def test_a_candidate_that_takes_the_gpu_down_ends_the_search_and_is_not_tried_again(tmp_path: Path) -> None:
    first, second = Measurer(fails={CANDIDATES[1]: GpuLost("the GPU is gone")}), Measurer()
    with pytest.raises(GpuLost):
        a_search(tmp_path, first).run()
    outcome = a_search(tmp_path, second).run()
    assert outcome.failures == {CANDIDATES[1]: "the GPU is gone"}
    assert not set(first.log) & set(second.log)


def known(folder: Path) -> TuningStudy:
    """The study as the next process finds it."""
    study = a_study(folder)
    study.refresh()
    return study


def worker(
    folder: Path, log: Path, seconds_each: float, url: str | None = None, other: Path | None = None
) -> subprocess.Popen[str]:
    """Another process that searches the bowl. other: the log of a process that has to measure something as well."""
    command = [sys.executable, HERE / "tuning_worker.py", url or url_of(folder), str(log), str(seconds_each)]
    command += [] if other is None else [str(other)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def test_after_kill_9_the_search_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed = worker(tmp_path, log, 0.05)
    while len(lines(log)) < 10 and killed.poll() is None:
        sleep(0.02)
    killed.kill()
    killed.communicate()
    kept = {result.candidate.key for result in known(tmp_path).results()}
    before = lines(log)
    assert len(kept) >= 9
    assert set(before) - kept <= {before[-1]}  # at most the one that was on its way to the disk

    measurer = Measurer()
    outcome = a_search(tmp_path, measurer).run()
    assert not {candidate.key for candidate in measurer.log} & kept
    assert outcome.exhausted
    assert len(outcome.results) == len(CANDIDATES)


def test_two_processes_share_a_study_and_no_candidate_is_measured_by_both(tmp_path: Path) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    both = [worker(tmp_path, log, 0.01, other=other) for log, other in zip(logs, reversed(logs), strict=True)]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    measured = [key for log in logs for key in lines(log)]
    assert sorted(measured) == sorted(candidate.key for candidate in CANDIDATES)
    assert all(lines(log) for log in logs)


def test_claims_of_one_process_are_never_given_twice(tmp_path: Path) -> None:
    studies = [a_study(tmp_path), a_study(tmp_path)]
    claims = [study.claim() for _ in range(50) for study in studies]
    taken = [claim.candidate for claim in claims if claim is not None]
    assert len(taken) == len(set(taken)) == len(CANDIDATES)


def test_a_candidate_in_whose_measurement_two_processes_died_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(suspect: PlanConfig) -> None:
        study = a_study(tmp_path, seeds=(suspect,))
        claim = study.claim()
        assert claim is not None and claim.candidate == suspect
        study.started(claim)
        monkeypatch.setattr("tilewright.tuner.claims._PROCESS", secrets.token_hex(4))  # the next process
        assert a_study(tmp_path).free_the_dead() == 1

    dies(BEST)
    assert known(tmp_path).failures() == {}
    dies(BEST)
    assert known(tmp_path).failures() == {BEST: "the process that measured it died, twice"}


class _Builds(Compilers):
    """Compilers that keep what was handed back. late: candidates that are never compiled."""

    def __init__(self, late: tuple[PlanConfig, ...], **options: Any) -> None:
        super().__init__(**options)
        self.late, self.kept = late, list[PlanConfig]()

    def submit(self, candidate: PlanConfig) -> Future[PlanConfig]:
        return Future() if candidate in self.late else super().submit(candidate)

    def begin(self, candidates: list[PlanConfig], begun: Future[PlanConfig]) -> None:
        assert not begun.cancelled()
        self.kept += candidates


def test_candidates_are_measured_until_a_study_is_open() -> None:
    """Those that are compiled first come first; one that fails is left to the search, as are all that are left."""
    opened: Future[Any] = Future()
    slow, bad, wrong, *good = CANDIDATES[:7]

    class Until(Measurer):
        def measure(self, prepared: PlanConfig) -> Measured:
            if len(self.log) == 3:
                opened.set_result(None)
            return super().measure(prepared)

    builds: Any = _Builds((slow,), fails={bad: "no kernel"})
    measurer: Any = Until(fails={wrong: TilewrightError("wrong result")})
    found = measured_until(opened, builds, measurer, CANDIDATES[:7], now=measurer.clock)
    assert [one.candidate for one in found] == good[:3]
    assert [one.at_s for one in found] == pytest.approx([0.2, 0.3, 0.4])
    assert measurer.log == [wrong, *good[:3]] and builds.kept == [slow, good[3]]
    measured_until(opened, builds, measurer, [slow, bad], spare=[slow, bad])  # what is compiled is kept in any case
    assert builds.kept == [slow, good[3], bad]


def test_beside_imports_threads_are_switched_sooner() -> None:
    gpu: Any = None
    before = sys.getswitchinterval()
    with GpuMeasurer(gpu, Gemm(8, 8, 8)).beside_imports():
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before


def test_a_study_is_told_who_left_the_gpu_unusable_before_it_was_open(tmp_path: Path) -> None:
    opened: Future[Any] = Future()
    Timer(0.1, lambda: opened.set_result(a_study(tmp_path))).start()
    measurer: Any = Measurer(fails={BEST: GpuLost("it is gone")})
    builds: Any = _Builds(())
    with pytest.raises(GpuLost, match="it is gone"):
        measured_until(opened, builds, measurer, [BEST])
    assert opened.result().failures() == {BEST: "it is gone"}
