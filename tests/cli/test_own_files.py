"""A schedule of the user's own, wherever a command takes a rung; `new` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_runs import Cli

from tilewright.cli.compare import pairs
from tilewright.cli.new import TEMPLATES
from tilewright.report.own_schedules import names_in


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", TEMPLATES)
def test_a_new_file_works_at_an_awkward_size(cli: Cli, folder: Path, target: str) -> None:
    assert cli("new", "mine", "--for", target).code == 0
    done = cli("simulate", "mine.py", "--size", "129x136x72", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["ok"]
    assert "FILE" not in (folder / "mine.py").read_text().replace("FILE.py", "")


def test_a_new_file_never_replaces_one(cli: Cli, folder: Path) -> None:
    (folder / "mine.py").write_text("kept = 1\n")
    done = cli("new", "mine")
    assert done.code == 1
    assert "'mine.py' exists." in done.err
    assert (folder / "mine.py").read_text() == "kept = 1\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("new", "9lives"), "'9lives' is not a name for a Python module."),
        (("new", "mine", "--for", "sm_70"), "'sm_70'"),
        (("show", "none.py"), "There is no file 'none.py'."),
    ],
)
def test_what_cannot_be_is_told(cli: Cli, folder: Path, words: tuple[str, ...], said: str) -> None:
    done = cli(*words)
    assert done.code == 1
    assert said in done.err


def test_a_function_that_fails_is_told_with_its_line(cli: Cli, folder: Path) -> None:
    own = "import tilewright as tw\ndef own(gemm: tw.Gemm) -> tw.Schedule:\n    return tw.Shedule()\n"
    (folder / "mine.py").write_text(own)
    assert cli("show", "mine.py").err == (
        "own() failed: AttributeError: module 'tilewright' has no attribute 'Shedule' (did you mean 'Schedule'?).\n"
        "  line 3: return tw.Shedule()\n"
    )


TWO = """
import tilewright as tw
from tilewright import Level

gemm = tw.Gemm(48, 40, 24, beta=0.5)
loops = (
    tw.Split("m", 16, into=("m_block", "m_thread")), tw.Split("n", 16, into=("n_block", "n_thread")),
    tw.Reorder("m_block", "n_block", "m_thread", "n_thread", "k"),
    tw.Bind("m_block", Level.GRID_Y), tw.Bind("n_block", Level.GRID_X),
)
rows = tw.Schedule(*loops, tw.Bind("m_thread", Level.BLOCK_Y), tw.Bind("n_thread", Level.BLOCK_X),
                   tw.Accumulate(over="k"), tw.Epilogue())


def columns(gemm: tw.Gemm) -> tw.Schedule:
    "Neighbouring threads in neighbouring rows."
    return tw.Schedule(*loops, tw.Bind("m_thread", Level.BLOCK_X), tw.Bind("n_thread", Level.BLOCK_Y),
                       tw.Accumulate(over="k"), tw.Epilogue())
