"""How long launches take, measured on the GPU. Mechanism only: what is timed, and how often, is `bench`'s to say.

    time_launches   events around n launches; the host issues each, so short kernels show the host's pace
    LaunchGraph     n launches captured once into a CUDA graph; a replay costs the host one call, and its start
                    (some microseconds) is in the time: capture enough launches to make it small

`launch` is any function that gives work to `stream`. To rotate operands, let it take the next ones each call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Self

from tilewright.runtime.driver import driver_answer

_US_PER_MS = 1e3


def time_launches(stream: Any, launch: Callable[[], None], *, launches: int) -> float:
    """Microseconds per launch, the mean over `launches` launches issued one after another on `stream`."""

    def all_launches() -> None:
        for _ in range(launches):
            launch()

    return _elapsed_us(stream, all_launches) / launches


class LaunchGraph:
    """Launches captured into a CUDA graph, to be replayed without the host in between."""

    def __init__(self, executable: Any, launches: int) -> None:
        from cuda.bindings import driver

        self.launches = launches
        self._executable = executable
        self._free = weakref.finalize(self, driver.cuGraphExecDestroy, executable)
        self._free.atexit = False

    @classmethod
    def capture(cls, stream: Any, launch: Callable[[], None], *, launches: int) -> Self:
        """Call `launch` `launches` times while `stream` records instead of running.

        Raises LaunchError if the work cannot be captured, for instance because it waits or copies to the host.
        """
        from cuda.bindings import driver

        # Relaxed, so that a library may allocate or load a module meanwhile, as cuBLAS does at its first call.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        driver_answer(driver.cuStreamBeginCapture(stream.handle, mode), "capturing launches into a graph")
        try:
            for _ in range(launches):
                launch()
        finally:
            # A stream that is left capturing is of no more use, so the capture ends whatever happened.
            ended = driver.cuStreamEndCapture(stream.handle)
        graph = driver_answer(ended, f"building a graph of {launches} launches")
        try:
            executable = driver_answer(driver.cuGraphInstantiate(graph, 0), f"building a graph of {launches} launches")
        finally:
            driver.cuGraphDestroy(graph)
        return cls(executable, launches)

    def replay(self, stream: Any) -> None:
        """Start all launches on `stream` and return at once."""
        from cuda.bindings import driver

        driver_answer(driver.cuGraphLaunch(self._executable, stream.handle), "replaying a graph of launches")

    def time(self, stream: Any, *, replays: int = 1) -> float:
        """Microseconds per launch, the mean over `replays` replays issued one after another on `stream`."""

        def all_replays() -> None:
            for _ in range(replays):
                self.replay(stream)

        return _elapsed_us(stream, all_replays) / (replays * self.launches)

    def close(self) -> None:
        """Free the graph. Nothing happens the second time."""
        self._free()


def _elapsed_us(stream: Any, work: Callable[[], None]) -> float:
    """Microseconds between an event before and an event after what `work` gives to `stream`; waits for it."""
    from cuda.bindings import driver

    flags = driver.CUevent_flags.CU_EVENT_DEFAULT
    start = driver_answer(driver.cuEventCreate(flags), "creating a timing event")
    end = driver_answer(driver.cuEventCreate(flags), "creating a timing event")
    try:
        driver_answer(driver.cuEventRecord(start, stream.handle), "recording a timing event")
        work()
        driver_answer(driver.cuEventRecord(end, stream.handle), "recording a timing event")
        driver_answer(driver.cuEventSynchronize(end), "waiting for timed launches")
        elapsed_ms = driver_answer(driver.cuEventElapsedTime(start, end), "reading a timing event")
        return float(elapsed_ms) * _US_PER_MS
    finally:
        driver.cuEventDestroy(start)
        driver.cuEventDestroy(end)
