"""Two processes on one study in a real PostgreSQL, which the test starts and ends."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from glob import glob
from pathlib import Path

import pytest
from test_fleet import three_and_one_killed
from test_tune import lines, worker
from tuning_fakes import CANDIDATES, Measurer, a_search

from tilewright.errors import MissingExtra, TilewrightError
from tilewright.tuner.storage import check_storage, open_storage
from tilewright.tuner.study import TuningStudy

PORT = "5433"  # of the name of a socket in a folder of this test: no network is used


def tool(name: str) -> str | None:
    places = [*sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(places))


def as_anybody(*command: str) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return (
        ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command] if os.getuid() == 0 else [*command]
    )


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of an empty database."""
    initdb, server, createdb = tool("initdb"), tool("postgres"), tool("createdb")
    if initdb is None or server is None or createdb is None:
        pytest.skip("there is no PostgreSQL here: initdb, postgres and createdb are not found")
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv to be another user")
    folder = Path(tempfile.mkdtemp(prefix="postgres_"))
    if os.getuid() == 0:
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    folder.chmod(0o755)
    data = str(folder / "data")
    user = ["-U", "tuner"]
    made = subprocess.run(
        as_anybody(initdb, "-D", data, *user, "-A", "trust", "--no-sync"), capture_output=True, text=True, cwd="/"
    )
    assert made.returncode == 0, made.stderr
    options = ["-D", data, "-k", str(folder), "-p", PORT, "-c", "listen_addresses=", "-c", "fsync=off"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(as_anybody(server, *options), stdout=log, stderr=log, cwd="/")
    try:
        create = [createdb, "-h", str(folder), "-p", PORT, *user, "studies"]
        while True:
            done = subprocess.run(create, capture_output=True, text=True)
            if done.returncode == 0:
                break
            assert running.poll() is None, (folder / "log").read_text()
            subprocess.run(["sleep", "0.1"])
        yield f"postgresql://tuner:secret@/studies?host={folder}&port={PORT}"
    finally:
        running.send_signal(signal.SIGINT)  # a fast shutdown, whoever is connected
        running.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_two_workers_share_a_study_in_postgresql(postgres: str, tmp_path: Path) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    both = [worker(tmp_path, log, 0.01, postgres, other) for log, other in zip(logs, reversed(logs), strict=True)]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    measured = [key for log in logs for key in lines(log)]
    assert sorted(measured) == sorted(candidate.key for candidate in CANDIDATES)
    assert all(lines(log) for log in logs)
    with closing(TuningStudy(postgres, "bowl", CANDIDATES)) as study:
        study.refresh()
        assert len(study.results()) == len(CANDIDATES)


def test_a_server_that_is_gone_is_an_error_without_the_password() -> None:
    with pytest.raises(TilewrightError) as refusal:
        open_storage("postgresql://me:secret@/studies?host=/nowhere/at/all")
    assert "secret" not in str(refusal.value)
    assert "me:***@" in refusal.value.headline


def test_a_missing_package_is_told_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.extras.available", lambda package: package != "psycopg")
    with pytest.raises(MissingExtra, match="Keeping a study in PostgreSQL") as refusal:
        check_storage("postgresql://me@host/studies")
    assert "tilewright[tune-postgresql]" in str(refusal.value)


def test_a_place_of_another_kind_is_refused() -> None:
    with pytest.raises(TilewrightError, match="'mysql://host/db' is no place for a study"):
        open_storage("mysql://host/db")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TilewrightError, match="cannot be kept in"):
        open_storage(f"sqlite:///{tmp_path / 'file' / 'study.sqlite'}")


def test_a_damaged_study_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "study.sqlite").write_bytes(b"no database at all, but long enough to be read as one" * 99)
    with pytest.raises(TilewrightError, match="file is not a database") as refusal:
        a_search(tmp_path, Measurer())
    assert "removed" in refusal.value.hint


@pytest.mark.slow
def test_four_processes_share_a_list_in_postgresql_and_one_is_killed(postgres: str, tmp_path: Path) -> None:
    three_and_one_killed(postgres, tmp_path)