"""


@pytest.fixture
def two(folder: Path) -> Path:
    path = folder / "two.py"
    path.write_text(TWO)
    return path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two", "There is no rung 'two'.\n  Hint: there is a file 'two.py': write two.py.\n"),
        ("two:wide", "Hint: there is a file 'two.py': write two.py:wide.\n"),
        ("two.py:", "Hint: there is a file 'two.py': write two.py.\n"),
        ("two.py:none", "There is no schedule of two.py called 'none'.\n  Hint: Known: "),
    ],
)
@pytest.mark.parametrize("command", ["show", "ladder", "simulate"])
def test_a_file_that_is_named_wrongly_is_recognised(cli: Cli, two: Path, command: str, name: str, said: str) -> None:
    assert said in cli(command, name).err.replace("no ladder", "no rung")


def test_what_ends_the_process_ends_a_file_that_runs(folder: Path) -> None:
    (folder / "mine.py").write_text("class Ended(SystemExit): pass\nraise Ended(143)\n")
    with pytest.raises(SystemExit, match="143"):
        names_in(folder / "mine.py")


def test_a_file_with_several_schedules_asks_which(cli: Cli, two: Path) -> None:
    done = cli("show", "two.py")
    assert done.code == 1
    assert "'two.py' has 2 schedules: rows, columns." in done.err
    assert "say which: two.py:rows" in done.err
    wrong = cli("show", "two.py:row")
    assert wrong.code == 1
    assert "rows" in wrong.err


@pytest.mark.parametrize("command", ["show", "explain", "simulate"])
def test_a_command_takes_a_schedule_of_a_file_at_its_own_size(cli: Cli, two: Path, command: str) -> None:
    done = cli(command, "two.py:columns", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["rung"] == "two/columns"
    if command != "show":
        assert (told["m"], told["n"], told["k"]) == (48, 40, 24)


def test_a_ladder_is_made_of_the_schedules_of_a_file(cli: Cli, two: Path) -> None:
    done = cli("ladder", "two.py", "--size", "48", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert [row["rung"] for row in rows] == ["two/rows", "two/columns"]
    assert rows[1]["idea"] == "Neighbouring threads in neighbouring rows."


def test_two_kernels_are_compared(cli: Cli, two: Path) -> None:
    done = cli("compare", "two.py:rows", "two.py:columns", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["size"] == "48x40x24"
    assert "- Bind('m_thread', Level.BLOCK_Y)" in told["schedule"]
    counts = {line["what"]: (line["a"], line["b"]) for line in told["counts"]}
    assert counts["global load sectors"][0] < counts["global load sectors"][1]


def test_a_comparison_is_a_page_too(cli: Cli, two: Path, folder: Path) -> None:
    done = cli("compare", "two.py:rows", "worklog/1", "--page", "c.html", "--cuda")
    assert done.code == 0, done.err
    assert "@@" in done.out
    text = (folder / "c.html").read_text()
    assert "two/rows" in text and "worklog/1 naive" in text and "__global__" in text
    assert "http" not in text  # it loads nothing


def test_lines_are_laid_side_by_side() -> None:
    found = pairs("a\nb\nc", "a\nc\nd")
    assert [(pair.kind, pair.a_number, pair.b_number) for pair in found] == [
        ("same", 1, 1),
        ("only-a", 2, None),
        ("same", 3, 2),
        ("only-b", None, 3),
    ]


TUNED = """
from typing import Literal

import tilewright as tw
from tilewright import Level

gemm = tw.Gemm(64, 64, 24)


def tuned(gemm: tw.Gemm, rows: Literal[8, 16, 5000] = 8, columns: Literal[32] = 32) -> tw.Schedule:
    return tw.Schedule(
        tw.Split("m", rows, into=("m_block", "m_thread")),
        tw.Split("n", columns, into=("n_block", "n_thread")),
        tw.Reorder("m_block", "n_block", "m_thread", "n_thread"),
        tw.Bind("m_block", Level.GRID_Y), tw.Bind("n_block", Level.GRID_X),
        tw.Fuse("m_thread", "n_thread", into="thread"), tw.Bind("thread", Level.BLOCK_X),
        tw.Accumulate("k"), tw.Epilogue(),
    )


def fixed(gemm: tw.Gemm) -> tw.Schedule:
    return tuned(gemm)
"""


def test_parameters_of_a_schedule_are_predicted_at_every_point(cli: Cli, folder: Path) -> None:
    (folder / "mine.py").write_text(TUNED)
    found = cli("search", "mine.py:tuned", "--list", "--json").json
    times = [one["predicted_us"] for one in found["points"]]
    assert times == sorted(times)
    assert {(one["point"]["rows"], one["point"]["columns"]) for one in found["points"]} == {(8, 32), (16, 32)}
    (reason,) = found["refused"]
    assert "threads" in reason
    ran = cli("search", "mine.py:tuned", "--list", "--device", "a100")
    assert "mine/tuned, 64x64x24 f32 NN on A100 SXM 80 GB: 3 of 3 points. Predicted, not measured:" in ran.out
    assert "  1 refused: " in ran.out


def test_a_schedule_without_parameters_says_how_to_have_some(cli: Cli, folder: Path) -> None:
    (folder / "mine.py").write_text(TUNED)
    ran = cli("search", "mine.py:fixed")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "mine/fixed has no parameters to search.\n"
        "  Hint: name the values of some: def fixed(gemm: tw.Gemm, depth: Literal[8, 16] = 8) -> tw.Schedule.\n"
    )


@pytest.mark.parametrize("name", ["mine.py", "mine.py:tuned", "worklog/6"])
def test_tune_of_a_schedule_names_the_command_that_is_meant(cli: Cli, name: str) -> None:
    ran = cli("tune", name)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"{name!r} is a schedule: tune searches the library's kernels for one problem, M N K.\n")
    assert f"`tilewright search {name}`" in ran.err
