"""The flags by which the device chooses between two plans of a call, kept so that they can be read behind it.

Launches of one stream follow each other, so that calls of a kind share flags on a stream: kernels clear, raise and read
them in order. Each recording of a CUDA graph has flags of its own, as its replays may run beside any stream. They are
memory of ours: what PyTorch allocates while it records belongs to the graph.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import F32
from tilewright.errors import LaunchError
from tilewright.runtime.driver import Gpu
from tilewright.runtime.memory import DeviceArray

FLAG_BYTES = 4

_PAIR_BYTES = 2 * FLAG_BYTES
"""The flags of A and of B, of one launch."""

_CHUNK_BYTES = 64 << 10

_SPARE_BYTES = 16 << 10
"""Below which there is another chunk, before a recording needs it: memory cannot be allocated then."""

_PER_THREAD = 2
"""The address of the stream that is another one in each thread (CU_STREAM_PER_THREAD)."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The flags of some launches on the device. start: bytes from the beginning of the memory."""

    memory: DeviceArray
    start: int
    count: int

    @property
    def address(self) -> int:
        """Of the flag of A of the first launch; that of B follows."""
        return self.memory.pointer + self.start

    def raised(self) -> list[tuple[bool, bool]]:
        """Whether those of A and of B are raised. The GPU must have done its work."""
        words = self.memory.download()[self.start // FLAG_BYTES :][: 2 * self.count]
        return [(bool(a), bool(b)) for a, b in words.reshape(-1, 2)]


class _Room:
    """Memory of a GPU for flags. It is kept, and what was given out is never given again: a graph may write it at any
    time, whoever forgot the call."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._lock = gpu, threading.Lock()
        self._kept: list[DeviceArray] = []
        self._next = self._end = 0

    def pairs(self, count: int, *, capturing: bool) -> Pairs:
        """Flags of some launches. Raises LaunchError where a stream is recording and there are none left."""
        size_bytes = count * _PAIR_BYTES
        with self._lock:
            left_bytes = self._end - self._next
            if left_bytes < size_bytes or (left_bytes < _SPARE_BYTES and not capturing):
                if capturing:
                    raise LaunchError(
                        "The stream is recording a CUDA graph, and there is no memory left for the flags of this call.",
                        note="memory cannot be allocated while a graph is recorded.",
                        hint="make the same call once before the capture.",
                    )
                self._next, self._end = 0, max(_CHUNK_BYTES, 2 * size_bytes)
                with self._gpu.as_current():
                    self._kept.append(DeviceArray(self._gpu, (self._end // FLAG_BYTES,), F32.storage))
            start, self._next = self._next, self._next + size_bytes
            return Pairs(self._kept[-1], start, count)


class GuardFlags:
    """The flags of calls that look alike. count: guarded launches of a call."""

    def __init__(self, gpu: Gpu, count: int) -> None:
        self._room, self._count = room_of(gpu), count
        self._of_stream: dict[tuple[int, int], Pairs] = {}
        self.last: Pairs | None = None

    def of_call(self, library: Any, device: int) -> Pairs:
        """Those of a call that is made now, on the library's stream."""
        stream = library.stream(device)
        if library.capturing():
            self.last = self._room.pairs(self._count, capturing=True)
            return self.last
        key = stream, threading.get_ident() if stream == _PER_THREAD else 0
        found = self._of_stream.get(key)
        if found is None:
            found = self._of_stream[key] = self._room.pairs(self._count, capturing=False)
        self.last = found
        return found


_ROOMS: dict[int, _Room] = {}

os.register_at_fork(after_in_child=_ROOMS.clear)  # CUDA does not work there


def room_of(gpu: Gpu) -> _Room:
    """The memory for flags of a GPU."""
    return _ROOMS.setdefault(gpu.index, _Room(gpu))
