"""Candidates timed within some tens of milliseconds, while a user waits: what `autotune` measures with.

As in `protocol`, each candidate is a CUDA graph of several launches, and the graphs are replayed in turn. The graphs
are shorter, the rounds fewer, and a candidate that is far behind when it first runs is timed no further.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from tilewright.errors import LaunchError
from tilewright.runtime.driver import Gpu, driver_answer
from tilewright.runtime.timer import LaunchGraph, time_launches

ROUNDS = 3
GRAPH_MS = 2.0
MOST_LAUNCHES = 100
FAR_BEHIND = 1.5
"""A candidate that takes longer than the best by this factor in its first runs is left out. The host starts each of
these launches, so that they tell less than a graph."""

Copy = tuple[int, int, int]
"""To which address, from which, and how many bytes."""


def times_us(gpu: Gpu, stream: int, copies: Sequence[Copy], candidates: Sequence[Callable[[int], None]]) -> list[float]:
    """Microseconds of each candidate; infinite for one that fails or is far behind.

    stream: whose work must be done first, by its address. copies: made before anything runs. candidates: each starts
    one launch on the stream whose address it is given.
    """
    from cuda.bindings import driver

    doing = "measuring candidates"
    ready = driver_answer(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING), doing)
    try:
        driver_answer(driver.cuEventRecord(ready, stream), doing)
        driver_answer(driver.cuStreamWaitEvent(gpu.stream.handle, ready, 0), doing)
        for to, start, size_bytes in copies:
            driver_answer(driver.cuMemcpyDtoDAsync(to, start, size_bytes, gpu.stream.handle), doing)
        return _timed(gpu, candidates)
    finally:
        driver_answer(driver.cuStreamSynchronize(gpu.stream.handle), doing)
        driver.cuEventDestroy(ready)


def _timed(gpu: Gpu, candidates: Sequence[Callable[[int], None]]) -> list[float]:
    handle = int(gpu.stream.handle)
    first: dict[int, float] = {}
    for number, candidate in enumerate(candidates):
        try:
            candidate(handle)  # loads what is loaded at the first launch
            first[number] = time_launches(gpu.stream, lambda start=candidate: start(handle), launches=4)  # type: ignore[misc]
        except LaunchError:
            continue
    times = [float("inf")] * len(candidates)
    best = min(first.values(), default=0.0)
    graphs: dict[int, LaunchGraph] = {}
    for number, us in first.items():
        if us <= FAR_BEHIND * best:
            launches = int(min(MOST_LAUNCHES, max(1, round(GRAPH_MS * 1e3 / max(us, 0.5)))))
            start = candidates[number]
            graphs[number] = LaunchGraph.capture(gpu.stream, lambda start=start: start(handle), launches=launches)  # type: ignore[misc]
    rounds = [{number: graph.time(gpu.stream) for number, graph in graphs.items()} for _ in range(ROUNDS)]
    for number, graph in graphs.items():
        times[number] = statistics.median(one[number] for one in rounds)
        graph.close()
    return times
