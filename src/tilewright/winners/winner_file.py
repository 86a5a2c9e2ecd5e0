"""The SQLite file of a user's winners, and what can be wrong with it.

- locked, or it cannot be written: it is waited for a moment, then `Unavailable`: go on without;
- damaged: moved aside, once, however many processes see it, and `damage` says where; a new one is begun;
- from a newer version, another program's, or no database at all: `DatabaseUnusable`; the file stays as it is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from tilewright.bench import records
from tilewright.errors import TilewrightError
from tilewright.files import is_ordinary
from tilewright.winners.old_lines import RetiredKernel
from tilewright.winners.winner import NewerFormat, Winner

FILE_VARIABLE = "TILEWRIGHT_DATABASE"
FILE_NAME = "winners.sqlite"
"""Of the file that we make where the user names none: whatever is in it, it is ours."""

_BEGINS = b"SQLite format 3\0"

SCHEMA = 1
"""`user_version` of the file."""

APPLICATION = 0x54574442  # "TWDB": SQLite's mark of whose file it is

_CREATE = """
create table winners (
    device text not null, compute_capability text not null, sm_count integer not null,
    problem text not null,            -- ProblemKey as JSON, keys in order
    reduction text not null,          -- ReductionOrder.name: of each, one winner is kept
    median_us real not null,
    line text not null,               -- the winner as `Winner.to_json` writes it
    primary key (device, compute_capability, sm_count, problem, reduction)
)
"""

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
Work = Callable[[sqlite3.Connection], Result]


class DatabaseUnusable(TilewrightError):
    """The user's database is from a newer version, another program's, or damaged where it cannot be moved away."""


class Unavailable(Exception):
    """Locked or not writable: what is asked can be done without, or later."""


class Empty(Unavailable):
    """There is nothing in it yet."""


class _Damaged(Exception):
    """What SQLite, or what it gave, says of a file that is not a database of winners any more."""


class WinnerFile:
    """One file. wait_s: how long a locked one is waited for. damage: what was moved where, in a sentence."""

    def __init__(self, path: Path, wait_s: float) -> None:
        self.path, self.wait_s = path, wait_s
        self.damage: str | None = None

    def read(self, work: Work[Result]) -> Result:
        """`work` in one transaction. Raises Unavailable or DatabaseUnusable."""
        try:
            return self._once(work, writing=False)
        except _Damaged as damage:
            self._move_aside(str(damage))
            raise Empty from None

    def write(self, work: Work[Result]) -> Result:
        """`work` in one transaction that may change the file, which is made if it is not there."""
        try:
            return self._once(work, writing=True)
        except _Damaged as damage:
            self._move_aside(str(damage))
        try:
            return self._once(work, writing=True)
        except _Damaged as damage:
            raise self._unusable(str(damage)) from None

    def _once(self, work: Work[Result], *, writing: bool) -> Result:
        try:
            if writing:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif not self.path.exists():
                raise Empty
            if not is_ordinary(self.path):  # SQLite would wait for whoever writes into a pipe
                raise Unavailable("it is not an ordinary file")
            with self._opened(writing) as connection:
                self._check_schema(connection, writing)
                return work(connection)
        except sqlite3.Error as failure:
            raise self._told(failure) from None
        except OSError as failure:
            raise Unavailable(failure.strerror or str(failure)) from None

    @contextmanager
    def _opened(self, writing: bool) -> Iterator[sqlite3.Connection]:
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if writing else 'ro'}"
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
                raise Empty
            connection.execute(_CREATE)
            connection.execute(f"pragma application_id = {APPLICATION}")
            connection.execute(f"pragma user_version = {SCHEMA}")
            return
        if application != APPLICATION:
            raise DatabaseUnusable(
                f"{str(self.path)!r} is a database of another program.", hint=f"set {FILE_VARIABLE} to another file."
            )
        if version > SCHEMA:
            raise self._newer(f"it has schema {version}, and this version knows {SCHEMA}")

    def _told(self, failure: sqlite3.Error) -> Exception:
        name = getattr(failure, "sqlite_errorname", "")
        if name.startswith(_LOCKED):
            return Unavailable(f"another process has locked it for more than {self.wait_s:g} s")
        for start, reason in _UNWRITABLE.items():
            if name.startswith(start):
                return Unavailable(reason)
        return _Damaged(str(failure))

    def parsed(self, line: object) -> Winner | None:
        """An entry; None for a kernel that is of no family any more. One that is none damages the whole file: nothing
        else writes into it."""
        try:
            return Winner.from_json(str(line))
        except RetiredKernel:
            return None
        except NewerFormat as error:
            raise self._newer(error.headline) from None
        except TilewrightError as error:
            raise _Damaged(f"an entry cannot be read: {error.headline}") from None

    def _move_aside(self, damage: str) -> None:
        """One process moves the file; others that saw the same damage find it gone, or a new one."""
        if not self._was_ours():
            raise DatabaseUnusable(
                f"{str(self.path)!r} is not a database of winners: {damage}.",
                hint=f"set {FILE_VARIABLE} to another file; this one is left as it is.",
            )
        name = f"{self.path.name}.damaged-{records.now().replace(':', '')}"
        try:
            with FileLock(f"{self.path}.lock", timeout=self.wait_s):
                if self._is_damaged():
                    aside = _unused(self.path.with_name(name))
                    self.path.rename(aside)
                    self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
                    self.damage = f"The database of winners {str(self.path)!r} was damaged: {damage}. " + (
                        f"It was moved to {aside.name!r}, and a new one is begun."
                    )
        except (OSError, Timeout):
            raise self._unusable(damage) from None

    def _was_ours(self) -> bool:
        """Whether a file that cannot be read may have been a database: a user who names another file keeps it."""
        if self.path.name == FILE_NAME:
            return True
        try:
            with self.path.open("rb") as file:
                return file.read(len(_BEGINS)) == _BEGINS
        except OSError:
            return True  # gone: another process has moved it

    def _is_damaged(self) -> bool:
        def read_all(connection: sqlite3.Connection) -> None:
            for (line,) in connection.execute("select line from winners"):
                self.parsed(line)

        try:
            self._once(read_all, writing=False)
        except _Damaged:
            return True
        except Unavailable:
            return False
        return False

    def _newer(self, why: str) -> DatabaseUnusable:
        return DatabaseUnusable(
            f"The database of winners {str(self.path)!r} was written by a newer tilewright: {why}.",
            hint=f"upgrade tilewright, or set {FILE_VARIABLE} to another file for this version.",
        )

    def _unusable(self, why: str) -> DatabaseUnusable:
        return DatabaseUnusable(
            f"The database of winners {str(self.path)!r} is damaged: {why}.",
            hint=f"move it away, or set {FILE_VARIABLE} to another file; winners that were exported can be imported "
            "into a new one.",
        )


def _unused(path: Path) -> Path:
    """The path, or with a number behind it where something has the name: no damaged file takes the place of another."""
    others = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(one for one in chain((path,), others) if not os.path.lexists(one))
