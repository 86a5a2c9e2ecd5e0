"""The state of a block as cells, and what changes of it from moment to moment."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Buffer
from tilewright.simulator.arithmetic import UNWRITTEN_INTEGER
from tilewright.simulator.recorder.recording import Changes, Region

_GAP_CELLS = 8
"""Runs with fewer unchanged cells between them are one: a run costs about as much as these."""


class Cells:
    """Regions of cells, the state that they are in, and the changes so far. NaN: nobody has written the cell."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._held: list[Array] = []
        self._shown: list[Array] | None = None
        self._count = 0
        self.values = 0
        """Values of all changes so far."""
        self._first: list[int] = [0]
        self._start: list[int] = []
        self._length: list[int] = []
        self._values: list[Array] = []

    def add_shared(self, buffer: Buffer, offset_bytes: int) -> int:
        """A region for a shared buffer; its number."""
        return self._add(_region(buffer, "shared", self._count, buffer.elements, offset_bytes))

    def add_registers(self, buffer: Buffer, warps: int) -> int:
        """A region for a register buffer of every warp; its number."""
        return self._add(_region(buffer, "register", self._count, warps * buffer.elements * WARP_THREADS))

    def _add(self, region: Region) -> int:
        self.regions.append(region)
        self._held.append(np.full(region.cells, np.nan, np.float32))
        if self._shown is not None:
            self._shown.append(self._held[-1].copy())
        self._count += region.cells
        return len(self.regions) - 1

    def set(self, region: int, first: int, values: Array) -> None:
        """Cells of a region from `first` on hold `values`, float32."""
        held = self._held[region][first : first + len(values)]
        changed = held.view(np.int32) != values.view(np.int32)
        if changed.any():
            if self._shown is None:
                self._emit(self.regions[region].base + first, values, changed)
            held[:] = values

    def skip(self) -> None:
        """From now on changes are not kept one by one."""
        if self._shown is None:
            self._shown = [held.copy() for held in self._held]

    def resume(self) -> None:
        """What has changed since `skip` is one change."""
        assert self._shown is not None
        for region, shown, held in zip(self.regions, self._shown, self._held, strict=True):
            changed = shown.view(np.int32) != held.view(np.int32)
            if changed.any():
                self._emit(region.base, held, changed)
        self._shown = None

    def end_moment(self) -> None:
        """What changed since the last moment belongs to this one."""
        self._first.append(len(self._start))

    def _emit(self, base: int, values: Array, changed: Array) -> None:
        for start, end in zip(*runs_of(changed), strict=True):
            self._start.append(base + int(start))
            self._length.append(int(end - start))
            self._values.append(values[start:end].copy())
            self.values += int(end - start)

    def changes(self) -> Changes:
        values = np.concatenate(self._values) if self._values else np.zeros(0, np.float32)
        first, start, length = (np.array(x, np.int32) for x in (self._first, self._start, self._length))
        return Changes(first, start, length, values)


def _region(
    buffer: Buffer, space: Literal["shared", "register"], base: int, cells: int, offset_bytes: int = 0
) -> Region:
    dtype = buffer.dtype
    return Region(
        buffer.name, space, dtype.name, dtype.bytes, buffer.shape, buffer.axes, buffer.note, base, cells, offset_bytes
    )


def runs_of(changed: Array, gap: int = _GAP_CELLS) -> tuple[Array, Array]:
    """Where runs of true begin and end; runs at most `gap` apart are one.

    >>> runs_of(np.array([0, 1, 1, 0, 1, 0, 0, 0, 1], bool), gap=1)
    (array([1, 8]), array([5, 9]))
    """
    edges = np.flatnonzero(np.diff(changed.astype(np.int8), prepend=0, append=0))
    starts, ends = edges[::2], edges[1::2]
    apart = starts[1:] - ends[:-1] > gap
    return starts[np.append(True, apart)], ends[np.append(apart, True)]


def written_only(values: Array) -> Array:
    """Register values as cells: float32, NaN where an integer register holds nothing."""
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    return np.where(values == UNWRITTEN_INTEGER, np.float32(np.nan), values.astype(np.float32))
