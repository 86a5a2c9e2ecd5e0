"""The database of winners: a table that ships with the package, read only, and the user's own file over it.

For each problem on a device, and each reduction order, it holds one winner. Two processes that tune one problem: each
replaces a winner that it measured anew beside its own, or that is slower. Where the file is locked or cannot be
written, what can be done without it is done, and `problem` says so in a sentence: a winner that was not stored is still
the answer of its search.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from tilewright.errors import TilewrightError
from tilewright.files import read_text
from tilewright.winners.keys import DeviceKey, Key, short_name
from tilewright.winners.winner import Winner, read_lines
from tilewright.winners.winner_file import FILE_NAME, FILE_VARIABLE, DatabaseUnusable, Empty, Unavailable, WinnerFile

WAIT_S = 3.0
"""How long a locked database is waited for."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: winners that are new, that replaced a slower one, and that were left out as slower."""

    added: int
    replaced: int
    slower: int


def database_path() -> Path:
    """$TILEWRIGHT_DATABASE, or `winners.sqlite` in the user's data folder of this platform."""
    chosen = os.environ.get(FILE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("tilewright")) / FILE_NAME


class Database:
    """Winners by device and problem.

    path: None for `database_path()`. shipped: the winners below the user's own; None for those of the package. problem:
    why the user's own could not be read or written, once that happened.
    """

    def __init__(
        self, path: Path | None = None, *, shipped: Iterable[Winner] | None = None, wait_s: float = WAIT_S
    ) -> None:
        self.path = database_path() if path is None else path
        self.problem: str | None = None
        self._file = WinnerFile(self.path, wait_s)
        self._given = None if shipped is None else tuple(shipped)

    @property
    def shipped(self) -> tuple[Winner, ...]:
        return shipped_winners() if self._given is None else self._given

    @property
    def complaints(self) -> tuple[str, ...]:
        """What the user should hear of the file: sentences."""
        return tuple(text for text in (self._file.damage, self.problem) if text)

    # -- reading ----------------------------------------------------------------------------------------------------

    def winner(self, key: Key, order: str | None = None) -> Winner | None:
        """The fastest winner of a problem on a device. order: only of this reduction order, by its name."""
        found = [one for one in self.winners() if one.key == key and order in (None, one.order)]
        return min(found, key=lambda one: one.median_us, default=None)

    def winners(self, *, device: str | None = None, shipped: bool = True) -> list[Winner]:
        """One winner of each key and reduction order, the user's own before a shipped one, by device and problem.

        device: only of devices of this name.
        """
        found: dict[tuple[Key, str], Winner] = {}
        for winner in [*self._own(), *(self.shipped if shipped else ())]:
            found.setdefault((winner.key, winner.order), winner)
        chosen = [winner for winner in found.values() if device is None or winner.key.device.name == short_name(device)]
        return sorted(chosen, key=_place)

    def export(self, *, device: str | None = None, shipped: bool = False) -> Iterator[str]:
        """The winners as lines of JSON, each with its line feed; by default the user's own only."""
        for winner in self.winners(device=device, shipped=shipped):
            yield winner.to_json() + "\n"

    def _own(self) -> list[Winner]:
        """The winners of the user's own file; none, and `problem` says why, where it is locked."""
        try:
            return [winner for _, winner in self._file.read(self._read_all) if winner is not None]
        except Empty:
            return []
        except Unavailable as reason:
            self.problem = f"The database of winners {str(self.path)!r} was not read: {reason}."
            return []

    def _read_all(self, connection: sqlite3.Connection) -> list[tuple[str, Winner | None]]:
        """Entries as they are stored, and the winners in them: None where a kernel is of no family any more."""
        lines = connection.execute("select line from winners order by rowid")
        return [(line, self._file.parsed(line)) for (line,) in lines]

    # -- writing ----------------------------------------------------------------------------------------------------

    def record(self, winner: Winner, *, over: Winner | None = None) -> bool:
        """Keep a winner; whether it stands now. over: the earlier one that was measured beside it, and lost.

        One that another process stored meanwhile stays if it is faster. False, too, where the file is locked or cannot
        be written: `problem` says so.
        """
        try:
            return self._store([winner], over).slower == 0
        except Unavailable as reason:
            self.problem = f"The winner was not stored in {str(self.path)!r}: {reason}."
            return False

    def import_(self, lines: Iterable[str], name: str = "the file") -> Imported:
        """Take over winners that are new or faster; all of them or, where a line is none, not one.

        Raises TilewrightError, also where the database cannot be written.
        """
        winners = list(read_lines(lines, name))
        try:
            return self._store(winners, None)
        except Unavailable as reason:
            raise self._left_alone("Nothing was imported into", reason) from None

    def prune(self, wanted: Callable[[Winner], bool]) -> int:
        """Remove the user's own winners for which `wanted` is true, and those whose kernels are of no family any more;
        how many. Raises TilewrightError if it cannot."""

        def remove(connection: sqlite3.Connection) -> int:
            # By their lines: one that another process has replaced meanwhile is not what was asked for.
            return sum(connection.execute("delete from winners where line = ?", (line,)).rowcount for line in goners)

        try:
            stored = self._file.read(self._read_all)
            goners = [line for line, winner in stored if winner is None or wanted(winner)]
            return self._file.write(remove) if goners else 0
        except Empty:
            return 0
        except Unavailable as reason:
            raise self._left_alone("Nothing was removed from", reason) from None

    def _left_alone(self, what: str, reason: Unavailable) -> TilewrightError:
        return TilewrightError(f"{what} {str(self.path)!r}: {reason}.", hint="run the command again.")

    def _store(self, winners: Iterable[Winner], over: Winner | None) -> Imported:
        def write(connection: sqlite3.Connection) -> Imported:
            added = replaced = slower = 0
            for winner in winners:
                where = _columns(winner)
                row = connection.execute(_SELECT, where).fetchone()
                standing = None if row is None else self._file.parsed(row[0])
                if standing is not None and standing not in (over, winner) and standing.median_us <= winner.median_us:
                    slower += 1
                    continue
                values = (*where, winner.median_us, winner.to_json())
                connection.execute("insert or replace into winners values (?, ?, ?, ?, ?, ?, ?)", values)
                added += standing is None
                replaced += standing is not None
            return Imported(added, replaced, slower)

        return self._file.write(write)


_SELECT = (
    "select line from winners"
    " where device = ? and compute_capability = ? and sm_count = ? and problem = ? and reduction = ?"
)


def _columns(winner: Winner) -> tuple[str | int, ...]:
    device: DeviceKey = winner.key.device
    problem = json.dumps(winner.key.as_data()["problem"], sort_keys=True)
    return device.name, device.compute_capability, device.sm_count, problem, winner.order


def _place(winner: Winner) -> tuple[str | int, ...]:
    problem = winner.key.problem
    sizes = (problem.m, problem.n, problem.k)
    return (str(winner.key.device), problem.dtype, problem.product, *sizes, problem.orders, winner.order)


class ShippedWinners:
    """A database of these alone."""

    complaints: tuple[str, ...] = ()

    def winners(self) -> list[Winner]:
        return list(shipped_winners())


@cache
def shipped_winners() -> tuple[Winner, ...]:
    """The winners that come with the package; of one problem the newest first."""
    found: list[Winner] = []
    for path in sorted((Path(__file__).parent / "shipped").glob("*.jsonl")):
        found += read_lines(read_text(path).splitlines(), path.name)
    return tuple(sorted(found, key=lambda winner: winner.date, reverse=True))


__all__ = ["Database", "DatabaseUnusable", "Imported", "ShippedWinners", "database_path", "shipped_winners"]
