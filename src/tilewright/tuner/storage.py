"""Where studies are kept: one SQLite file in the user's cache folder, or a database that many machines reach."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import platformdirs

from tilewright import extras
from tilewright.errors import TilewrightError
from tilewright.files import append_text
from tilewright.winners.winner import without_password

_WAIT_S = 20.0
"""How long a worker waits for the others to finish writing."""


_TRIES, _TRY_AGAIN_S = 8, 0.25


class Finished(TilewrightError):
    """A trial is changed that has ended."""


def default_url() -> str:
    """Studies of this user on this machine."""
    return f"sqlite:///{Path(platformdirs.user_cache_dir('tilewright')) / 'studies.sqlite'}"


def check_storage(url: str) -> None:
    """Raise TilewrightError where a URL is none that can hold a study, or a package is missing. Connects to nothing."""
    extras.require("optuna", "Searching for the fastest kernel")
    scheme, found, _ = url.partition("://")
    if not found or scheme not in ("sqlite", "postgresql"):
        raise TilewrightError(
            f"{without_password(url)!r} is no place for a study.",
            hint="write sqlite:///FILE, or postgresql://USER@HOST/DATABASE for many machines.",
        )
    if scheme == "postgresql":
        extras.require("psycopg", "Keeping a study in PostgreSQL")


_PACKAGES = "sqlalchemy", "sqlalchemy.orm", "alembic", "optuna"
"""Of a storage: half a second together, two where the disk is cold."""


def import_while(waiting: Callable[[], bool]) -> None:
    """Import some of what a storage needs, a package after the other, as long as there is nothing better to do."""
    with suppress(Exception):  # whoever opens a storage says what is wrong
        for name in _PACKAGES:
            if waiting():
                import_module(name)


def import_ahead() -> None:
    """Begin to import what a storage needs, in a thread."""

    def imported() -> None:
        with suppress(Exception):  # whoever opens a storage says what is wrong
            import optuna

            optuna.storages.RDBStorage("sqlite://")

    Thread(target=imported, daemon=True).start()


def open_storage(url: str) -> Any:
    """Optuna's storage at a URL of SQLAlchemy; `postgresql://...` is reached through psycopg.

    Raises TilewrightError where there is none, it cannot be reached, or a newer Optuna has written it.
    """
    check_storage(url)
    import optuna
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    scheme, _, rest = url.partition("://")
    options: dict[str, Any] = {"connect_args": {"timeout": _WAIT_S}}
    if scheme == "postgresql":
        url = f"postgresql+psycopg://{rest}"
        options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": int(_WAIT_S)}}
    else:
        _make_folder(Path(rest.removeprefix("/")))
    with told(url):
        for _ in range(_TRIES):
            try:
                return _connected(url, options)
            except (IntegrityError, ProgrammingError, OperationalError) as failure:
                # Another worker makes the tables at this moment, or writes their version.
                if not isinstance(failure, IntegrityError) and "already exists" not in str(failure):
                    raise
                sleep(_TRY_AGAIN_S)
        return _connected(url, options)


def _connected(url: str, options: dict[str, Any]) -> Any:
    import optuna
    from sqlalchemy import event

    storage = optuna.storages.RDBStorage(url, engine_kwargs=options)
    if storage.engine.dialect.name == "sqlite":
        event.listen(storage.engine, "connect", _without_waiting_for_the_disk)
        storage.engine.dispose()  # connections from before
    return storage


def _without_waiting_for_the_disk(connection: Any, record: object) -> None:
    """What is measured outlives the process, however it ends, and not a loss of power: a commit that waits for the disk
    takes 10 ms, and each candidate has five."""
    connection.execute("pragma synchronous = off")


def _make_folder(path: Path) -> None:
    try:
        append_text(path, "")
    except OSError as failure:
        raise TilewrightError(
            f"The study cannot be kept in {str(path)!r}: {failure.strerror or failure}.",
            hint="name another file: --storage sqlite:////tmp/study.sqlite",
        ) from None


@contextmanager
def told(url: str) -> Iterator[None]:
    """What a storage raises, as one error without the password."""
    from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UpdateFinishedTrialError:
        raise Finished(f"A claim in {without_password(url)!r} was ended by another process.") from None
    except (StorageInternalError, SQLAlchemyError, sqlite3.Error, RuntimeError) as failure:
        cause: BaseException = failure
        while (deeper := cause.__cause__ or getattr(cause, "orig", None)) is not None:
            cause = deeper
        first = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise TilewrightError(
            f"The study in {without_password(url)!r} cannot be used: {without_password(first)}",
            hint="what was measured until now is kept there, if it is the connection: the same command goes on. "
            "A damaged file can be removed; --storage names another place.",
        ) from None
