"""Files that are there whole, or as they were, whoever else writes into the folder."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import write_page

from tilewright.bench import records
from tilewright.cli import main as cli
from tilewright.errors import TilewrightError
from tilewright.files import MOST_NESTED, append_text, parse_json, read_text, replace_file
from tilewright.suite import drawing, sweep
from tilewright.tuner import fleet
from tilewright.winners.database import Database


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for content in ("one", b"two", lambda file: file.write(b"three")):
        replace_file(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"three"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_temporary_names_are_new_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    opened = Path.open

    def told(path: Path, mode: str) -> object:
        made.append(path.name)
        assert mode == "xb"
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", told)
    for _ in range(3):
        replace_file(tmp_path / "file", "text")
    assert len(set(made)) == 3


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda count: "guessed")
    (tmp_path / ".file.guessed.tmp").symlink_to(victim)
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "file", "text")
    assert victim.read_text() == "mine" and not (tmp_path / "file").exists()


def _schedules(folder: Path) -> Path:
    file = folder / "mine.py"
    file.write_text("import tilewright as tw\n\nmine = tw.Schedule()\n")
    return file


SOURCES = Path(__file__).parents[1] / "src" / "tilewright"
READERS: dict[str, Callable[[Path], object]] = {
    "records": records.read,
    "sweep": lambda path: list(sweep.read(path)),
    "layers": drawing.layers_of,
    "token counts": drawing.tokens_of,
    "listed problems": fleet.listed,
    "winners": lambda path: cli(["database", "import", str(path)]),
    "a page with a table": lambda path: write_page.main(["ladder:worklog", str(path), "--check"]),
    "schedules": lambda path: cli(["gate", str(path)]),
    "snapshot": lambda path: cli(["gate", str(_schedules(path.parent)), "--snapshot", str(path)]),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_who_writes_into_a_pipe(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    try:
        assert READERS[name](tmp_path / "pipe") == 1
    except TilewrightError as refused:
        assert "is not an ordinary file" in str(refused)
    else:
        assert "ordinary file" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["bench", "cli", "export", "report/gate", "suite", "tuner", "winners"])
def test_what_users_name_is_read_by_the_careful_reader(package: str) -> None:
    """`Path.read_text` waits for who writes into a pipe; files of the package itself are no pipes."""
    for module in (SOURCES / package).rglob("*.py"):
        careless = [line for line in module.read_text("utf-8").splitlines() if ".read_text(" in line]
        assert [line for line in careless if "files(" not in line] == [], module
    assert list((SOURCES / package).rglob("*.py"))


@pytest.mark.timeout(60)
def test_a_database_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    database = Database(tmp_path / "pipe", shipped=())
    assert database.winners() == []
    assert database.problem is not None and "not an ordinary file" in database.problem


@pytest.mark.timeout(60)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TilewrightError, match="is not an ordinary file"):
        read_text(tmp_path / "pipe")
    with pytest.raises(TilewrightError, match="is not an ordinary file"):
        append_text(tmp_path / "pipe", "more")
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": [1e999]}', "1e999 is not a finite number"),
        ("[-Infinity]", "-Infinity is not a finite number"),
        ("NaN", "NaN is not a finite number"),
        ("[" * 100_000, "it is nested more than 100 deep"),
        ('{"a": ' * 101 + "1" + "}" * 101, "it is nested more than 100 deep"),
        ("9" * 5000, "Exceeds the limit"),
        ("{", "Expecting property name"),
    ],
)
def test_what_no_reader_can_use_is_no_json(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_json(text)


@pytest.mark.parametrize("text", ["[" * MOST_NESTED + "]" * MOST_NESTED, json.dumps([[{}]] * 200), '{"a": 2.5}'])
def test_what_is_not_too_deep_is_read(text: str) -> None:
    assert json.dumps(parse_json(text)) == text
