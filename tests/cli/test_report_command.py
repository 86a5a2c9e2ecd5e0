"""`tilewright report`: what it writes, and what it refuses before the work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from command_runs import Cli

from tilewright.bench import records
from tilewright.prediction.advice import advise


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what `tests/report` asks for: products by pieces, edits that were tried."""
    monkeypatch.setattr("tilewright.report.page.ladder.pieces_rows", lambda spec: ())
    monkeypatch.setattr("tilewright.report.outlook.advise", partial(advise, seconds=0.0))


def test_it_writes_one_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    ran = cli("report", "worklog", "--rungs", "2", "--size", "64", "--output", path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(str(path)) and "MB" in ran.out
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [one.name for one in path.parent.iterdir()] == ["page.html"]


def test_a_kernel_that_cannot_be_built_keeps_its_place(cli: Cli, tmp_path: Path) -> None:
    ran = cli("report", "hopper", "--rungs", "2", "--size", "100", "--output", tmp_path / "page.html")
    assert ran.code == 0 and ran.err.startswith("hopper/2 has no counts. ") and "200 bytes apart" in ran.err
    assert "its rows are 200 bytes apart" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_open_without_a_browser_says_what_to_open(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    path = tmp_path / "page.html"
    ran = cli("report", "worklog", "--rungs", "1", "--size", "32", "--output", path, "--open")
    assert ran.code == 0
    assert f"No browser was found: open {path} yourself." in ran.err


def test_open_shows_the_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(shown.append(address)) or True)
    ran = cli("report", "worklog", "--rungs", "1", "--size", "32", "--output", tmp_path / "page.html", "--open")
    assert (ran.code, ran.err) == (0, "")
    assert shown == [(tmp_path / "page.html").as_uri()]


def test_help_names_the_ladders(cli: Cli) -> None:
    assert "worklog, hierarchy, swizzle" in " ".join(cli("report", "--help").out.replace("│", " ").split())


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_an_unknown_ladder_or_device_is_answered_with_the_nearest(cli: Cli) -> None:
    ran = cli("report", "hoper")
    assert ran.code == 1 and "did you mean 'hopper'?" in ran.err
    ran = cli("report", "worklog", "--device", "RTX 3080")
    assert ran.code == 1 and "did you mean 'RTX 3090'?" in ran.err


def test_a_place_that_cannot_be_written_is_refused_before_the_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = cli("report", "worklog", "--output", tmp_path / "file" / "page.html")
    assert ran.code == 1 and "is not a folder" in ran.err
    for folder in (tmp_path, "/"):
        ran = cli("report", "worklog", "--output", folder)
        assert ran.code == 1 and "it is a folder" in ran.err


def test_a_folder_that_takes_no_file_is_refused_before_the_work(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tilewright.cli.page_files.tempfile.TemporaryFile", refused)
    ran = cli("report", "worklog", "--output", tmp_path / "page.html")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"Cannot write {str(tmp_path / 'page.html')!r}: {str(tmp_path)!r} takes no file (Permission denied).\n"
        "  Hint: name a file elsewhere.\n"
    )


def test_a_missing_extra_is_named_with_its_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.extras.available", lambda package: package != "plotly")
    ran = cli("report", "worklog")
    assert ran.code == 1
    assert ran.err == (
        "The report page needs the package 'plotly', which is not installed.\n"
        "  Hint: python -m pip install 'tilewright[report]'\n"
    )


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("ladder_worklog.jsonl", '{"rung": "worklog/1", "format": 99}', "is not a record: format 99, not 1."),
        ("ladder_worklog.jsonl", '{"rung": "worklog/1", ', "is not a record: Expecting"),
        ("ladder_worklog.jsonl", "[1, 2]", "is not a record:"),
        ("ladder_worklog.jsonl", '{"format": 1, "tflops": 1e999}', "is not a record: 1e999 is not a finite number."),
        ("ladder_worklog.jsonl", '{"format": 1, "tflops": NaN}', "is not a record: NaN is not a finite number."),
        ("ladder_worklog.jsonl", "[" * 100_000, "is not a record: it is nested more than 100 deep."),
        ("ladder_worklog.jsonl", "\0\xff", "is not a record:"),
        ("suite.jsonl", '{"candidate": "x", "burst": {}, "shape": [1, 1, 1]}', "is not a record of a suite: it lacks"),
        ("suite.jsonl", '{"candidate": "x", "burst"', "is not a record of a suite: Expecting"),
        ("suite.jsonl", '{"candidate": "x", "burst": 7, "shape": 3}', "is not a record of a suite: cannot unpack"),
    ],
)
def test_damaged_records_and_those_of_another_version_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str, said: str
) -> None:
    (tmp_path / name).write_bytes(line.encode("latin-1") + b"\n")
    monkeypatch.setattr(records, "recorded_folder", lambda: tmp_path)
    records.recorded.cache_clear()
    ran = cli("report", "worklog", "--rungs", "1", "--size", "32", "--output", tmp_path / "page.html")
    records.recorded.cache_clear()
    assert ran.code == 1
    assert ran.err.startswith(f"Line 1 of {name} {said}")
    assert not (tmp_path / "page.html").exists()
