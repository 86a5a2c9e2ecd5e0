"""The database of winners: a table that ships with the package, read only, and the user's own over it.

The user's is one SQLite file. Whoever opens it may find it locked by another process, damaged, or written by a newer
version:

- locked, or a file that cannot be written: it is waited for a moment; then what can be done without it is done, and
  `problem` says so in a sentence (a winner that was not stored is still the answer of its search);
- damaged, newer, or another program's: `DatabaseUnusable`, with the way out; the file stays as it is.

Two processes that tune the same problem: each replaces a winner that it measured anew beside its own, or that is slower.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import platformdirs

from tilewright.errors import TilewrightError
from tilewright.tuner.keys import DeviceKey, Key
from tilewright.tuner.winners import Winner, read_lines

FILE_VARIABLE = "TILEWRIGHT_DATABASE"

SCHEMA = 1
"""`user_version` of the file. To change the table: a number more, and a step in `_UPGRADES`."""

APPLICATION = 0x54574442  # "TWDB": SQLite's mark of whose file it is
WAIT_S = 3.0
"""How long a locked database is waited for."""

_CREATE = """
create table winners (
    device text not null, compute_capability text not null, sm_count integer not null,
    problem text not null,            -- ProblemKey as JSON, keys in order
    kernel text not null,             -- kernel_version: the text that was measured
    date text not null, median_us real not null,
    line text not null,               -- the winner as `Winner.to_json` writes it
    primary key (device, compute_capability, sm_count, problem)
)
"""

_UPGRADES: dict[int, str] = {}
"""From each older schema to the next."""

_UNWRITABLE = {
    "SQLITE_READONLY": "it may not be written",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "the disk reports an error",
    "SQLITE_PERM": "that is not permitted",
    "SQLITE_AUTH": "that is not permitted",
}
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")

Result = TypeVar("Result")


class DatabaseUnusable(TilewrightError):
    """The user's database is damaged, from a newer version, or none at all."""


class _Unavailable(Exception):
    """Locked or not writable: what is asked can be done without, or later."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: winners that are new, that replaced a slower one, and that were left out as slower."""

    added: int
    replaced: int
    slower: int


def database_path() -> Path:
    """$TILEWRIGHT_DATABASE, or `winners.sqlite` in the user's data folder of this platform."""
    chosen = os.environ.get(FILE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("tilewright")) / "winners.sqlite"


