"""Candidates ranked and compiled by other processes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewright.artifacts import Cubin
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.on_paper import PaperLaunch, launches_of, version_of_plan
from tilewright.planning.plan import Plan
from tilewright.problem.gemm import Gemm
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.nvrtc import compile_cuda, supported_architectures
from tilewright.tuner.processes import Processes
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


@dataclass(frozen=True, slots=True)
class Work:
    """What is built: plans of one problem for one kind of device. like: as of `Space`. cache: a folder of kernels."""

    gemm: Gemm
    spec: DeviceSpec
    like: ReductionOrder | None
    arch: str
    cache: Path | None = None


class Compilers:
    """Processes that rank and build candidates, of one problem after another. cache: a folder of kernels."""

    def __init__(self, processes: Processes, *, cache: Path | None = None) -> None:
        self.processes, self.cache = processes, cache

    def of(self, gemm: Gemm, spec: DeviceSpec, arch: str, like: ReductionOrder | None = None) -> Builds:
        """The candidates of one problem."""
        return Builds(self.processes, Work(gemm, spec, like, arch, self.cache))

    def ranked(
        self, gemm: Gemm, spec: DeviceSpec, *, family: str | None, like: ReductionOrder | None, today: PlanConfig
    ) -> Future[tuple[Candidate, ...]]:
        """`Space.ranked` of a problem, by one of the processes; its result raises as `make_space`."""
        return self.processes.call(_ranked, gemm, spec, family, like, today)


class Builds:
    """The candidates of one problem, built by processes."""

    def __init__(self, processes: Processes, work: Work) -> None:
        self._processes, self._work = processes, work
        self._begun: dict[PlanConfig, Future[Prepared]] = {}

    @property
    def ahead(self) -> int:
        """Candidates that are worth having in work: each process busy, and some finished."""
        return 2 * self._processes.workers + 2

    def begin(self, candidates: Iterable[PlanConfig], begun: Future[Prepared] | None = None) -> None:
        """Begin with the candidates that will be submitted first. begun: of the only one, where it is in work."""
        for candidate in candidates:
            if candidate not in self._begun:
                self._begun[candidate] = begun or self._processes.call(built, self._work, candidate)

    def submit(self, candidate: PlanConfig) -> Future[Prepared]:
        """The candidate compiled; its result raises TilewrightError for one that cannot be."""
        return self._begun.pop(candidate, None) or self._processes.call(built, self._work, candidate)


# -- in the processes ----------------------------------------------------------------------------------------------


def get_ready() -> None:
    """Load the compiler before there is work: that takes a tenth of a second."""
    with suppress(TilewrightError):  # whoever compiles says what is wrong
        supported_architectures()


def _ranked(
    gemm: Gemm, spec: DeviceSpec, family: str | None, like: ReductionOrder | None, today: PlanConfig
) -> tuple[Candidate, ...]:
    return make_space(gemm, spec, family=family, like=like, today=today).ranked


@lru_cache(1)
def _space(work: Work) -> tuple[Space, CubinCache]:
    return Space(work.gemm, work.spec, (), like=work.like), CubinCache(work.cache)


def built(work: Work, candidate: PlanConfig) -> Prepared:
    """A candidate, compiled. Raises TilewrightError, whatever is wrong."""
    try:
        space, cache = _space(work)
        return prepare(space, candidate, work.arch, cache)
    except TilewrightError:
        raise
    except Exception as failure:  # a bug is no reason to lose the search
        raise TilewrightError(f"a bug in tilewright: {type(failure).__name__}: {failure}") from None
