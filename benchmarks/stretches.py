"""Calls timed in stretches of half a second on a card that has worked for a second: what power and heat leave of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.bench.clocks import ClockLog
from tilewright.suite.timing import Replay, Timer, Times

STRETCH_S, WARM_S = 0.5, 1.0
GRAPH_US = 20_000.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """us: of a call, the median of the second half. clock_mhz, power_w: medians; None where they cannot be read."""

    us: float
    clock_mhz: float | None
    power_w: float | None


def stretches_of(
    timer: Timer, calls: Mapping[str, Callable[[], object]], times: Mapping[str, Times], first: str, gpu_uuid: str
) -> dict[str, Stretch]:
    """A stretch of each call. times: of single calls. first: the call that warms the card up. gpu_uuid: the card's."""
    graphs = {name: timer.capture(call, max(1, int(GRAPH_US / times[name].median_us))) for name, call in calls.items()}
    try:
        found: dict[str, Stretch] = {}
        _run_for(graphs[first], WARM_S)
        for name, graph in graphs.items():
            with ClockLog(gpu_uuid) as log:
                each = _run_for(graph, STRETCH_S)
            found[name] = Stretch(statistics.median(each[len(each) // 2 :]), log.median_clock_mhz, log.median_power_w)
        return found
    finally:
        for graph in graphs.values():
            graph.close()


def _run_for(graph: Replay, seconds: float) -> list[float]:
    """Microseconds a call of each replay in so many seconds."""
    begin, found = time.monotonic(), []
    while time.monotonic() - begin < seconds:
        found.append(graph.time_us())
    return found
