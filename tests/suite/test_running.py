"""The run over a suite: its order, its budget, what it records, and how it goes on after a stop."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from suite_fakes import ORIGIN, FakeBench

from tilewright.bench import records
from tilewright.suite.problems import Problem, problems
from tilewright.suite.running import COMPILED, CUBLAS, CUBLASLT, PEERS, Plan, peers_us, run, shares

A, B = Problem(64, 64, 64, "f32"), Problem(128, 128, 128, "bf16", "NT")


def test_problems_are_measured_without_torch_compile_first() -> None:
    bench = FakeBench()
    list(run(Plan((A, B)), bench))
    quick = (CUBLAS, CUBLASLT)
    assert bench.measured == [(A, quick), (B, quick), (A, PEERS), (B, PEERS)]


def test_a_row_is_recorded_as_soon_as_it_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    bench = FakeBench(stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        list(run(Plan((A, B), record=path), bench))
    (row,) = records.read(path)
    assert (row.m, row.dtype, row.orders) == (64, "f32", "NN")
    assert shares(row) == {CUBLAS: 2.0, CUBLASLT: 2.0}
    assert peers_us(row)[CUBLAS] == row.cublas_us == 2.0


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    plan = Plan((A, B), record=tmp_path / "rows.jsonl")
    with pytest.raises(KeyboardInterrupt):
        list(run(plan, FakeBench(stop_after=3), commit=ORIGIN.commit))
    again = FakeBench()
    list(run(plan, again, commit=ORIGIN.commit))
    assert again.measured == [(B, PEERS)]


def test_another_commit_begins_anew(tmp_path: Path) -> None:
    plan = Plan((A,), (CUBLAS,), tmp_path / "rows.jsonl")
    list(run(plan, FakeBench(), commit=ORIGIN.commit))
    again = FakeBench()
    list(run(plan, again, commit="fffffff"))
    assert again.measured == [(A, (CUBLAS,))]


def test_a_row_with_more_peers_stands_for_one_with_fewer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    list(run(Plan((A,), record=path), FakeBench(), commit=ORIGIN.commit))
    again = FakeBench()
    list(run(Plan((A,), (CUBLASLT,), path), again, commit=ORIGIN.commit))
    assert again.measured == []


def test_nothing_is_begun_after_the_budget_and_what_is_left_is_told() -> None:
    ticks = count(0, 10)
    rows = list(run(Plan((A, B), budget_s=25), FakeBench(), clock=lambda: next(ticks)))
    assert [row.made is not None for row in rows] == [True, True, False]
    assert (rows[-1].failure, rows[-1].left) == ("the budget is spent", 2)


def test_a_wrong_result_is_told_and_the_rest_goes_on() -> None:
    rows = list(run(Plan((A, B), (CUBLAS,)), FakeBench(wrong=[A])))
    assert rows[0].made is None and "wrong for 64x64x64" in rows[0].failure
    assert rows[1].made is not None


def test_only_torch_compile_is_one_turn() -> None:
    assert Plan((A,), (COMPILED,)).turns == ((A, (COMPILED,)),)


def test_the_suite_has_every_shape_in_every_format_and_order() -> None:
    assert len(problems()) == 15 * 3 * 3
