"""A listener that keeps, beside the counts, what explains them: the worst request of each line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.visit import Path
from tilewright.layout.banks import BANK_BYTES, BANKS, LANES, LINE_BYTES, SECTOR_BYTES, sectors
from tilewright.simulator.findings import Access, Listener
from tilewright.simulator.listeners import wavefronts_of

Side = tuple[Path, Space | None]
"""A line of the kernel and the memory it touches: an asynchronous copy touches two."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of one warp. addresses: byte address of each lane that takes part, by lane number."""

    cost: int
    addresses: dict[int, int]
    width_bytes: int


class WorstRequests(Listener):
    """The request of each line that takes the most wavefronts (shared memory) or sectors (global memory)."""

    def __init__(self) -> None:
        self.of_line: dict[Side, Request] = {}

    def accessed(self, access: Access) -> None:
        # A shift by whole words, or whole lines, leaves the cost as it is.
        modulus_bytes = BANK_BYTES if access.space is Space.SHARED else LINE_BYTES
        worst = access.known("worst request", modulus_bytes, _worst)
        side = (access.site.path, access.space)
        known = self.of_line.get(side)
        if worst is not None and (known is None or worst.cost > known.cost):
            self.of_line[side] = worst


def _worst(access: Access) -> Request | None:
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    if access.pattern.requests == 0:
        return None
    if access.space is Space.SHARED:
        costs = wavefronts_of(access)
    else:
        costs = sectors(addresses, width, active)
    row = int(np.argmax(costs))
    lanes = range(LANES) if active is None else np.flatnonzero(active[row]).tolist()
    return Request(int(costs[row]), {lane: int(addresses[row, lane]) for lane in lanes}, width)


def why_wavefronts(request: Request) -> str:
    """Why a request of shared memory conflicts, in words; "" if it does not.

    >>> why_wavefronts(Request(2, {lane: lane * 8 for lane in range(32)}, 4))
    'lanes 16 apart share a bank'
    """
    slot_bytes = max(request.width_bytes, BANK_BYTES)
    slots = BANKS * BANK_BYTES // slot_bytes
    for group in (slots, 2 * slots):  # groups that merge are twice as long
        for distance in range(1, group):
            for lane, address in request.addresses.items():
                other = request.addresses.get(lane + distance)
                if other is None or lane // group != (lane + distance) // group:
                    continue
                a, b = address // slot_bytes, other // slot_bytes
                if a != b and a % slots == b % slots:
                    return f"lanes {distance} apart share a bank" if distance > 1 else "neighbouring lanes share a bank"
    return ""


def why_sectors(request: Request) -> str:
    """Why a request of global memory touches many sectors, in words.

    >>> why_sectors(Request(32, {lane: lane * 1024 for lane in range(32)}, 4))
    'neighbouring lanes are 1024 bytes apart'
    """
    lanes = sorted(request.addresses)
    steps = Counter(abs(request.addresses[b] - request.addresses[a]) for a, b in pairwise(lanes))
    step, times = steps.most_common(1)[0] if steps else (0, 0)
    if 2 * times >= len(lanes) and step > request.width_bytes:
        return f"neighbouring lanes are {step} bytes apart"
    start = min(request.addresses.values())
    if start % SECTOR_BYTES:
        return f"the row starts {start % SECTOR_BYTES} bytes into a sector"
    return ""
