"""A thread that ends the process when a peer never comes: a stream that waits for a flag would wait for ever.

`torch.distributed` does the same for its collectives, which do not know of these flags.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any


class Watchdog:
    """Watches the last of some calls.

    finished: whether the last call has ended on the GPU. timeout_s: that a call may take when no other follows it.
    expired: what is done then, once.
    """

    def __init__(self, finished: Callable[[], bool], timeout_s: float, expired: Callable[[], None]) -> None:
        self._finished, self._timeout_s, self._expired = finished, timeout_s, expired
        self._calls = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def call(self) -> None:
        """A call was started. Wakes nobody: a thread that runs takes the interpreter from the one that calls."""
        self._calls += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="tilewright watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """No further calls are watched."""
        self._stopped.set()

    def _watch(self) -> None:
        _never_disturb_captures()
        seen, since = -1, 0.0
        while not self._stopped.wait(min(self._timeout_s / 20, 1.0)):
            if self._calls != seen:
                seen, since = self._calls, time.monotonic()
            elif self._finished():
                since = time.monotonic()
            elif time.monotonic() - since > self._timeout_s:
                self._expired()
                return


def _never_disturb_captures() -> None:
    """Asking for an event in one thread would else break the capture of a CUDA graph in another."""
    try:
        from cuda.bindings import driver

        driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    except (ImportError, RuntimeError):  # no driver
        return


def abort(group: Any, rank: int, timeout_s: float) -> None:
    """End the process, as the watchdog of `torch.distributed` does: results would have no meaning."""
    print(
        f"tilewright.distributed: rank {rank} of group {group} waited {timeout_s:.0f} s for data of another rank, "
        "which has died or does not make the same calls. The process ends.",
        file=sys.stderr,
        flush=True,
    )
    os.abort()
