"""The flags by which the device chooses between two plans of a call, kept so that they can be read behind it.

Launches of one stream follow each other, so that calls of a kind share flags on a stream: kernels raise, read and lower
them in order. Each recording of a CUDA graph has flags of its own, as its replays may run beside any stream. They are
memory of ours: what PyTorch allocates while it records belongs to the graph.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import F32
from tilewright.errors import LaunchError
from tilewright.runtime.driver import Gpu
from tilewright.runtime.memory import DeviceArray

FLAG_BYTES = 4

FLAGS_BYTES = 3 * FLAG_BYTES
"""Of one launch: the flags of A and of B, and whether it fell back."""

_CHUNK_BYTES = 64 << 10

_SPARE_BYTES = 16 << 10
"""Below which there is another chunk, before a recording needs it: memory cannot be allocated then."""

_PER_THREAD = 2
"""The address of the stream that is another one in each thread (CU_STREAM_PER_THREAD)."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of some launches on the device. start: bytes from the beginning of the memory."""

    memory: DeviceArray
    start: int
    count: int

    @property
    def address(self) -> int:
        """Of the flag of A of the first launch; the others follow."""
        return self.memory.pointer + self.start

    def fell_back(self) -> list[bool]:
        """Whether the launches fell back. The GPU must have done its work."""
        words = self.memory.download()[self.start // FLAG_BYTES :][: self.count * FLAGS_BYTES // FLAG_BYTES]
        return [bool(word) for word in words[2 :: FLAGS_BYTES // FLAG_BYTES]]


class _Room:
    """Memory of a GPU for flags. It is kept, and what was given out is never given again: a graph may write it at any
    time, whoever forgot the call."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._lock = gpu, threading.Lock()
        self._kept: list[DeviceArray] = []
        self._next = self._end = 0

    def flags(self, count: int, *, capturing: bool) -> Flags:
        """Flags of some launches, none raised. Raises LaunchError where a stream is recording and there are none
        left."""
        size_bytes = count * FLAGS_BYTES
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
                    self._kept.append(DeviceArray.of(self._gpu, np.zeros(self._end // FLAG_BYTES, F32.storage)))
            start, self._next = self._next, self._next + size_bytes
            return Flags(self._kept[-1], start, count)


class GuardFlags:
    """The flags of calls that look alike. count: guarded launches of a call."""

    def __init__(self, gpu: Gpu, count: int) -> None:
        self._room, self._count = room_of(gpu), count
        self._of_stream: dict[tuple[int, int], Flags] = {}
        self.last: Flags | None = None

    def of_call(self, library: Any, device: int) -> Flags:
        """Those of a call that is made now, on the library's stream."""
        stream = library.stream(device)
        if library.capturing():
            self.last = self._room.flags(self._count, capturing=True)
            return self.last
        key = stream, threading.get_ident() if stream == _PER_THREAD else 0
        found = self._of_stream.get(key)
        if found is None:
            found = self._of_stream[key] = self._room.flags(self._count, capturing=False)
        self.last = found
        return found


_ROOMS: dict[int, _Room] = {}

os.register_at_fork(after_in_child=_ROOMS.clear)  # CUDA does not work there


def room_of(gpu: Gpu) -> _Room:
    """The memory for flags of a GPU."""
    return _ROOMS.setdefault(gpu.index, _Room(gpu))
