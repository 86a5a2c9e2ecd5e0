"""Candidates compiled, in processes of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.artifacts import Cubin
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.on_paper import PaperLaunch, launches_of, version_of_plan
from tilewright.planning.plan import Plan
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.tuner.processes import Processes, told
from tilewright.tuner.space import Space
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


class Compilers(Processes):
    """Processes that build the candidates of one problem."""

    def __init__(
        self,
        gemm: Gemm,
        spec: DeviceSpec,
        arch: str,
        workers: int,
        *,
        like: ReductionOrder | None = None,
        cache: Path | None = None,
    ) -> None:
        super().__init__(workers, _start, gemm, spec, like, arch, cache)
        self._begun: dict[PlanConfig, Future[Prepared]] = {}
        self._all_started = False

    @property
    def ahead(self) -> int:
        """Candidates that are worth having in work: each process busy, and some finished."""
        return 2 * self.workers + 2

    def submit(self, candidate: PlanConfig) -> Future[Prepared]:
        """The candidate compiled; its result raises TilewrightError for one that cannot be."""
        return self._begun.pop(candidate, None) or self.call(_prepared, candidate)

    def begin(self, candidates: Iterable[PlanConfig] = ()) -> None:
        """Begin with the candidates that will be submitted first, and start all processes: a pool starts one for each
        piece of work that finds none idle, and a process takes a second to import what it needs."""
        for candidate in candidates:
            if candidate not in self._begun:
                self._begun[candidate] = self.call(_prepared, candidate)
        if not self._all_started:
            self._all_started = True
            threading.Thread(target=self._start_all, daemon=True).start()

    def _start_all(self) -> None:
        with suppress(RuntimeError):  # the search has ended already
            for _ in range(self.workers):
                self._pool.submit(os.getpid)


@dataclass(frozen=True)
class _Work:
    space: Space
    arch: str
    cache: CubinCache


_WORK: list[_Work] = []
"""Of this process, if it is one of the compilers."""


def _start(
    gemm: Gemm,
    spec: DeviceSpec,
    like: ReductionOrder | None,
    arch: str,
    cache: Path | None,
) -> None:
    _WORK[:] = [_Work(Space(gemm, spec, (), like=like), arch, CubinCache(cache))]


def _prepared(candidate: PlanConfig) -> Prepared:
    (work,) = _WORK
    try:
        return prepare(work.space, candidate, work.arch, work.cache)
    except Exception as failure:
        raise told(failure) from None
