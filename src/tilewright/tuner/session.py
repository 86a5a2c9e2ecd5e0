"""A whole search of one problem: what there is, ranked, then `Tuning` over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass
from math import inf
from time import monotonic

from tilewright.tuner.compiling import Compilers
from tilewright.tuner.measure import GpuMeasurer
from tilewright.tuner.rank import Look, ranked, seeds, to_look_at
from tilewright.tuner.space import Space
from tilewright.tuner.storage import check_storage
from tilewright.tuner.study import TuningStudy
from tilewright.tuner.tune import Outcome, Progress, Tuning
from tilewright.winners.choice import Choice
from tilewright.winners.keys import Key, sources_version

LOOKS_PER_WORKER = 60
"""Candidates that are ranked: about a tenth of a second each."""

_RANKING_SHARE = 0.2
"""Of the budget, at most."""

SEEDS = 16
"""Measured by rank, before the search learns from what it measured."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """order: legal candidates, the best predicted first. refused: those that are no kernels here, and why.

    unseen: candidates that there was no time to look at.
    """

    order: tuple[Look, ...]
    refused: tuple[Look, ...]
    unseen: tuple[Choice, ...]


def rank(
    space: Space, compilers: Compilers, *, seconds: float = inf, meanwhile: Callable[[], None] = lambda: None
) -> Ranking:
    """As much of a space as the compilers can look at in so many seconds, in order; at least something.

    meanwhile: runs here until then.
    """
    begun = monotonic()
    futures = compilers.looks(to_look_at(space, LOOKS_PER_WORKER * compilers.workers))
    meanwhile()
    wait(futures, timeout=None if seconds == inf else max(0.0, seconds - (monotonic() - begun)))
    for future in futures[1:]:
        future.cancel()
    wait(futures[:1])
    looks = [look for future in futures if future.done() and not future.cancelled() for look in future.result()]
    seen = {look.candidate.key for look in looks}
    unseen = tuple(candidate for candidate in space.candidates if candidate.key not in seen)
    return Ranking(tuple(ranked(looks)), tuple(look for look in looks if look.refusal), unseen)


def study_name(space: Space) -> str:
    """Searches of one problem on one kind of GPU, in one space, by the same sources, are one study."""
    return f"{Key.of(space.spec, space.gemm)}; space {space.digest}, sources {sources_version()}"


def tune(
    space: Space,
    measurer: GpuMeasurer,
    *,
    storage: str,
    seconds: float,
    workers: int,
    started: float | None = None,
    now: Callable[[], float] = monotonic,
    rivals: Sequence[Choice] = (),
    progress: Progress = lambda state: None,
) -> Outcome:
    """Search a space on a GPU. storage: a URL. seconds: of `now` since `started`, all included."""
    started = now() if started is None else started
    check_storage(storage)
    with Compilers(space, measurer.gpu.arch, workers) as compilers:
        ranking = rank(space, compilers, seconds=_RANKING_SHARE * seconds, meanwhile=measurer.warm)
        candidates = [*(one.candidate for one in ranking.order), *ranking.unseen]
        rivals = [rival for rival in rivals if rival in space]
        first = [*rivals, *seeds(space, ranking.order, SEEDS)]
        with closing(TuningStudy(storage, study_name(space), candidates, first)) as study:
            tuning = Tuning(
                *(study, compilers, measurer),
                seconds=seconds,
                started=started,
                now=now,
                rivals=tuple(rivals),
                progress=progress,
            )
            return tuning.run()
