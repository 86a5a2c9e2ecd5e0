"""Processes that build and compile while the GPU measures in this one.

Processes and not threads: most of the time to a kernel is Python. They are started afresh (`spawn`: CUDA does not
survive a fork) and end with this one, however it ends, because each waits for the far end of a pipe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import sleep
from typing import Any, Self, TypeVar

from tilewright.errors import TilewrightError

Result = TypeVar("Result")


class Processes:
    """So many processes, each of which calls `start(*ask)` first. Used in a `with` block."""

    def __init__(self, workers: int, start: Callable[..., None], *ask: object) -> None:
        self.workers = workers
        self._start, self._ask = start, ask
        self._reader, self._writer = get_context("spawn").Pipe(duplex=False)
        self._pool = self._started()

    def call(self, work: Callable[..., Result], *given: object) -> Future[Result]:
        """`work(*given)` in one of the processes."""
        from concurrent.futures.process import BrokenProcessPool

        try:
            return self._pool.submit(work, *given)
        except BrokenProcessPool:  # the compiler took its process down with it
            self._pool = self._started()
            return self._pool.submit(work, *given)

    def close(self) -> None:
        """Ends the processes now, whatever they are at."""
        self._drop_what_waits()
        self._writer.close()
        self._reader.close()

    def _drop_what_waits(self) -> None:
        """Cancels all work that has not begun, and waits until the pool knows: Python 3.11's prints a traceback when
        its processes end while it holds work that somebody cancelled."""
        from concurrent.futures.process import BrokenProcessPool

        with suppress(BrokenProcessPool):
            last = self._pool.submit(os.getpid)
            self._pool.shutdown(wait=False, cancel_futures=True)
            while not (last.done() or last.running()):
                sleep(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self) -> ProcessPoolExecutor:
        ask: Any = (self._reader, self._start, *self._ask)
        begin: Any = _begin
        return ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=begin, initargs=ask)


def _begin(life: Connection, start: Callable[..., None], *ask: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that measures
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    start(*ask)


def _end_with(life: Connection) -> None:
    life.poll(None)
    os._exit(0)


def told(failure: Exception) -> TilewrightError:
    """What a candidate raised, as what can travel between processes; a bug is no reason to lose the search."""
    if isinstance(failure, TilewrightError):
        return TilewrightError(failure.headline)
    return TilewrightError(f"a bug in tilewright: {type(failure).__name__}: {failure}")
