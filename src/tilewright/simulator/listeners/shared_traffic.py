"""Shared memory: requests, the wavefronts they take, and those they would take without bank conflicts."""

from __future__ import annotations

from tilewright.ir.buffer import Space
from tilewright.layout.banks import (
    BANK_BYTES,
    Counts,
    copy_wavefronts,
    ideal_matrix_wavefronts,
    ideal_wavefronts,
    matrix_wavefronts,
    wavefronts,
)
from tilewright.simulator.events import Access
from tilewright.simulator.listeners.site_counter import SiteCounter
from tilewright.simulator.warps import Pattern

WIDEST_THROUGH_L1 = 8
"""Bytes a lane of the widest asynchronous copy that goes through L1 (cp.async.ca); those of 16 go past it (.cg)."""


class SharedTraffic(SiteCounter):
    """What ncu's source page shows as memory_l1_wavefronts_shared and its ideal, from addresses alone.

    requests: warps of which some lane touches memory, once for each machine instruction. bytes_asked: by lanes, a byte
    wanted twice counted twice. Matrices (ldmatrix) are moved one after the other: a wavefront each, and more where
    the rows of one share banks.
    """

    fields = ("requests", "lanes", "bytes_asked", "wavefronts", "ideal_wavefronts")

    def accessed(self, access: Access) -> None:
        if access.space is Space.SHARED:
            # Moved by whole words, all lanes change banks alike, and nothing changes.
            self.add(access.site, *access.known("shared traffic", BANK_BYTES, _count))


def _count(access: Access) -> tuple[int, int, int, int, int]:
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    pattern = access.pattern
    if access.matrices:
        ideal = ideal_matrix_wavefronts(addresses, access.matrices, active)
    else:
        ideal = ideal_wavefronts(addresses, width, active, store=access.store)
    taken = wavefronts_of(access)
    return pattern.requests, pattern.active_lanes, access.bytes_asked, int(taken.sum()), int(ideal.sum())


def wavefronts_of(access: Access) -> Counts:
    """Wavefronts of each request of an access to shared memory, (warps,)."""
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    if access.matrices:
        return matrix_wavefronts(addresses, access.matrices, active)
    source = source_through_l1(access)
    if source is None:
        return wavefronts(addresses, width, active, store=access.store)
    return copy_wavefronts(addresses, source.rows * access.buffer.dtype.bytes, width, active, source.active_rows)


def source_through_l1(access: Access) -> Pattern | None:
    """Where an asynchronous copy reads, if its source matters to the wavefronts in which it writes."""
    source = access.source
    return source if source is not None and access.width_bytes <= WIDEST_THROUGH_L1 and source.active_lanes else None
