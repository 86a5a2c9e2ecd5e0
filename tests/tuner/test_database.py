"""Winners kept, replaced, carried over; and every way in which their file can be of no use."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tuning_fakes import a_winner

from tilewright.errors import TilewrightError
from tilewright.winners.choice import Choice
from tilewright.winners.database import Database, DatabaseUnusable, Imported, shipped_winners
from tilewright.winners.winner import Winner
from tilewright.winners.winner_file import SCHEMA, Unavailable, WinnerFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "winners.sqlite"


def a_database(path: Path, **options: object) -> Database:
    return Database(path, **{"shipped": (), "wait_s": 0.2, **options})  # type: ignore[arg-type]


def test_a_winner_that_was_stored_is_found_by_another_process(path: Path) -> None:
    assert a_database(path).record(a_winner())
    code = (
        "from tilewright.winners.database import Database; from pathlib import Path;"
        f"print(Database(Path({str(path)!r}), shipped=()).winners()[0].to_json())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Winner.from_json(done.stdout) == a_winner()


def test_of_two_processes_that_tuned_one_problem_the_faster_winner_stays(path: Path) -> None:
    one, two = a_database(path), a_database(path)
    assert one.record(a_winner(median_us=90.0))
    assert not two.record(a_winner(median_us=95.0))
    assert two.record(a_winner(median_us=85.0))
    assert [winner.median_us for winner in one.winners()] == [85.0]


def test_a_winner_that_lost_beside_a_new_one_is_replaced_though_its_old_figure_was_better(path: Path) -> None:
    old, new = a_winner(median_us=90.0), a_winner(median_us=91.0)
    database = a_database(path)
    database.record(old)
    assert database.record(new, over=old)
    assert database.winners() == [new]


def test_each_reduction_order_has_a_winner_of_its_own(path: Path) -> None:
    database = a_database(path)
    fast, slow = a_winner(order="pairs", median_us=80.0), a_winner(order="ascending", median_us=90.0)
    database.record(fast)
    database.record(slow)
    assert database.winner(fast.key) == fast
    assert database.winner(fast.key, "ascending") == slow
    assert database.winner(fast.key, "other") is None


def test_the_users_own_winner_stands_before_a_shipped_one(path: Path) -> None:
    shipped, own = a_winner(median_us=80.0), a_winner(median_us=90.0)
    database = a_database(path, shipped=(shipped, a_winner(m=512)))
    database.record(own)
    assert [(w.key.problem.m, w.median_us) for w in database.winners()] == [(512, 100.0), (4096, 90.0)]
    assert list(database.export()) == [own.to_json() + "\n"]


def test_what_is_exported_can_be_imported(path: Path, tmp_path: Path) -> None:
    source = a_database(path)
    source.record(a_winner())
    source.record(a_winner(m=512))
    other = a_database(tmp_path / "other.sqlite")
    other.record(a_winner(m=512, median_us=50.0))
    assert other.import_(source.export()) == Imported(added=1, replaced=0, slower=1)
    assert {winner.median_us for winner in other.winners()} == {100.0, 50.0}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("no json", "it is no JSON"),
        ("{}", "it has no format"),
        (a_winner().to_json().replace('"format": 2', '"format": 9'), "from a newer tilewright"),
        (a_winner().to_json().replace("100.0", "-1.0"), "median_us is -1.0"),
        (a_winner().to_json().replace('"m": 4096', '"m": "4096"'), "m is '4096'"),
    ],
)
def test_of_a_file_with_a_line_that_is_no_winner_nothing_is_imported(path: Path, line: str, told: str) -> None:
    database = a_database(path)
    with pytest.raises(TilewrightError, match="Line 2 of the file cannot be imported") as refusal:
        database.import_([a_winner().to_json(), line])
    assert told in refusal.value.headline
    assert database.winners() == []


def test_pruning_removes_what_is_wanted_and_no_more(path: Path) -> None:
    database = a_database(path)
    database.record(a_winner())
    database.record(a_winner(m=512))
    assert database.prune(lambda winner: winner.key.problem.m == 512) == 1
    assert [winner.key.problem.m for winner in database.winners()] == [4096]


def test_the_shipped_table_can_be_read() -> None:
    assert all(isinstance(winner, Winner) for winner in shipped_winners())


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(path: Path) -> Iterator[Path]:
    """A database with a winner that another connection is writing."""
    a_database(path).record(a_winner())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        yield path


def test_a_locked_database_is_waited_for_then_done_without(locked: Path) -> None:
    database = a_database(locked, shipped=(a_winner(m=512),))
    assert [winner.key.problem.m for winner in database.winners()] == [512]
    assert database.complaints == (
        f"The database of winners {str(locked)!r} was not read: another process has locked it for more than 0.2 s.",
    )


def test_a_winner_that_a_locked_database_does_not_take_is_told(locked: Path) -> None:
    database = a_database(locked)
    assert not database.record(a_winner(median_us=1.0))
    assert "was not stored" in database.complaints[0]
    with pytest.raises(TilewrightError, match=r"Nothing was imported into .* another process has locked it"):
        database.import_([a_winner().to_json()])
    with pytest.raises(TilewrightError, match="Nothing was removed from"):
        database.prune(lambda winner: True)


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_moved_aside_once_and_a_new_one_begun(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    database, other = a_database(path), a_database(path)
    assert database.winners() == []
    assert database.record(a_winner())
    (text,) = database.complaints
    assert "was damaged" in text and "It was moved to 'winners.sqlite.damaged-" in text
    assert other.winners() == [a_winner()]
    assert other.complaints == ()
    (aside,) = path.parent.glob("*.damaged-*")
    assert aside.read_bytes() == content


def test_an_entry_that_cannot_be_read_damages_the_file(path: Path) -> None:
    a_database(path).record(a_winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update winners set line = 'x'")
    database = a_database(path)
    assert database.winners() == []
    assert "an entry cannot be read" in database.complaints[0]
    assert database.record(a_winner(m=512))


@pytest.mark.parametrize(
    "change",
    ["pragma user_version = 9", """update winners set line = replace(line, '"format": 2', '"format": 3')"""],
)
def test_a_file_from_a_newer_version_is_refused_and_left_alone(path: Path, change: str) -> None:
    a_database(path).record(a_winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    before = path.read_bytes()
    for use in (lambda d: d.winners(), lambda d: d.record(a_winner(median_us=1.0)), lambda d: d.prune(lambda w: True)):
        with pytest.raises(DatabaseUnusable, match="was written by a newer tilewright") as refusal:
            use(a_database(path))
        assert "upgrade tilewright" in refusal.value.hint
    assert path.read_bytes() == before


def test_the_next_schema_is_a_newer_version(path: Path) -> None:
    a_database(path).record(a_winner())
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("pragma user_version").fetchone() == (SCHEMA,)
        connection.execute(f"pragma user_version = {SCHEMA + 1}")
    with pytest.raises(DatabaseUnusable, match=f"schema {SCHEMA + 1}, and this version knows {SCHEMA}"):
        a_database(path).winners()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("SQLITE_BUSY_SNAPSHOT", "another process has locked it"),
        ("SQLITE_LOCKED_SHAREDCACHE", "another process has locked it"),
        ("SQLITE_READONLY_DBMOVED", "it may not be written"),
        ("SQLITE_CANTOPEN_ISDIR", "it cannot be opened"),
        ("SQLITE_IOERR_WRITE", "the disk reports an error"),
    ],
)
def test_what_sqlite_says_more_closely_is_no_damage(path: Path, code: str, told: str) -> None:
    """Extended result codes go on where the plain ones end."""

    def fails(connection: sqlite3.Connection) -> None:
        failure = sqlite3.OperationalError("as SQLite says it")
        failure.sqlite_errorname = code
        raise failure

    a_database(path).record(a_winner())
    file = WinnerFile(path, 0.2)
    with pytest.raises(Unavailable, match=told):
        file.write(fails)
    assert file.damage is None and path.exists()


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table theirs (x)")
    with pytest.raises(DatabaseUnusable, match="another program"):
        a_database(path).record(a_winner())


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(path: Path) -> None:
    a_database(path).record(a_winner())
    path.chmod(0o444)
    path.parent.chmod(0o555)
    database = a_database(path)
    assert database.winners() == [a_winner()]
    assert not database.record(a_winner(median_us=1.0))
    assert "may not be written" in database.complaints[0]
    path.parent.chmod(0o755)


def test_a_place_where_no_folder_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    database = a_database(tmp_path / "file" / "winners.sqlite")
    assert database.winners() == []
    assert not database.record(a_winner())
    assert "was not stored" in database.complaints[0]


def test_a_line_of_the_first_format_is_a_single_kernel() -> None:
    data = json.loads(a_winner().to_json())
    del data["splits"], data["pads"]
    assert Winner.from_json(json.dumps({**data, "format": 1})) == a_winner()


def test_a_plan_of_several_launches_travels_whole(path: Path) -> None:
    plan = Choice("hopper/4", {"m": 128}, 8, frozenset(("B", "A")))
    database = a_database(path)
    database.record(a_winner(choice=plan))
    assert database.winners()[0].choice == plan


def test_what_is_turned_travels_too(path: Path) -> None:
    plan = Choice("worklog/best", {}, 1, frozenset("AB"), frozenset("B"))
    database = a_database(path)
    database.record(a_winner(choice=plan))
    assert database.winners()[0].choice == plan
    assert str(plan) == "worklog/best, A copied first, B turned first"


def test_where_nothing_is_turned_a_choice_is_stored_as_ever() -> None:
    plan = Choice("hopper/4", {"m": 128}, 8, frozenset("B"))
    assert plan.key == '{"pads": ["B"], "point": {"m": 128}, "rung": "hopper/4", "splits": 8}'
    assert Choice.from_data(plan.as_data()) == plan


@pytest.mark.parametrize(
    "change",
    [
        *({"splits": 0}, {"splits": True}, {"pads": ["C"]}, {"pads": "A"}),
        *({"turned": ["B"]}, {"pads": ["A"], "turned": ["B"]}, {"pads": ["B"], "turned": "B"}),
    ],
)
def test_splits_and_pads_that_are_none_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(TilewrightError, match="it is no winner"):
        Winner.from_json(json.dumps({**json.loads(a_winner().to_json()), **change}))
