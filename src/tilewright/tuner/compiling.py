"""Candidates looked at and compiled in processes of their own, while the GPU measures in this one.

Processes and not threads: most of the time to a kernel is Python. They are started afresh (`spawn`: CUDA does not
survive a fork) and end with this one, however it ends, because each waits for the far end of a pipe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilewright.artifacts import Cubin, CudaSource
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.ladders import find_rung
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import grid_of
from tilewright.winners.keys import kernel_version
from tilewright.winners.order import ReductionOrder, order_of
from tilewright.tuner.rank import Analytical, Look, look
from tilewright.tuner.space import Candidate, Space

_LOOKS_A_TASK = 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """A candidate, compiled: all that a launch needs."""

    candidate: Candidate
    source: CudaSource
    cubin: Cubin
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    order: str

    @property
    def kernel(self) -> str:
        return kernel_version(self.source)


def prepare(space: Space, candidate: Candidate, arch: str, cache: CubinCache) -> Prepared:
    """Raises TilewrightError for a candidate that is no kernel, or that the compiler refuses."""
    reasons = space.reasons(candidate)
    if reasons:
        raise TilewrightError(reasons[0])
    built = space.build(candidate)
    grid, block = grid_of(built.kernel, built.gemm), built.kernel.block
    return Prepared(candidate, built.source, built.compile(arch, cache=cache), grid, block, order_of(built).name)


class Compilers:
    """Processes that build the candidates of one space. Used in a `with` block."""

    def __init__(self, space: Space, arch: str, workers: int, *, cache: Path | None = None) -> None:
        self.workers = workers
        self._ask = (space.gemm, space.spec, tuple(space.rungs), space.like, arch, cache)
        self._reader, self._writer = get_context("spawn").Pipe(duplex=False)
        self._pool = self._started()

    @property
    def ahead(self) -> int:
        """Candidates that are worth having in work: each process busy, and some finished."""
        return 2 * self.workers + 2

    def looks(self, candidates: Sequence[Candidate]) -> list[Future[list[Look]]]:
        """Candidates with their predictions, a few at a time."""
        parts = range(0, len(candidates), _LOOKS_A_TASK)
        return [self._pool.submit(_looks, candidates[at : at + _LOOKS_A_TASK]) for at in parts]

    def submit(self, candidate: Candidate) -> Future[Prepared]:
        """The candidate compiled; its result raises TilewrightError for one that cannot be."""
        from concurrent.futures.process import BrokenProcessPool

        try:
            return self._pool.submit(_prepared, candidate)
        except BrokenProcessPool:  # the compiler took its process down with it
            self._pool = self._started()
            return self._pool.submit(_prepared, candidate)

    def close(self) -> None:
        """Ends the processes now, whatever they are at."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._writer.close()
        self._reader.close()

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self) -> ProcessPoolExecutor:
        start = (self._reader, *self._ask)
        return ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=_start, initargs=start)


@dataclass(frozen=True)
class _Work:
    space: Space
    arch: str
    cache: CubinCache


_WORK: list[_Work] = []
"""Of this process, if it is one of the compilers."""


def _start(
    life: Connection,
    gemm: Gemm,
    spec: DeviceSpec,
    rungs: Iterable[str],
    like: ReductionOrder | None,
    arch: str,
    cache: Path | None,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that measures
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    space = Space(gemm, spec, [find_rung(name) for name in rungs], like=like)
    _WORK[:] = [_Work(space, arch, CubinCache(cache))]


def _end_with(life: Connection) -> None:
    life.poll(None)
    os._exit(0)


def _looks(candidates: Sequence[Candidate]) -> list[Look]:
    (work,) = _WORK
    model: Any = Analytical(work.space)
    return [look(work.space, model, candidate) for candidate in candidates]


def _prepared(candidate: Candidate) -> Prepared:
    (work,) = _WORK
    try:
        return prepare(work.space, candidate, work.arch, work.cache)
    except TilewrightError as refusal:
        raise TilewrightError(refusal.headline) from None  # not every kind survives the way between processes
    except Exception as bug:  # one candidate's, and no reason to lose the search
        raise TilewrightError(f"a bug in tilewright: {type(bug).__name__}: {bug}") from None
