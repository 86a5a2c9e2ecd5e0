"""Processes that rank and compile candidates while the GPU measures in this one.

Processes and not threads: most of the time to a kernel is Python. They are started afresh (`spawn`: CUDA does not
survive a fork) and end with this one, however it ends, because each waits for the far end of a pipe. This file imports
nothing of the library, so that they can be started before it is imported here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import sleep
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

FIRST = 2
"""Processes that a command needs before its first measurement: one ranks, one builds what runs today."""


class Processes:
    """So many processes, each of which imports a module before there is work. Used in a `with` block.

    That takes half a second: `start` starts the first ones, and the others, which would slow this process down.
    """

    def __init__(self, workers: int, module: str = "tilewright.tuner.compiling") -> None:
        self.workers, self._module = workers, module
        self._reader, self._writer = get_context("spawn").Pipe(duplex=False)
        self._pool = self._made()
        self._used = False

    def start(self, count: int) -> None:
        """Have so many processes. A pool starts one for each piece of work that finds none idle."""
        self._used = True
        with suppress(RuntimeError):  # the search has ended already
            for _ in range(min(count, self.workers)):
                self._pool.submit(os.getpid)

    def start_all(self) -> None:
        """Have all of them, while this process goes on."""
        threading.Thread(target=self.start, args=(self.workers,), daemon=True).start()

    def call(self, work: Callable[..., Result], *given: object) -> Future[Result]:
        """`work(*given)` in one of the processes."""
        self._used = True
        try:
            return self._pool.submit(work, *given)
        except BrokenProcessPool:  # the compiler took its process down with it
            self._pool = self._made()
            return self._pool.submit(work, *given)

    def close(self) -> None:
        """Ends the processes now, whatever they are at."""
        if self._used:
            self._drop_what_waits()
        self._writer.close()
        self._reader.close()

    def _drop_what_waits(self) -> None:
        """Cancels all work that has not begun, and waits until the pool knows: Python 3.11's prints a traceback when
        its processes end while it holds work that somebody cancelled."""
        with suppress(BrokenProcessPool):
            last = self._pool.submit(os.getpid)
            self._pool.shutdown(wait=False, cancel_futures=True)
            while not (last.done() or last.running()):
                sleep(0.001)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _made(self) -> ProcessPoolExecutor:
        begin: Any = _begin
        return ProcessPoolExecutor(
            self.workers, get_context("spawn"), initializer=begin, initargs=(self._reader, self._module)
        )


def _begin(life: Connection, module: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that measures
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    import_module(module)


def _end_with(life: Connection) -> None:
    life.poll(None)
    os._exit(0)
