"""Winners kept, replaced, carried over; and every way in which their file can be of no use."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from made_up_winners import a_winner

from tilewright.errors import TilewrightError
from tilewright.kernels.configuration import KernelConfig, from_data, to_data
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.winners.database import Database, DatabaseUnusable, Imported, shipped_winners
from tilewright.winners.plan_config import PlanConfig
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
        ("no json", "it is not JSON"),
        ("{}", "it has no format"),
        (a_winner().to_json().replace('"format": 3', '"format": 9'), "from a newer tilewright"),
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


@pytest.mark.parametrize("content", [b"this is not a database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
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


def test_a_file_that_never_was_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("what a user wrote\n" * 40)
    for use in (lambda d: d.winners(), lambda d: d.record(a_winner())):
        with pytest.raises(DatabaseUnusable, match="is not a database of winners: file is not a database") as refusal:
            use(a_database(path))
        assert "TILEWRIGHT_DATABASE" in refusal.value.hint
    assert path.read_text() == "what a user wrote\n" * 40
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_all_damaged_files_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of one second."""
    monkeypatch.setattr("tilewright.bench.records.now", lambda: "2026-01-01T00:00:00Z")
    path.parent.mkdir()
    contents = [bytes([number]) * 3000 for number in (1, 2, 3)]
    for content in contents:
        path.write_bytes(content)
        assert a_database(path).winners() == []
    assert sorted(aside.read_bytes() for aside in path.parent.glob("*.damaged-*")) == contents


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
    ["pragma user_version = 9", """update winners set line = replace(line, '"format": 3', '"format": 4')"""],
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


def test_a_plan_of_several_launches_travels_whole(path: Path) -> None:
    plan = PlanConfig(SimtConfig(split_k=8), frozenset(("B", "A")), frozenset("B"))
    database = a_database(path)
    database.record(a_winner(config=plan))
    assert database.winners()[0].config == plan
    assert str(plan) == "simt(split_k=8), A packed, B transposed"


@pytest.mark.parametrize(
    "config",
    [
        SimtConfig((64, 64, 16), (32, 32), fma_order="m1 m0 n1 n0", b_transport="cp_async"),
        MmaConfig((128, 256, 32), store="quad_shuffle", persistent=True),
        WgmmaConfig((128, 192, 64), ping_pong=True, cluster=(2, 1), subtile=64, dependent_launch=False),
        GemvConfig(split_k=16),
    ],
    ids=lambda config: config.kind,
)
def test_a_configuration_of_every_family_is_data_and_back(config: KernelConfig) -> None:
    data = json.loads(json.dumps(to_data(config)))
    assert data["kind"] == config.kind and from_data(data) == config


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "cutlass"}, "its kind is none of simt, mma, wgmma, gemv"),
        ({"tile": [128, 256]}, "tile is"),
        ({"tile": [128, 256, "64"]}, "tile is '64'"),
        ({"tile": None}, "tile is None"),
        ({"stages": -1}, "stages is -1"),
        ({"stages": True}, "stages is True"),
        ({"split_k": 1 << 40}, "split_k is"),
        ({"ping_pong": 1}, "ping_pong is 1"),
        ({"macro": "a"}, "wgmma kernels have no macro"),
    ],
    ids=str,
)
def test_data_that_is_no_configuration_is_refused(change: dict[str, object], told: str) -> None:
    good = to_data(WgmmaConfig((128, 192, 64)))
    with pytest.raises(ValueError, match=re.escape(told)):
        from_data({**good, **change})
    line = json.loads(a_winner(config=PlanConfig(WgmmaConfig((128, 192, 64)))).to_json())
    with pytest.raises(TilewrightError, match="it is not a winner"):
        Winner.from_json(json.dumps({**line, "config": {**line["config"], **change}}))


def test_a_missing_tile_and_an_order_that_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match="wgmma kernel without tile"):
        from_data({"kind": "wgmma"})
    with pytest.raises(ValueError, match="fma_order 'm0; n0' is not"):
        from_data({"kind": "simt", "fma_order": "m0; n0"})


@pytest.mark.parametrize(
    "change",
    [
        *({"packed": ["C"]}, {"packed": "A"}, {"transposed": ["B"]}),
        *({"packed": ["A"], "transposed": ["B"]}, {"packed": ["B"], "transposed": "B"}),
    ],
    ids=str,
)
def test_packing_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(TilewrightError, match="it is not a winner"):
        Winner.from_json(json.dumps({**json.loads(a_winner().to_json()), **change}))


# -- what older versions wrote -----------------------------------------------------------------------------------------


def old_line(rung: str, point: dict[str, object], **more: object) -> str:
    """A line of format 2, of a problem in f32."""
    data = json.loads(a_winner().to_json())
    del data["config"]
    return json.dumps({**data, "format": 2, "rung": rung, "point": point, "splits": 1, "pads": [], **more})


