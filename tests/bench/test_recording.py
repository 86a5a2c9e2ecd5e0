"""What scripts that measure share: rows are written as they come, and read again with the line of their run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import recording
from recording import Budget, Row, recorded, runs_in, where

ORIGIN: Row = {"device": "NVIDIA H200", "torch": "2", "command": "run", "commit": "c", "date": "2026-01-02T03:04:05Z"}


def test_rows_are_in_the_file_before_the_next_one_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rows.jsonl"

    def rows() -> Iterator[Row]:
        yield {"us": 1.5}
        assert runs_in(out) == [(ORIGIN, [{"us": 1.5}])]
        yield {"us": 2.5}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(recorded(ORIGIN, rows(), out))
    assert runs_in(out) == [(ORIGIN, [{"us": 1.5}, {"us": 2.5}])]


def test_each_run_of_a_record_has_its_own_rows(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    list(recorded(ORIGIN, [{"us": 1}], one))
    list(recorded({**ORIGIN, "device": "NVIDIA A100"}, [{"us": 2}, {"us": 3}], two))
    both = tmp_path / "both"
    both.write_text(one.read_text() + two.read_text())
    assert [(origin["device"], len(rows)) for origin, rows in runs_in(both)] == [("NVIDIA H200", 1), ("NVIDIA A100", 2)]


def test_where_rows_come_from_is_told() -> None:
    assert where(ORIGIN) == "Recorded on NVIDIA H200, torch 2, 2026-01-02: `run`."
    assert where({name: told for name, told in ORIGIN.items() if name != "torch"}) == (
        "Recorded on NVIDIA H200, 2026-01-02: `run`."
    )


def test_nothing_is_begun_after_the_budget(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(recording.time, "monotonic", lambda: now)
    budget = Budget(10)
    assert budget.allows("first") and budget.left == 10
    now = 110.0
    assert not budget.allows("second")
    assert capsys.readouterr().err == "second: left out\n"
