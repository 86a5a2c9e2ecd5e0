"""Errors reach other processes, and copies, as they are."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import tilewright
from tilewright.errors import MissingExtra, TilewrightError, UnknownName

MADE: dict[type[TilewrightError], Callable[[], TilewrightError]] = {
    MissingExtra: lambda: MissingExtra("optuna", "tune", "A search"),
    UnknownName: lambda: UnknownName("rung", "worklog/b", ["worklog/best", "worklog/1"], shown=["worklog/1"]),
}
"""Errors whose `__init__` has its own arguments."""


def every_error() -> Iterator[type[TilewrightError]]:
    """All classes, of every module that imports without an extra."""
    for module in pkgutil.walk_packages(tilewright.__path__, "tilewright."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except (ImportError, TilewrightError):
            continue
    waiting: list[type[TilewrightError]] = [TilewrightError]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += found.__subclasses__()


def made(kind: type[TilewrightError]) -> TilewrightError:
    own = next((MADE[base] for base in kind.__mro__ if base in MADE), None)
    return own() if own is not None else kind("Asked what cannot be.", place="here\nthere", note="why", hint="how")


def _pickled(error: Any) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("again", [_pickled, copy.copy, copy.deepcopy])
def test_every_error_pickles_and_copies(again: Callable[[Any], Any]) -> None:
    kinds = list(every_error())
    assert len(kinds) >= 15
    for kind in kinds:
        error = made(kind)
        error.add_note("seen on the way")
        twin = again(error)
        assert twin is not error and type(twin) is kind
        assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))


def test_an_error_of_a_worker_is_raised_in_the_parent() -> None:
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(MissingExtra, match=r"pip install 'tilewright\[tune\]'") as told,
    ):
        pool.submit(raise_missing).result()
    assert (told.value.package, told.value.extra) == ("optuna", "tune")


def raise_missing() -> None:
    raise MADE[MissingExtra]()
