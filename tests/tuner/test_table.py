"""Many problems in one budget: their order, what is kept, going on after a stop, and what fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuning_fakes import Clock

from tilewright.bench.protocol import Timing
from tilewright.device.catalog import device
from tilewright.errors import TilewrightError
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.problem.tolerance import Verdict
from tilewright.suite.problems import Problem, problems
from tilewright.tuner.measure import GpuLost
from tilewright.tuner.sample import RepeatedOperands, sample_of
from tilewright.tuner.short_lists import short_list
from tilewright.tuner.space import Candidate
from tilewright.tuner.table import PEER, Ready, Row, Table, Task, Timed
from tilewright.tuner.tune import Named
from tilewright.winners.database import Database
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
SURE, FEW = Problem(8192, 8192, 64, "bf16"), Problem(64, 64, 64, "bf16")


def ours(a: int) -> PlanConfig:
    """A plan by its number."""
    return PlanConfig(SimtConfig(raster_rows=a))


TODAY = ours(0)


def today(problem: Problem) -> PlanConfig:
    return TODAY


@dataclass
class Lists:
    """Short lists of two new plans each, ready at once. fails: what is raised for a problem, one after another."""

    fails: dict[Problem, list[Exception]] = field(default_factory=dict)
    asked: list[Task] = field(default_factory=list)

    def submit(self, task: Task) -> Future[Ready]:
        self.asked.append(task)
        future: Future[Ready] = Future()
        if self.fails.get(task.problem):
            future.set_exception(self.fails[task.problem].pop(0))
            return future
        plans = [task.best or task.today, *(ours(2 * task.number + i) for i in (1, 2))]
        future.set_result(Ready({str(one): Named(one, "order", "kernel") for one in plans}, {"bad": "error: no"}))
        return future


@dataclass
class Measurer:
    """A plan takes 10 us, less its number times a gain; and a second to measure."""

    clock: Clock = field(default_factory=Clock)
    gain_us: float = 1.0
    fails: Mapping[Problem, Exception] = field(default_factory=dict)
    wrong: frozenset[str] = frozenset()
    log: list[Problem] = field(default_factory=list)

    def ahead(self, problem: Problem) -> None:
        pass

    def measure(self, problem: Problem, ready: Ready) -> Timed:
        self.clock.seconds += 1.0
        self.log.append(problem)
        if problem in self.fails:
            raise self.fails[problem]
        right = {name: one for name, one in ready.prepared.items() if name not in self.wrong}
        times = {name: 10.0 - self.gain_us * one.candidate.kernel.raster_rows for name, one in right.items()}
        failures = dict.fromkeys(self.wrong & set(ready.prepared), "wrong result: 3 elements")
        return Timed({name: Timing(t, t, t, 1, 1) for name, t in {**times, PEER: 16.0}.items()}, failures)


def a_table(folder: Path, *asked: Problem, **options: Any) -> Table:
    database = Database(folder / "winners.sqlite", shipped=())
    return Table(asked or (SURE, FEW), H200, database, folder / "record.jsonl", today=today, **options)


def rows(table: Table, measurer: Measurer, lists: Lists | None = None, seconds: float = 100.0) -> list[Row]:
    return list(table.run(lists or Lists(), measurer, seconds=seconds, now=measurer.clock))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "record.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_fastest_plan_of_each_problem_is_kept_with_its_share_of_cublas(tmp_path: Path) -> None:
    table = a_table(tmp_path, passes=1)
    assert [(row.best, row.median_us, row.share_of_cublas) for row in rows(table, Measurer())] == 2 * [
        (str(ours(2)), 8.0, 2.0)
    ]
    winners = table.database.winners()
    assert {(winner.key.problem.m, winner.config) for winner in winners} == {
        (64, ours(2)),
        (8192, ours(2)),
    }
    assert table.left == 0


@pytest.mark.parametrize(("gain_us", "best"), [(0.02, str(ours(0))), (0.1, str(ours(2)))])
def test_what_runs_today_stays_where_nothing_is_clearly_faster(tmp_path: Path, gain_us: float, best: str) -> None:
    """0.4 % and 2 % ahead."""
    (row,) = rows(a_table(tmp_path, FEW, passes=1), Measurer(gain_us=gain_us))
    assert row.best == best


def test_problems_whose_plan_is_the_least_sure_come_first() -> None:
    def chosen(problem: Problem) -> PlanConfig:
        return PlanConfig(GemvConfig(split_k=4)) if problem.m == 16 else TODAY

    table = Table(problems(), H200, Database(Path("none"), shipped=()), Path("no record"), today=chosen)
    sizes = [(one.m, one.n, one.k) for one in table.problems]
    assert sizes[0] == (256, 256, 256)
    assert sizes.index((16, 8192, 8192)) < sizes.index((2048, 2048, 2048)) < sizes.index((8192, 8192, 8192))
    assert table.problems[0].orders == "NN"


def test_with_time_left_the_next_best_plans_are_timed_beside_the_winner(tmp_path: Path) -> None:
    lists = Lists()
    table = a_table(tmp_path, FEW)
    assert [row.best for row in rows(table, Measurer(), lists)] == [str(ours(2)), str(ours(4))]
    first, second = lists.asked
    assert (first.best, first.known) == (None, frozenset())
    assert second.best == ours(2)
    assert second.known == {ours(a) for a in range(3)}


def test_the_budget_is_kept(tmp_path: Path) -> None:
    measurer = Measurer()
    table = a_table(tmp_path, *problems(formats=("bf16",), orders=("NN",)))
    assert len(rows(table, measurer, seconds=5.0)) == 5
    assert measurer.clock.seconds <= 5.0
    assert table.left == 10


def test_a_run_that_was_stopped_goes_on_with_the_next_problem(tmp_path: Path) -> None:
    first, second = Measurer(), Measurer()
    rows(a_table(tmp_path, passes=1), first, seconds=1.0)
    with (tmp_path / "record.jsonl").open("a") as file:
        file.write('{"format": 1, "probl')  # the kill came in the middle of a line
    rows(a_table(tmp_path, passes=1), second)
    assert (first.log, second.log) == ([FEW], [SURE])
    assert a_table(tmp_path).left == 0


def test_another_device_begins_anew(tmp_path: Path) -> None:
    rows(a_table(tmp_path, FEW, passes=1), Measurer())
    database = Database(tmp_path / "winners.sqlite", shipped=())
    other = Table((FEW,), device("A100"), database, tmp_path / "record.jsonl", today=today)
    assert other.left == 1


def test_a_wrong_result_is_recorded_and_never_chosen(tmp_path: Path) -> None:
    (row,) = rows(a_table(tmp_path, FEW, passes=1), Measurer(wrong=frozenset((str(ours(2)),))))
    assert row.best == str(ours(1))
    assert lines(tmp_path)[-1]["failures"] == {"bad": "error: no", str(ours(2)): "wrong result: 3 elements"}


def test_where_every_plan_is_wrong_the_reason_is_told_and_nothing_stored(tmp_path: Path) -> None:
    table = a_table(tmp_path, FEW, passes=1)
    wrong = Measurer(wrong=frozenset(str(ours(a)) for a in range(3)))
    (row,) = rows(table, wrong)
    assert row.failure == "no plan gave a result: error: no; wrong result: 3 elements"
    assert table.database.winners() == []


def test_a_problem_that_takes_the_gpu_down_twice_is_left_alone(tmp_path: Path) -> None:
    dying = Measurer(fails={FEW: GpuLost("the GPU is gone")})
    for _ in range(2):
        with pytest.raises(GpuLost):
            rows(a_table(tmp_path, passes=1), dying)
    measurer = Measurer()
    rows(a_table(tmp_path, passes=1), measurer)
    assert measurer.log == [SURE]


def test_a_short_list_that_cannot_be_made_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    lists = Lists({FEW: [TilewrightError("no rung fits")]})
    told = rows(a_table(tmp_path, passes=1), Measurer(), lists)
    assert [(row.problem, row.failure) for row in told] == [(FEW, "no rung fits"), (SURE, "")]


def test_a_compiler_that_crashes_is_started_again(tmp_path: Path) -> None:
    lists = Lists({FEW: [BrokenProcessPool(), BrokenProcessPool()]})
    assert [row.failure for row in rows(a_table(tmp_path, passes=1), Measurer(), lists)] == ["", ""]
    lists = Lists({FEW: [BrokenProcessPool() for _ in range(3)]})
    told = rows(a_table(tmp_path / "again", passes=1), Measurer(), lists)
    assert told[0].failure == "the compiler crashed, 3 times"


def test_a_short_list_has_something_of_each_family_that_comes_near() -> None:
    looks = [
        *(Candidate(PlanConfig(WgmmaConfig((64, 64 * n, 64))), 10.0 + n) for n in range(1, 5)),
        Candidate(PlanConfig(GemvConfig()), 15.9),
        Candidate(PlanConfig(MmaConfig((128, 128, 32))), 17.1),
    ]
    found = short_list(looks, looks[0].config, 4)
    assert [one.kernel.kind for one in found] == ["wgmma", "gemv", "wgmma"]


def test_operands_made_of_repeated_numbers_check_as_others_do() -> None:
    gemm = Problem(64, 96, 128, "bf16", "TN").gemm
    sample = sample_of(RepeatedOperands(gemm))
    right = gemm.out.encode(sample.expected.astype(np.float32)).reshape(-1)
    good: Verdict = sample.verdict(right)
    right[7] = gemm.out.encode(np.full(1, 1000.0, np.float32))[0]
    assert good.ok and not sample.verdict(right).ok
