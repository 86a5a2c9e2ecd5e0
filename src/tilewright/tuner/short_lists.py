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
from tilewright.tuner.rank import Look, look, ranked, spread
from tilewright.tuner.space import Space, make_space
from tilewright.tuner.table import CANDIDATES, Ready, Task
from tilewright.winners.choice import THIN, Choice

_ESTIMATED, _SPREAD = 12, 24
"""Plans that are looked at: the best by dispatch's estimate, and others, evenly spread."""


_NEAR = 1.5
"""A ladder whose best plan is predicted to take longer by more has nothing on the list."""


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
    fresh = [one for one in _some(space, task.number) if one not in task.known]
    looks = ranked(look(space, one) for one in fresh)
    first = task.today if task.best is None else task.best
    new = short_list(looks, first, CANDIDATES)
    if not new and task.best is not None:
        return Ready({}, {}, exhausted=True)
    prepared: dict[str, Prepared] = {}
    failures: dict[str, str] = {}
    for choice in (first, *new):
        try:
            prepared[str(choice)] = prepare(space, choice, arch, cache)
        except TilewrightError as refusal:
            failures[str(choice)] = refusal.headline
    return Ready(prepared, failures)


def _some(space: Space, number: int) -> list[Choice]:
    """What is looked at in the passes until this one: in each, more of the points."""
    defaults = [found for rung in space.rungs if (found := space.default(rung)) is not None]
    few_rows = [choice for choice in space.also if choice.rung == THIN]
    chosen = [*space.also[:_ESTIMATED], *few_rows, *defaults, *spread(space.candidates, _SPREAD * (number + 1))]
    return list(dict.fromkeys(chosen))


def short_list(looks: Sequence[Look], first: Choice, most: int) -> list[Choice]:
    """What is measured beside `first`: the best predicted of each ladder that comes near the best of all, then of each
    kind of tile, then whatever is left."""
    others = [one for one in looks if one.candidate != first]
    near = [one for one in others if one.predicted_us <= _NEAR * looks[0].predicted_us]
    of_ladders = {one.candidate.rung.partition("/")[0]: one for one in reversed(near)}
    of_kinds = {one.kind: one for one in reversed(others)}
    chosen: dict[Choice, None] = {}
    for group in (of_ladders.values(), of_kinds.values(), others):
        chosen |= dict.fromkeys(one.candidate for one in sorted(group, key=others.index))
    return list(chosen)[: most - 1]
