"""Calls timed in stretches on a card that has worked for a second: what power and heat leave of them.

Stretches of all calls are interleaved: of the same call, one after the other, they scatter by 5 %.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from tilewright.bench.clocks import ClockLog
from tilewright.suite.timing import Replay, Timer, Times

STRETCH_S, ROUNDS, WARM_S = 0.25, 4, 1.0
GRAPH_US = 50_000.0
"""Long beside the millisecond in which a replay is enqueued."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """us: of a call, the median of the later halves; each_us: the median of the later half of each stretch, in order.
    clock_mhz, power_w: medians; None where they cannot be read."""

    us: float
    each_us: tuple[float, ...]
    clock_mhz: float | None
    power_w: float | None


def stretches_of(
    timer: Timer,
    calls: Mapping[str, Callable[[], object]],
    times: Mapping[str, Times],
    first: str,
    gpu_uuid: str,
    *,
    rounds: int = ROUNDS,
    warm_s: float = WARM_S,
) -> dict[str, Stretch]:
    """Some stretches of each call. times: of single calls. first: the call that warms the card up. gpu_uuid: the
    card's. rounds: stretches of a call. warm_s: for how long the card works before, less where it has just worked."""
    graphs = {name: timer.capture(call, max(1, int(GRAPH_US / times[name].median_us))) for name, call in calls.items()}
    later: dict[str, list[list[float]]] = {name: [] for name in calls}
    clocks: dict[str, list[float]] = {name: [] for name in calls}
    powers: dict[str, list[float]] = {name: [] for name in calls}
    order, rng = list(calls), random.Random(0)
    try:
        _run_for(graphs[first], warm_s)
        for _ in range(rounds):
            rng.shuffle(order)
            for name in order:
                with ClockLog(gpu_uuid) as log:
                    each = _run_for(graphs[name], STRETCH_S)
                later[name].append(each[len(each) // 2 :])
                clocks[name] += log.clocks_mhz
                powers[name] += log.powers_w
    finally:
        for graph in graphs.values():
            graph.close()
    return {
        name: Stretch(
            statistics.median(chain.from_iterable(each)),
            tuple(map(statistics.median, each)),
            _median(clocks[name]),
            _median(powers[name]),
        )
        for name, each in later.items()
    }


def _median(some: list[float]) -> float | None:
    return statistics.median(some) if some else None


def _run_for(graph: Replay, seconds: float) -> list[float]:
    """Microseconds a call of each replay in so many seconds."""
    begin, found = time.monotonic(), []
    while time.monotonic() - begin < seconds:
        found.append(graph.time_us())
    return found
