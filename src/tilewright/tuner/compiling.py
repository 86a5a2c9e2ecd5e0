"""Candidates ranked and compiled, in processes of their own, while the GPU measures in this one.

Processes and not threads: most of the time to a kernel is Python. They are started afresh (`spawn`: CUDA does not
survive a fork) and end with this one, however it ends, because each waits for the far end of a pipe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import sleep
from typing import Any, Self

from tilewright.artifacts import Cubin
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.on_paper import PaperLaunch, launches_of, version_of_plan
from tilewright.planning.plan import Plan
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.tuner.space import Candidate, Space, make_space
from tilewright.winners.order import ReductionOrder
from tilewright.winners.plan_config import PlanConfig


@dataclass(frozen=True, slots=True)
class CompiledLaunch:
    """A launch of machine code, as it travels between processes."""

    paper: PaperLaunch
    cubin: Cubin


@dataclass(frozen=True, slots=True)
class Prepared:
    """A candidate, compiled: all that its launches need. order: `ReductionOrder.name`. kernel: `kernel_version`."""

    candidate: PlanConfig
    launches: tuple[CompiledLaunch, ...]
    plan: Plan
    order: str
    kernel: str

    @property
    def registers(self) -> int:
        """Of the kernel that uses the most."""
        return max(launch.cubin.resources.registers for launch in self.launches)


def prepare(space: Space, candidate: PlanConfig, arch: str, cache: CubinCache) -> Prepared:
    """Raises TilewrightError for a candidate that is not a kernel, or that the compiler refuses."""
    reasons = space.reasons(candidate)
    if reasons:
        raise TilewrightError(reasons[0])
    plan = space.paper(candidate).plan
    launches = tuple(
        CompiledLaunch(paper, compile_cuda(paper.source, arch, cache=cache)) for paper in launches_of(plan)
    )
    return Prepared(candidate, launches, plan, space.order(candidate).name, version_of_plan(plan))


_FIRST = 2
"""Processes that a command needs before its first measurement: one ranks, one builds what runs today."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is built: plans of one problem for one kind of device. like: as of `Space`. cache: a folder of kernels."""

    gemm: Gemm
    spec: DeviceSpec
    like: ReductionOrder | None
    arch: str
    cache: Path | None = None


class Compilers:
    """So many processes that rank and build candidates, of one problem after another. Used in a `with` block.

    They take a second to import what they need, so the first ones are started at once, before there is work for them;
    the others, which would slow this process down, with `start_all`.
    """

    def __init__(self, workers: int, *, cache: Path | None = None) -> None:
        self.workers, self.cache = workers, cache
        self._reader, self._writer = get_context("spawn").Pipe(duplex=False)
        self._pool = self._started()
        self._start(min(_FIRST, workers))

    def of(self, gemm: Gemm, spec: DeviceSpec, arch: str, like: ReductionOrder | None = None) -> Builds:
        """The candidates of one problem."""
        return Builds(self, Work(gemm, spec, like, arch, self.cache))

    def ranked(
        self, gemm: Gemm, spec: DeviceSpec, *, family: str | None, like: ReductionOrder | None, today: PlanConfig
    ) -> Future[tuple[Candidate, ...]]:
        """`Space.ranked` of a problem, by one of the processes; its result raises as `make_space`."""
        return self._pool.submit(_ranked, gemm, spec, family, like, today)

    def build(self, work: Work, candidate: PlanConfig) -> Future[Prepared]:
        """The candidate compiled in one of the processes; its result raises TilewrightError for one that cannot be."""
        try:
            return self._pool.submit(_prepared, work, candidate)
        except BrokenProcessPool:  # the compiler took its process down with it
            self._pool = self._started()
            return self._pool.submit(_prepared, work, candidate)

    def close(self) -> None:
        """Ends the processes now, whatever they are at."""
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

    def _started(self) -> ProcessPoolExecutor:
        begin: Any = _begin
        return ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=begin, initargs=(self._reader,))

    def start_all(self) -> None:
        """Start the other processes, while this one goes on."""
        threading.Thread(target=self._start, args=(self.workers,), daemon=True).start()

    def _start(self, count: int) -> None:
        """A pool starts a process for each piece of work that finds none idle."""
        with suppress(RuntimeError):  # the search has ended already
            for _ in range(count):
                self._pool.submit(os.getpid)


class Builds:
    """The candidates of one problem, built by processes."""

    def __init__(self, compilers: Compilers, work: Work) -> None:
        self._compilers, self._work = compilers, work
        self._begun: dict[PlanConfig, Future[Prepared]] = {}

    @property
    def ahead(self) -> int:
        """Candidates that are worth having in work: each process busy, and some finished."""
        return 2 * self._compilers.workers + 2

    def begin(self, candidates: Iterable[PlanConfig]) -> None:
        """Begin with the candidates that will be submitted first."""
        for candidate in candidates:
            if candidate not in self._begun:
                self._begun[candidate] = self._compilers.build(self._work, candidate)

    def submit(self, candidate: PlanConfig) -> Future[Prepared]:
        """As `Compilers.build`."""
        return self._begun.pop(candidate, None) or self._compilers.build(self._work, candidate)


# -- in the processes ----------------------------------------------------------------------------------------------


def _begin(life: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that measures
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()


def _end_with(life: Connection) -> None:
    life.poll(None)
    os._exit(0)


def _ranked(
    gemm: Gemm, spec: DeviceSpec, family: str | None, like: ReductionOrder | None, today: PlanConfig
) -> tuple[Candidate, ...]:
    return make_space(gemm, spec, family=family, like=like, today=today).ranked


@lru_cache(1)
def _space(work: Work) -> tuple[Space, CubinCache]:
    return Space(work.gemm, work.spec, (), like=work.like), CubinCache(work.cache)


def _prepared(work: Work, candidate: PlanConfig) -> Prepared:
    try:
        space, cache = _space(work)
        return prepare(space, candidate, work.arch, cache)
    except TilewrightError:
        raise
    except Exception as failure:  # a bug is no reason to lose the search
        raise TilewrightError(f"a bug in tilewright: {type(failure).__name__}: {failure}") from None
