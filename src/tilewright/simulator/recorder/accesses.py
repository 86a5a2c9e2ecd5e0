"""Accesses to memory as pictures: the addresses of each warp's lanes, each pattern kept once."""

from __future__ import annotations

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.simulator.events import Access
from tilewright.simulator.recorder.recording import Picture, Shown
from tilewright.simulator.warps import Pattern

_ALIGN_BYTES = 128
"""A wavefront of shared memory and a line of global memory: a shift by it changes no picture."""


class Pictures:
    """The pictures seen so far."""

    def __init__(self) -> None:
        self.all: list[Picture] = []
        self._known: dict[tuple[int, ...], int] = {}

    def shown(self, access: Access, rows: Array) -> Shown | None:
        """An access by the warps in these rows of its convoy; None where none of their lanes takes part."""
        assert access.warps is not None
        addresses, active = access.addresses(), access.pattern.active_rows
        places = []
        for row in rows.tolist():
            lanes = np.ones(WARP_THREADS, np.bool_) if active is None else active[row]
            if not lanes.any():
                continue
            picture, base = self._picture(addresses[row], lanes)
            source = -1 if access.source is None else self._source(access, access.source, row)
            places.append((int(access.warps.numbers[row]), picture, base, source))
        if not places:
            return None
        buffer = access.buffer
        return Shown(
            buffer.name,
            "shared" if buffer.space is Space.SHARED else "global",
            access.store,
            access.width_bytes,
            buffer.dtype.bytes,
            access.matrices,
            tuple(places),
        )

    def _source(self, access: Access, source: Pattern, row: int) -> int:
        active = source.active_rows
        lanes = np.ones(WARP_THREADS, np.bool_) if active is None else active[row]
        return self._picture(source.rows[row] * access.buffer.dtype.bytes, lanes)[0] if lanes.any() else -1

    def _picture(self, addresses: Array, lanes: Array) -> tuple[int, int]:
        """The number of the picture, and the address that it is relative to."""
        base = int(addresses[lanes].min()) // _ALIGN_BYTES * _ALIGN_BYTES
        at = tuple(np.where(lanes, addresses - base, -1).tolist())
        number = self._known.setdefault(at, len(self.all))
        if number == len(self.all):
            self.all.append(Picture(at))
        return number, base
