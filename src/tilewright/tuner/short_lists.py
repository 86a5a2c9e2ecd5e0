"""Short lists of many problems, ranked and compiled in processes of their own; one task a problem."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.tuner.compiling import Prepared, prepare
from tilewright.tuner.processes import Processes, told
from tilewright.tuner.space import NEAR, Candidate, make_space
from tilewright.tuner.table import CANDIDATES, Ready, Task
from tilewright.winners.plan_config import PlanConfig


class ShortLists(Processes):
    """Processes that make short lists for one kind of device."""

    def __init__(self, spec: DeviceSpec, arch: str, workers: int, *, cache: Path | None = None) -> None:
        super().__init__(workers, _start, spec, arch, cache)

    def submit(self, task: Task) -> Future[Ready]:
        return self.call(_listed, task)


@dataclass(frozen=True)
class _Work:
    spec: DeviceSpec
    arch: str
    cache: CubinCache


_WORK: list[_Work] = []


def _start(spec: DeviceSpec, arch: str, cache: Path | None) -> None:
    _WORK[:] = [_Work(spec, arch, CubinCache(cache))]


def _listed(task: Task) -> Ready:
    (work,) = _WORK
    try:
        return ready(task, work.spec, work.arch, work.cache)
    except Exception as failure:
        raise told(failure) from None


def ready(task: Task, spec: DeviceSpec, arch: str, cache: CubinCache) -> Ready:
    """The short list of a problem, compiled. Raises TilewrightError where there is no space."""
    space = make_space(task.problem.gemm, spec, today=task.today)
    fresh = [one for one in space.ranked if one.config not in task.known]
    first = task.today if task.best is None else task.best
    new = short_list(fresh, first, CANDIDATES)
    if not new and task.best is not None:
        return Ready({}, {}, exhausted=True)
    prepared: dict[str, Prepared] = {}
    failures: dict[str, str] = {}
    for config in (first, *new):
        try:
            prepared[str(config)] = prepare(space, config, arch, cache)
        except TilewrightError as refusal:
            failures[str(config)] = refusal.headline
    return Ready(prepared, failures)


def short_list(ranked: Sequence[Candidate], first: PlanConfig, most: int) -> list[PlanConfig]:
    """What is measured beside `first`: the best predicted of each family that comes near the best of all, then of each
    kind, then whatever is left."""
    others = [one for one in ranked if one.config != first]
    near = [one for one in others if one.predicted_us <= NEAR * ranked[0].predicted_us]
    of_families = {one.config.kernel.kind: one for one in reversed(near)}
    of_kinds = {one.kind: one for one in reversed(others)}
    chosen: dict[PlanConfig, None] = {}
    for group in (of_families.values(), of_kinds.values(), others):
        chosen |= dict.fromkeys(one.config for one in sorted(group, key=lambda one: (one.predicted_us, one.config.key)))
    return list(chosen)[: most - 1]