SIMT_POINT = {
    "bm": 64, "bn": 128, "bk": 16, "wm": 32, "wn": 64, "lanes_m": 8, "stages": 3, "b": "async",
    "unroll": 8, "group": 8, "pad": 0, "order": "m2 n2 m1 m0 n1 n0", "ahead": True,
}  # fmt: skip
MMA_POINT = {
    "m": 128, "n": 128, "k_bytes": 64, "warp_m": 64, "warp_n": 32, "stages": 3, "ahead": True, "spread": False,
    "snake": True, "group": 16, "outer": "n_frag", "in_parts": True,
}  # fmt: skip
WGMMA_POINT = {"m": 128, "n": 192, "groups": 1, "stages": 4, "rows": 8, "parts": 3, "turns": 2}
OLD = [
    (
        old_line("worklog/best", SIMT_POINT, splits=4),
        SimtConfig((64, 128, 16), (32, 64), 8, 3, "cp_async", 8, 8, 0, "m2 n2 m1 m0 n1 n0", True, 4),
    ),
    (
        old_line("ampere/full", MMA_POINT),
        MmaConfig((128, 128, 16), (64, 32), 3, interleaved_copies=False, n_outer=True, raster_rows=16, store="shared"),
    ),
    (
        old_line("hopper/best", {**WGMMA_POINT, "early": 0}),
        WgmmaConfig((128, 192, 32), 2, True, raster_rows=8, subtile=64, dependent_launch=False),
    ),
    (
        old_line("hopper/7", {**WGMMA_POINT, "groups": 2, "turns": 1, "along": "m_block", "blocks": 2}),
        WgmmaConfig((128, 192, 32), cluster=(2, 1), raster_rows=8, subtile=64, dependent_launch=False),
    ),
    (
        old_line("hopper/4", {"m": 128, "n": 128, "groups": 2, "stages": 6}, splits=8),
        WgmmaConfig((128, 128, 32), stages=6, split_k=8, persistent=False, dependent_launch=False),
    ),
    (
        old_line(
            "hopper/best",
            {"m": 16, "n": 64, "groups": 1, "stages": 16, "parts": 0, "turns": 1, "walks": 0, "turned": 1},
        ),
        WgmmaConfig((16, 64, 32), 1, stages=16, swap_ab=True, persistent=False),
    ),
    (old_line("thin", {}, splits=16), GemvConfig(split_k=16)),
]


@pytest.mark.parametrize(("line", "kernel"), OLD, ids=lambda one: getattr(one, "kind", ""))
def test_an_old_line_is_the_same_kernel_as_a_configuration(line: str, kernel: KernelConfig) -> None:
    winner = Winner.from_json(line)
    assert winner.config == PlanConfig(kernel) and winner.median_us == 100.0
    assert Winner.from_json(winner.to_json()) == winner


def test_what_was_copied_first_is_packed() -> None:
    line = old_line("worklog/best", SIMT_POINT, pads=["A", "B"], turned=["B"], filled=True)
    assert Winner.from_json(line).config == PlanConfig(
        OLD[0][1].with_split_k(1), frozenset("AB"), frozenset("B"), tile_multiples=True
    )


def an_old_file(path: Path, *lines: str) -> None:
    """A file as an older version left it."""
    a_database(path).record(a_winner(order="new", m=2048))
    with closing(sqlite3.connect(path)) as connection, connection:
        for number, line in enumerate(lines):
            row = ("H200", "9.0", 132, f"problem {number}", "ascending", 100.0, line)
            connection.execute("insert into winners values (?, ?, ?, ?, ?, ?, ?)", row)


def test_an_old_file_is_read_without_kernels_that_only_teach(path: Path) -> None:
    an_old_file(path, OLD[0][0], old_line("worklog/9", {"bm": 128}), OLD[2][0])
    database = a_database(path)
    assert [winner.config.kernel.kind for winner in database.winners() if winner.order == "ascending"] == ["simt"]
    assert not database.complaints
    assert database.prune(lambda winner: False) == 1, "the kernel that only teaches"
    assert database.prune(lambda winner: winner.order == "ascending") == 2
    assert [winner.order for winner in database.winners()] == ["new"]


def test_old_exports_are_imported_without_kernels_that_only_teach(path: Path) -> None:
    database = a_database(path)
    done = database.import_([OLD[0][0], old_line("hopper/1", {})])
    assert done == Imported(added=1, replaced=0, slower=0)


@pytest.mark.parametrize(
    "change",
    [
        *({"splits": 0}, {"splits": True}, {"pads": ["C"]}, {"pads": "A"}, {"point": {**SIMT_POINT, "bm": -1}}),
        *({"turned": ["B"]}, {"pads": ["A"], "turned": ["B"]}, {"point": {**SIMT_POINT, "order": "x"}}),
        {"point": {"bm": 1}},
    ],
    ids=str,
)
def test_an_old_line_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(TilewrightError, match="it is not a winner"):
        Winner.from_json(json.dumps({**json.loads(OLD[0][0]), **change}))
