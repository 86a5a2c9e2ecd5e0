"""Processes that rank and compile candidates while the GPU measures in this one.

Processes and not threads: most of the time to a kernel is Python. They are forks of a server that is started afresh
(CUDA does not survive a fork) and has imported what all of them need. They end with this process, however it ends,
because each waits for the far end of a pipe. A thread of this process hands work to each, so that one which dies takes
its own work with it alone, and none is waited for at the end. This file imports nothing of the library, so that
processes can be started before it is imported here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

Result = TypeVar("Result")
Job = tuple[Callable[..., Any], tuple[object, ...]]

_MODULE = "tilewright.tuner.compiling"

_HAS_SERVER = "forkserver" in get_all_start_methods()


def begin_server(module: str = _MODULE) -> None:
    """Begin to import what processes need, half a second, before any is asked for. Once in a process."""
    if _HAS_SERVER:
        forkserver.set_forkserver_preload([module])
        forkserver.ensure_running()


FIRST = 2
"""Processes that a command needs before its first measurement: one ranks, one builds what runs today."""


class Processes:
    """So many processes, each of which imports a module, and calls its `get_ready` if it has one, before there is work.
    Used in a `with` block. `start` starts the first ones, and later the others, which would slow this process down.
    """

    def __init__(self, workers: int, module: str = _MODULE) -> None:
        self.workers, self._module = workers, module
        self._context: Any = get_context("forkserver" if _HAS_SERVER else "spawn")
        self._life, self._end = self._context.Pipe(duplex=False)
        self._work: SimpleQueue[tuple[Future[Any], Job]] = SimpleQueue()
        self._lock = threading.Lock()
        self._serving = 0
        self._running: dict[int, BaseProcess] = {}
        self._is_closed = False

    def start(self, count: int) -> None:
        """Have so many processes, at most all."""
        with self._lock:
            while self._serving < min(count, self.workers) and not self._is_closed:
                self._serving += 1
                threading.Thread(target=self._serve, daemon=True).start()

    def call(self, work: Callable[..., Result], *given: object) -> Future[Result]:
        """`work(*given)` in one of the processes. Raises BrokenProcessPool if that died of it, or all are closed."""
        future: Future[Result] = Future()
        self._work.put((future, (work, given)))
        if self._is_closed:
            self._drop()
        elif not self._serving:
            self.start(1)
        return future

    def close(self) -> None:
        """Ends the processes now, whatever they are at."""
        self._is_closed = True  # seen by threads that wait for the lock
        with self._lock:
            for process in self._running.values():
                if process.is_alive():  # else its number may be another's by now
                    process.kill()
        self._end.close()
        self._drop()

    def _drop(self) -> None:
        """What no process will take any more."""
        while not self._work.empty():
            with suppress(Empty, InvalidStateError):
                self._work.get_nowait()[0].set_exception(BrokenProcessPool("The processes are closed."))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve(self) -> None:
        """Hand work to a process, and begin another one where it dies."""
        while (far_end := self._started()) is not None:
            while True:
                future, job = self._work.get()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    far_end.send(job)
                    is_good, answer = far_end.recv()
                except (EOFError, OSError):
                    future.set_exception(BrokenProcessPool("The process that worked on it has died."))
                    break
                except Exception as failure:  # the work, or its answer, cannot travel
                    future.set_exception(failure)
                    continue
                future.set_result(answer) if is_good else future.set_exception(answer)

    def _started(self) -> Connection | None:
        """The near end of a pipe to a new process; None where there shall be no more."""
        near: Connection
        near, far = self._context.Pipe()
        given = far, self._life, self._module, dict(os.environ)
        process = self._context.Process(target=_serve_jobs, args=given, daemon=True)
        with self._lock:
            if self._is_closed:
                return None
            process.start()
            self._running[threading.get_ident()] = process
        far.close()
        return near


# -- in a process --------------------------------------------------------------------------------------------------


def _serve_jobs(jobs: Connection, life: Connection, module: str, environment: dict[str, str]) -> None:
    os.environ.clear()  # that of the server is as old as the server
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that measures
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    getattr(import_module(module), "get_ready", bool)()
    with suppress(EOFError, OSError):  # the process that measures has ended
        while True:
            work, given = jobs.recv()
            try:
                answer: tuple[bool, Any] = True, work(*given)
            except Exception as failure:  # is the answer
                answer = False, failure
            jobs.send(answer)


def _end_with(life: Connection) -> None:
    life.poll(None)
    os._exit(0)