class Database:
    """Winners by device and problem.

    path: None for `database_path()`. shipped: the winners below the user's own; None for those of the package. problem:
    why the user's own could not be read or written, once that happened.
    """

    def __init__(
        self, path: Path | None = None, *, shipped: Iterable[Winner] | None = None, wait_s: float = WAIT_S
    ) -> None:
        self.path = database_path() if path is None else path
        self.wait_s = wait_s
        self.problem: str | None = None
        self._shipped = shipped_winners() if shipped is None else tuple(shipped)

    # -- reading ----------------------------------------------------------------------------------------------------

    def best_choice(self, key: Key) -> Winner | None:
        """The winner of a problem on a device: the user's own, else the shipped one.

        A kernel whose text has changed since it won is still the best guess, and is returned; `prune` removes it.
        """
        own = [winner for winner in self._own(key) if winner.key == key]
        if own:
            return own[0]
        return next((winner for winner in self._shipped if winner.key == key), None)

    def list(self, *, device: DeviceKey | None = None, shipped: bool = True) -> list[Winner]:
        """All winners that `best_choice` can give: one for each key, by device and problem."""
        found: dict[Key, Winner] = {}
        for winner in [*self._own(), *(self._shipped if shipped else ())]:
            found.setdefault(winner.key, winner)
        chosen = [winner for winner in found.values() if device is None or winner.key.device == device]
        return sorted(chosen, key=lambda w: (str(w.key.device), w.key.problem.dtype, w.key.problem.product, _size(w)))

    def export(self, *, shipped: bool = False) -> Iterator[str]:
        """The winners as lines of JSON, each with its line feed; by default the user's own only."""
        for winner in self.list(shipped=shipped):
            yield winner.to_json() + "\n"

    def _own(self, key: Key | None = None) -> list[Winner]:
        """The winners of the user's own file; none, and `problem` says why, where it is locked."""
        if not self.path.exists():
            return []
        text = "select line from winners"
        values: tuple[object, ...] = ()
        if key is not None:
            text += " where device = ? and compute_capability = ? and sm_count = ? and problem = ?"
            values = (*_device_columns(key.device), _problem_column(key))

        def read(connection: sqlite3.Connection) -> list[str]:
            return [str(line) for (line,) in connection.execute(text, values)]

        try:
            lines = self._with(read)
        except _Unavailable as reason:
            self.problem = f"The database of winners {str(self.path)!r} was not read: {reason}."
            return []
        return [self._parsed(line) for line in lines]

    def _parsed(self, line: str) -> Winner:
        try:
            return Winner.from_json(line)
        except TilewrightError as error:
            raise self._unusable(f"an entry cannot be read: {error.headline}") from None

    # -- writing ----------------------------------------------------------------------------------------------------

    def record(self, winner: Winner, *, over: Winner | None = None) -> bool:
        """Keep a winner; whether it stands now. over: the earlier one that was measured beside it, and lost.

        One that another process stored meanwhile stays if it is faster. False, too, where the file is locked or cannot
        be written: `problem` says so.
        """
        return self._store([(winner, over)])[2] == 0 and self.problem is None

    def import_(self, lines: Iterable[str], name: str = "the file") -> Imported:
        """Take over winners that are new or faster; all of them or, where a line is none, not one.

        Raises TilewrightError, also where the database cannot be written.
        """
        winners = list(read_lines(lines, name))
        before = self.problem
        self.problem = None
        added, replaced, slower = self._store([(winner, None) for winner in winners])
        if self.problem is not None:
            raise TilewrightError(self.problem, hint="nothing was imported; run the command again.")
        self.problem = before
        return Imported(added, replaced, slower)

    def prune(self, wanted: Callable[[Winner], bool]) -> int:
        """Remove the user's own winners for which `wanted` is true; how many. Raises TilewrightError if it cannot."""
        if not self.path.exists():
            return 0
        goners = [winner for winner in self._own() if self.problem is None and wanted(winner)]

        def remove(connection: sqlite3.Connection) -> int:
            # By their lines: one that another process has replaced meanwhile is not what was asked for.
            rows = [(winner.to_json(),) for winner in goners]
            return connection.executemany("delete from winners where line = ?", rows).rowcount if rows else 0

        try:
            if self.problem is not None:
                raise _Unavailable("it is locked by another process")
            return self._with(remove, writing=True)
        except _Unavailable as reason:
            raise TilewrightError(
                f"Nothing was removed from {str(self.path)!r}: {reason}.", hint="run the command again."
            ) from None

    def _store(self, winners: Iterable[tuple[Winner, Winner | None]]) -> tuple[int, int, int]:
        """(added, replaced, left out as slower)."""

        def write(connection: sqlite3.Connection) -> tuple[int, int, int]:
            added = replaced = slower = 0
            for winner, over in winners:
                where = (*_device_columns(winner.key.device), _problem_column(winner.key))
                rows = connection.execute(
                    "select line from winners where device = ? and compute_capability = ? and sm_count = ?"
                    " and problem = ?",
                    where,
                ).fetchall()
                standing = [self._parsed(line) for (line,) in rows]
                if any(one != over and one != winner and one.median_us <= winner.median_us for one in standing):
                    slower += 1
                    continue
                connection.execute(
                    "insert or replace into winners values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (*where, winner.kernel, winner.date, winner.median_us, winner.to_json()),
                )
                if standing:
                    replaced += 1
                else:
                    added += 1
            return added, replaced, slower

        try:
            return self._with(write, writing=True)
        except _Unavailable as reason:
            self.problem = f"The winner was not stored in {str(self.path)!r}: {reason}."
            return 0, 0, 0

    # -- the file ---------------------------------------------------------------------------------------------------

    def _with(self, work: Callable[[sqlite3.Connection], Result], *, writing: bool = False) -> Result:
        """`work` in one transaction, with SQLite's failures told apart."""
        try:
            if writing:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._opened(writing) as connection:
                self._check_schema(connection, writing)
                return work(connection)
        except sqlite3.Error as failure:
            raise self._told(failure) from None
        except OSError as failure:
            raise _Unavailable(failure.strerror or str(failure)) from None

    @contextmanager
    def _opened(self, writing: bool) -> Iterator[sqlite3.Connection]:
        mode = "rwc" if writing else "ro"
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=self.wait_s, isolation_level=None)) as connection:
            connection.execute("begin immediate" if writing else "begin")
            try:
                yield connection
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def _check_schema(self, connection: sqlite3.Connection, writing: bool) -> None:
        (version,) = connection.execute("pragma user_version").fetchone()
        (application,) = connection.execute("pragma application_id").fetchone()
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        if version == 0 and application == 0 and tables == 0:  # new, or made by a process that was killed at once
            if not writing:
                raise _Unavailable("it is empty")
            connection.execute(_CREATE)
            connection.execute(f"pragma application_id = {APPLICATION}")
            connection.execute(f"pragma user_version = {SCHEMA}")
            return
        if application != APPLICATION:
            raise DatabaseUnusable(
                f"{str(self.path)!r} is a database of another program.",
                hint=f"set {FILE_VARIABLE} to another file.",
            )
        if version > SCHEMA:
            raise DatabaseUnusable(
                f"The database of winners {str(self.path)!r} was written by a newer tilewright: it has schema "
                f"{version}, and this version knows {SCHEMA}.",
                hint=f"upgrade tilewright, or set {FILE_VARIABLE} to another file for this version.",
            )
        while version < SCHEMA:
            if not writing:
                raise _Unavailable(f"it has the older schema {version}, which the next winner that is stored upgrades")
            connection.execute(_UPGRADES[version])
            version += 1
            connection.execute(f"pragma user_version = {version}")

    def _told(self, failure: sqlite3.Error) -> Exception:
        name = getattr(failure, "sqlite_errorname", "")
        if name.startswith(_LOCKED):
            return _Unavailable(f"another process has locked it for more than {self.wait_s:g} s")
        for start, reason in _UNWRITABLE.items():
            if name.startswith(start):
                return _Unavailable(reason)
        return self._unusable(str(failure))

    def _unusable(self, why: str) -> DatabaseUnusable:
        return DatabaseUnusable(
            f"The database of winners {str(self.path)!r} is damaged: {why}.",
            hint=f"move it away, or set {FILE_VARIABLE} to another file; winners that were exported can be imported "
            "into a new one.",
        )


def _device_columns(device: DeviceKey) -> tuple[str, str, int]:
    return device.name, device.compute_capability, device.sm_count


def _problem_column(key: Key) -> str:
    return json.dumps(key.as_data()["problem"], sort_keys=True)


def _size(winner: Winner) -> tuple[int, int, int, str]:
    problem = winner.key.problem
    return problem.m, problem.n, problem.k, problem.orders


@cache
def shipped_winners() -> tuple[Winner, ...]:
    """The winners that come with the package, newest first."""
    found: list[Winner] = []
    for path in sorted((Path(__file__).parent / "shipped").glob("*.jsonl")):
        found += read_lines(path.read_text(encoding="utf-8").splitlines(), path.name)
    return tuple(sorted(found, key=lambda winner: winner.date, reverse=True))
