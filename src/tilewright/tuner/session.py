"""A whole search of one problem: its space, then `Tuning` over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import chain, islice, zip_longest
from time import monotonic
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.tuner.compiling import Builds, Compilers, Prepared
from tilewright.tuner.first import First
from tilewright.tuner.measure import GpuLost, GpuMeasurer
from tilewright.tuner.space import NEAR, Space
from tilewright.tuner.study import TuningStudy
from tilewright.tuner.tune import Early, Outcome, Progress, Tuning
from tilewright.winners.keys import Key, sources_version
from tilewright.winners.order import ReductionOrder
from tilewright.winners.plan_config import PlanConfig

SEEDS = 16
"""Measured by their price, before the search learns from what it measured."""

_ALIKE = 2
"""Candidates of one kind among the first: they are predicted alike."""


def seeds(space: Space, most: int = SEEDS) -> list[PlanConfig]:
    """What to measure first: the best predicted, few of each kind. Families alternate, as far as they come near the
    best of all: their prices are fitted apart, so which family is the fastest is what they tell the least about."""
    families: dict[str, list[PlanConfig]] = {}
    alike: Counter[object] = Counter()
    for one in space.ranked:
        family = one.config.kernel.kind
        if family not in families and one.predicted_us > NEAR * space.ranked[0].predicted_us:
            continue
        alike[one.kind] += 1
        if alike[one.kind] <= _ALIKE:
            families.setdefault(family, []).append(one.config)
    turns = chain.from_iterable(zip_longest(*families.values()))
    return list(islice((one for one in turns if one is not None), most))


def study_name(space: Space) -> str:
    """Searches of one problem on one kind of GPU, in one space, by the same sources, are one study."""
    return f"{Key.of(space.spec, space.gemm)}; space {space.digest}, sources {sources_version()}"


def begun(
    measurer: GpuMeasurer,
    spec: DeviceSpec,
    compilers: Compilers,
    *,
    like: ReductionOrder | None = None,
    first: First | None = None,
) -> Builds:
    """What needs no space to begin: the first candidate is compiled and the reference is computed, while this process
    goes on."""
    builds = compilers.of(measurer.gemm, spec, measurer.gpu.arch, like)
    if first is not None:
        builds.begin([first.plan], first.built)
    measurer.begin()
    return builds


def measured_early(builds: Builds, measurer: GpuMeasurer, candidate: PlanConfig) -> tuple[Early, ...]:
    """A candidate measured before there is a space; empty where it fails, of which the search will say why."""
    try:
        return (_early(builds.submit(candidate), measurer, candidate, monotonic),)
    except (TilewrightError, BrokenProcessPool):
        return ()


def _early(built: Future[Prepared], measurer: GpuMeasurer, candidate: PlanConfig, now: Callable[[], float]) -> Early:
    prepared = built.result()
    return Early(candidate, prepared, measurer.measure(prepared), now())


def measured_until(
    opened: Future[TuningStudy],
    builds: Builds,
    measurer: GpuMeasurer,
    candidates: Sequence[PlanConfig],
    now: Callable[[], float] = monotonic,
    *,
    spare: Collection[PlanConfig] = (),
) -> list[Early]:
    """Candidates measured as they are compiled, until a study is open: what it imports takes seconds where disks are
    cold and compilers start, in which the GPU would have no work. spare: need not be compiled behind that. Of those
    that fail the search will say why. Raises GpuLost, of which the study is told."""
    work = {one: builds.submit(one) for one in candidates}
    found: list[Early] = []
    with measurer.beside_imports():
        while work and not opened.done():
            awaited: list[Future[Any]] = [opened, *work.values()]
            wait(awaited, return_when=FIRST_COMPLETED)
            ready = next((one for one, future in work.items() if future.done()), None)
            if ready is None or opened.done():
                continue
            try:
                found.append(_early(work.pop(ready), measurer, ready, now))
            except GpuLost as lost:
                study = opened.result()
                if (claim := study.claim_of(ready)) is not None:
                    study.tell_failure(claim, lost.headline)
                raise
            except (TilewrightError, BrokenProcessPool):
                continue
    for candidate, future in work.items():
        if candidate not in spare or not future.cancel():
            builds.begin([candidate], future)
    return found


def tune(
    space: Space,
    builds: Builds,
    measurer: GpuMeasurer,
    *,
    storage: str,
    seconds: float,
    started: float | None = None,
    now: Callable[[], float] = monotonic,
    rivals: Sequence[PlanConfig] = (),
    early: Sequence[Early] = (),
    progress: Progress = lambda state: None,
) -> Outcome:
    """Search a space on a GPU. storage: a URL. seconds: of `now` since `started`, all included. rivals, early: as of
    `Tuning`."""
    started = now() if started is None else started
    rivals = [rival for rival in rivals if rival in space]
    first = [*rivals, *(one for one in seeds(space) if one not in rivals)]
    known = {one.candidate for one in early}
    more = [one for one in seeds(space, builds.ahead) if one not in first]
    likely = [one for one in (*first, *more) if one not in known][: builds.ahead]
    builds.begin(likely)
    with ThreadPoolExecutor(1) as beside:
        opened = beside.submit(lambda: TuningStudy(storage, study_name(space), space.candidates, first))
        early = [*early, *measured_until(opened, builds, measurer, likely, now, spare=more)]
    with closing(opened.result()) as study:
        tuning = Tuning(
            *(study, builds, measurer),
            seconds=seconds,
            started=started,
            now=now,
            rivals=tuple(rivals),
            early=early,
            progress=progress,
        )
        return tuning.run()
