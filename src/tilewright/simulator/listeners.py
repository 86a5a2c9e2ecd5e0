"""Listeners: each counts one thing. To add one, subclass `events.Listener` and hand it to `simulate`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.layout.banks import (
    BANK_BYTES,
    LINE_BYTES,
    SECTOR_BYTES,
    Counts,
    copy_wavefronts,
    ideal_matrix_wavefronts,
    ideal_wavefronts,
    lines,
    matrix_wavefronts,
    sectors,
    wavefronts,
)
from tilewright.simulator.findings import (
    Access,
    Arithmetic,
    Branch,
    Issue,
    Iterations,
    Listener,
    Meeting,
    Site,
    TmaCopy,
)
from tilewright.simulator.warps import Pattern


class SiteCounter(Listener):
    """Adds up numbers for each site; `fields` names the columns, which are fields of `counters.LineCounts`."""

    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._rows: dict[Site, list[int]] = {}

    def add(self, site: Site, *amounts: int) -> None:
        row = self._rows.get(site)
        if row is None:
            self._rows[site] = list(amounts)
            return
        for column, amount in enumerate(amounts):
            row[column] += amount

    def counts(self) -> dict[Site, dict[str, int]]:
        """The sums of each site, by name."""
        return {site: dict(zip(self.fields, row, strict=True)) for site, row in self._rows.items()}

    def total(self, field: str) -> int:
        """The sum of one column over all sites."""
        column = self.fields.index(field)
        return sum(row[column] for row in self._rows.values())


class Executions(SiteCounter):
    """executions: warps that executed the line, once each time (for a loop: each time around).

    lane_executions: lanes that did. A load whose guard is false in all lanes of a warp is still executed by the
    warp, as a predicated instruction is on the hardware; it makes no request.
    """

    fields = ("executions", "lane_executions")

    def accessed(self, access: Access) -> None:
        if not access.continued:
            self.add(access.site, access.issued_warps, access.executing_lanes)

    def issued(self, issue: Issue) -> None:
        self.add(issue.site, issue.warps, issue.lanes)

    def computed(self, arithmetic: Arithmetic) -> None:
        times = arithmetic.times
        self.add(arithmetic.site, arithmetic.warps * times, arithmetic.lanes * times)

    def met(self, meeting: Meeting) -> None:
        self.add(meeting.site, meeting.warps, meeting.lanes)

    def branched(self, branch: Branch) -> None:
        self.add(branch.site, branch.warps, branch.lanes)

    def iterated(self, iterations: Iterations) -> None:
        times = iterations.times
        self.add(iterations.site, iterations.warps * times, iterations.lanes * times)


_NOWHERE = np.int64(np.iinfo(np.int64).max)  # sorts a lane that takes no part behind all others


class GlobalTraffic(SiteCounter):
    """What ncu counts as l1tex__t_requests and l1tex__t_sectors of global loads and stores, by address alone.

    requests: warps of which some lane touches memory. bytes_asked: by lanes, a byte wanted twice counted twice.
    bytes_used: of each request, a byte that several lanes want counted once. fewest_sectors: that would hold the used
    bytes of each request, side by side.
    """

    fields = ("requests", "lanes", "bytes_asked", "bytes_used", "sectors", "fewest_sectors", "cache_lines")

    def accessed(self, access: Access) -> None:
        if access.space is Space.GLOBAL:
            # A shift by a whole line leaves the picture as it is.
            self.add(access.site, *access.known("global traffic", LINE_BYTES, _global_traffic))


def _global_traffic(access: Access) -> tuple[int, ...]:
    addresses, width, active = access.addresses(), access.width_bytes, access.pattern.active_rows
    pattern = access.pattern
    used = _bytes_used(access)
    return (
        pattern.requests,
        pattern.active_lanes,
        access.bytes_asked,
        int(used.sum()),
        int(sectors(addresses, width, active).sum()),
        int((-(-used // SECTOR_BYTES)).sum()),
        int(lines(addresses, width, active).sum()),
    )


def _bytes_used(access: Access) -> Counts:
    """Of each request, the distinct bytes that its lanes touch."""
    rows, active = access.pattern.rows, access.pattern.active_rows
    ordered = np.sort(rows if active is None else np.where(active, rows, _NOWHERE), axis=1)
    is_new = np.ones(ordered.shape, np.bool_)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    used: Counts = (is_new & (ordered != _NOWHERE)).sum(axis=1) * access.width_bytes
    return used


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
            self.add(access.site, *access.known("shared traffic", BANK_BYTES, _shared_traffic))


def _shared_traffic(access: Access) -> tuple[int, int, int, int, int]:
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


class TmaTraffic(SiteCounter):
    """boxes: started. bulk_bytes: of whole boxes, as shared memory sees them; a box for several blocks counts once.

    bulk_sectors: of 32 bytes of global memory, inside the matrix. bulk_elements: inside the matrix.
    """

    fields = ("boxes", "bulk_bytes", "bulk_sectors", "bulk_elements")

    def bulk_copied(self, copy: TmaCopy) -> None:
        self.add(copy.site, copy.boxes, copy.size_bytes, copy.sectors, copy.elements)


class Divergence(SiteCounter):
    """partial: requests in which some lanes of the warp take no part. guarded_off: lanes whose guard is false.

    split: branches at which lanes of one warp disagree, so that the warp runs both sides.
    """

    fields = ("partial", "guarded_off", "split")

    def accessed(self, access: Access) -> None:
        pattern = access.pattern
        if pattern.active is not None and not access.matrices:
            partial = pattern.known("partial", lambda: _partial(pattern))
            self.add(access.site, partial, access.guarded_off, 0)

    def branched(self, branch: Branch) -> None:
        if branch.split:
            self.add(branch.site, 0, 0, branch.split)


def _partial(pattern: Pattern) -> int:
    rows = pattern.active_rows
    return 0 if rows is None else int(np.count_nonzero(rows.any(axis=1) & ~rows.all(axis=1)))


def standard_listeners() -> tuple[Listener, ...]:
    """A new set of the listeners that `Counters` is made of."""
    return Executions(), GlobalTraffic(), SharedTraffic(), TmaTraffic(), Divergence()
