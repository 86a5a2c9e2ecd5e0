"""The first candidate of a search: chosen and built by other processes as soon as the driver tells which GPU there is,
while this process opens it and imports what a search needs, nothing of which is imported here."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.errors import LaunchError
from tilewright.runtime.driver import GpuFacts, gpu_problem
from tilewright.tuner.processes import Processes

if TYPE_CHECKING:
    from tilewright.device.spec import DeviceSpec
    from tilewright.winners.plan_config import PlanConfig

Asked = tuple[int, int, int, str, str | None, str]
"""m, n, k, the format of A and B, that of C, and the order: as `fleet.problem` takes them."""


@dataclass(frozen=True, slots=True)
class First:
    """A plan, and the same compiled (`compiling.Prepared`) where that has been begun. others: the first plans by their
    estimates, for which nothing before the first measurement waits."""

    plan: PlanConfig
    built: Future[Any] | None = None
    others: Future[list[PlanConfig]] | None = None


_OTHERS = 12
"""Plans that are compiled before all candidates are ranked."""


def begun(processes: Processes, asked: Asked) -> First:
    """What `matmul` runs today on the GPU at hand, being built. Raises TilewrightError where there is no GPU, or it is
    no problem."""
    if (missing := gpu_problem()) is not None:
        raise LaunchError(missing)
    from tilewright.runtime.probe import probe

    gpu = GpuFacts(0)
    spec = probe(gpu)
    plan = processes.call(_chosen, asked, spec).result()
    built = processes.call(_built, asked, spec, gpu.arch, plan)
    return First(plan, built, processes.call(_likely, asked, spec))


def _chosen(asked: Asked, spec: DeviceSpec) -> PlanConfig:  # in one of the processes
    from tilewright.planning.on_paper import version_of
    from tilewright.tuner.fleet import problem
    from tilewright.tuner.space import todays_plan
    from tilewright.winners.lookup import Lookup

    return todays_plan(problem(*asked), spec, Lookup(version_of))


def _likely(asked: Asked, spec: DeviceSpec) -> list[PlanConfig]:
    from tilewright.tuner.fleet import problem
    from tilewright.tuner.space import likely_plans

    return likely_plans(problem(*asked), spec, _OTHERS)


def _built(asked: Asked, spec: DeviceSpec, arch: str, plan: PlanConfig) -> Any:
    from tilewright.tuner.compiling import Work, built
    from tilewright.tuner.fleet import problem

    return built(Work(problem(*asked), spec, None, arch), plan)
