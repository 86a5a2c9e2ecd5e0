"""Accesses as the page draws them: which wavefront serves which lane, and how many sectors lanes touch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.layout.banks import SECTOR_BYTES, copy_turns, sectors
from tilewright.report.page.banks import picture_of
from tilewright.report.samples import Request, why_sectors
from tilewright.simulator.listeners import WIDEST_THROUGH_L1
from tilewright.simulator.recorder import Picture, Recording, Shown

Key = tuple[str, int, int, bool, int, int]
"""Space, picture, bytes a lane, whether it is a store, matrices, and the picture of a copy's source."""


def access_pictures(recording: Recording) -> dict[str, dict[str, Any]]:
    """Each kind of request once, by its key as text: `key_of`."""
    found: dict[str, dict[str, Any]] = {}
    for moment in recording.moments:
        for shown in moment.accesses:
            for _, picture, _, source in shown.places:
                key = key_of(shown, picture, source)
                if key not in found:
                    at = recording.pictures[picture]
                    reads = recording.pictures[source] if source >= 0 else None
                    found[key] = _shared(shown, at, reads) if shown.space == "shared" else _global(shown, at)
    return found


def key_of(shown: Shown, picture: int, source: int) -> str:
    store = "s" if shown.store else "l"
    return f"{shown.space[0]}{picture}.{shown.width_bytes}{store}{shown.matrices}.{source}"


def _lanes(at: Picture) -> tuple[Array, Array]:
    addresses = np.array(at.at, np.int64)
    return addresses, addresses >= 0


def _shared(shown: Shown, at: Picture, source: Picture | None) -> dict[str, Any]:
    """A request of shared memory."""
    addresses, active = _lanes(at)
    width, store = shown.width_bytes, shown.store
    if shown.matrices:  # a row of 16 bytes for each of the first lanes
        active &= np.arange(WARP_THREADS) < 8 * shown.matrices
        width, store = 16, True
    served = None
    if source is not None and width <= WIDEST_THROUGH_L1:
        reads, reading = _lanes(source)
        served = copy_turns(addresses[None], reads[None], width, active[None], reading[None])[0]
    return picture_of(addresses, width, active, store=store, served=served)


def _global(shown: Shown, at: Picture) -> dict[str, Any]:
    """A request of global memory. used: distinct bytes that lanes want."""
    addresses, active = _lanes(at)
    taken = int(sectors(addresses[None], shown.width_bytes, active[None])[0])
    used = len(np.unique(addresses[active])) * shown.width_bytes
    fewest = -(-used // SECTOR_BYTES)
    known = {lane: int(addresses[lane]) for lane in np.flatnonzero(active).tolist()}
    why = why_sectors(Request(taken, known, shown.width_bytes)) if taken > fewest else ""
    return {"at": list(at.at), "sectors": taken, "fewest": fewest, "used": used, "why": why}
