"""Picture: the bank map. Which lane of a shared access is served by which bank, in which wavefront."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.ir.buffer import Space
from tilewright.layout.banks import BANK_BYTES, WAVEFRONT_BYTES, copy_turns, passes
from tilewright.report.page.watch import Watched
from tilewright.report.samples import Request, why_wavefronts
from tilewright.simulator.findings import Access
from tilewright.simulator.listeners import source_through_l1

_MOST_REQUESTS = 12
"""Requests that are kept of accesses that are alike: the first ones of a warp, and the one that costs most."""

_MOST_MAPS = 8


def bank_maps(watched: Watched) -> list[dict[str, Any]]:
    """The shared accesses of the block by tile, direction and width, as plain values; most conflicts first."""
    alike: dict[tuple[object, ...], list[Access]] = {}
    for access in watched.accesses(Space.SHARED):
        key = (access.buffer.name, access.store, access.width_bytes, access.matrices)
        alike.setdefault(key, []).append(access)
    maps = [_map(watched, accesses) for accesses in alike.values()]
    maps = [one for one in maps if one["requests"]]
    return sorted(maps, key=lambda one: (-one["excess"], -one["waves"]))[:_MOST_MAPS]


def _map(watched: Watched, accesses: list[Access]) -> dict[str, Any]:
    first = accesses[-1]
    counts = [_counts(watched, access) for access in accesses]
    totals = [int(waves.sum()) for waves, _ in counts]
    kept = [one for access in accesses[:_MOST_REQUESTS] for one in _requests(watched, access, 1)]
    worst = max(range(len(accesses)), key=lambda at: counts[at][0].max(initial=0))
    if all(one["waves"] < counts[worst][0].max(initial=0) for one in kept):
        kept.append(max(_requests(watched, accesses[worst]), key=lambda one: int(one["waves"])))
    ideal = sum(int(fewest.sum()) for _, fewest in counts)
    return {
        "line": first.site.text,
        "buffer": first.buffer.name,
        "kind": "store" if first.store else "load",
        "width": first.width_bytes,
        "matrices": first.matrices,
        "count": sum(len(waves) for waves, _ in counts),
        "waves": sum(totals),
        "ideal": ideal,
        "excess": sum(totals) - ideal,
        "requests": kept,
    }


def _addressed(watched: Watched, access: Access) -> tuple[Array, Array, Array, int, bool]:
    """Of our warps: numbers, byte addresses, lanes that take part; bytes a lane; whether groups never merge."""
    warps, first, lanes = watched.lanes_of(access)
    addresses = first * access.buffer.dtype.bytes + access.base_bytes
    if access.matrices:  # a row of 16 bytes for each of the first lanes
        return warps, addresses, lanes & (np.arange(WARP_THREADS) < 8 * access.matrices), 16, True
    return warps, addresses, lanes, access.width_bytes, access.store


def _counts(watched: Watched, access: Access) -> tuple[Array, Array]:
    """Wavefronts of each request, and the fewest that would do."""
    warps, addresses, lanes, width, store = _addressed(watched, access)
    if not len(warps):
        return np.zeros(0, int), np.zeros(0, int)
    turns = _turns(watched, access)
    groups = passes(addresses, width, lanes, store=store)
    if turns is not None:
        slots = WAVEFRONT_BYTES // max(width, BANK_BYTES)
        return turns.reshape(len(turns), -1, slots).max(axis=2).sum(axis=1), (groups > 0).sum(axis=1)
    return groups.sum(axis=1), (groups > 0).sum(axis=1)


def _requests(watched: Watched, access: Access, most: int = WARP_THREADS) -> list[dict[str, Any]]:
    found = []
    warps, addresses, lanes, width, store = _addressed(watched, access)
    turns = _turns(watched, access)
    for number, (warp, at, active) in enumerate(zip(warps.tolist()[:most], addresses, lanes, strict=False)):
        own = None if turns is None else turns[number]
        found.append({"warp": warp, **picture_of(at, width, active, store=store, served=own)})
    return found


def picture_of(
    addresses: Array, width_bytes: int, active: Array, *, store: bool, served: Array | None = None
) -> dict[str, Any]:
    """A request of shared memory as plain values. served: of a copy through L1, what `copy_turns` gives. at: addresses;
    wave: the wavefront that serves each lane, -1 for one that takes no part; first: those without a conflict."""
    if served is None:
        waves, firsts = waves_of(addresses, width_bytes, active, store=store)
    else:
        waves, firsts = in_turns(served, width_bytes)
    total = int(np.where(active, waves, -1).max()) + 1
    known = {lane: int(addresses[lane]) for lane in np.flatnonzero(active).tolist()}
    return {
        "at": np.where(active, addresses, -1).tolist(),
        "wave": np.where(active, waves, -1).tolist(),
        "waves": total,
        "ideal": len(firsts),
        "first": firsts,
        "why": why_wavefronts(Request(total, known, width_bytes)) if total > len(firsts) else "",
    }


def _turns(watched: Watched, access: Access) -> Array | None:
    """Of an asynchronous copy through L1, which wavefront of its group serves each lane, from 1."""
    source = source_through_l1(access)
    if source is None or access.warps is None:
        return None
    _, addresses, lanes, width, _ = _addressed(watched, access)
    rows = watched.rows_of(access.warps)
    some = (
        np.ones(len(rows), np.bool_) if access.pattern.active_rows is None else access.pattern.active_rows[rows].any(1)
    )
    reading = None if source.active_rows is None else source.active_rows[rows][some]
    return copy_turns(addresses, source.rows[rows][some] * access.buffer.dtype.bytes, width, lanes, reading)


def in_turns(turns: Array, width_bytes: int) -> tuple[Array, list[int]]:
    """What `waves_of` says, of lanes that are served group by group in these turns."""
    groups = turns.reshape(-1, WAVEFRONT_BYTES // max(width_bytes, BANK_BYTES))
    counts = groups.max(axis=1)
    before = np.cumsum(counts) - counts
    return (groups - 1 + before[:, None]).reshape(-1), before[counts > 0].tolist()


def waves_of(addresses: Array, width_bytes: int, active: Array, *, store: bool) -> tuple[Array, list[int]]:
    """The wavefront, from 0, that serves each lane of one request, (32,); and the first one of each group of lanes.

    Every other wavefront is a bank conflict.

    A bank gives one word in a wavefront: of the lanes of a group, those that want its first word come in the first.

    >>> waves_of(np.arange(32) * 8, 4, np.ones(32, bool), store=False)[0][[0, 15, 16, 31]]
    array([0, 0, 1, 1])
    """
    counts = passes(addresses[None], width_bytes, active[None], store=store)[0]
    slot_bytes = max(width_bytes, BANK_BYTES)
    slots = WAVEFRONT_BYTES // slot_bytes
    for lanes in (slots, 2 * slots):  # groups that merge are twice as long
        groups = _groups(addresses, active, slot_bytes, min(lanes, WARP_THREADS))
        if [len(np.unique(ranks)) for _, ranks in groups] == counts[: len(groups)].tolist():
            break
    waves, before, firsts = np.zeros(WARP_THREADS, np.int64), 0, []
    for (here, ranks), count in zip(groups, counts.tolist(), strict=False):
        waves[here] = before + ranks
        firsts += [before] if count else []
        before += count
    return waves, firsts


def _groups(addresses: Array, active: Array, slot_bytes: int, lanes: int) -> list[tuple[Array, Array]]:
    """(lanes that take part, the rank of what each wants among the words of its bank), group by group."""
    found, slots = [], WAVEFRONT_BYTES // slot_bytes
    for start, end in pairwise(range(0, WARP_THREADS + 1, lanes)):
        here = start + np.flatnonzero(active[start:end])
        units = addresses[here] // slot_bytes
        words = np.unique(units)
        rank = {int(word): int(np.count_nonzero(words[words < word] % slots == word % slots)) for word in words}
        found.append((here, np.array([rank[int(unit)] for unit in units], np.int64)))
    return found
