"""What a warp's 32 addresses cost: wavefronts of shared memory, sectors and lines of global memory.

Shared memory has 32 banks of 4 bytes: bank = (address / 4) mod 32. A wavefront is one pass of the data pipe and
serves at most one word of each bank; lanes that want the same word share it. So an access costs

    4 bytes or less a lane    one group, the whole warp
    8 bytes                   two groups, the half warps
    16 bytes                  four groups, the quarter warps

and each group takes as many wavefronts as the fullest bank has distinct words. Loads whose lanes agree in pairs
merge two groups into one (`BankRules`). All counts are pure functions of the addresses: what Nsight Compute calls
`memory_l1_wavefronts_shared` on its source page, not the hardware counters, which add lost arbitration.

Addresses are int arrays of shape (requests, 32), in bytes, each a multiple of the access width (the hardware faults
on any other). `active` has the same shape; None means every lane takes part. An inactive lane's address is ignored.

Sources: [1] NVIDIA engineer on the developer forum, thread 77228 (7.0 and 7.5). [2] ncu on an A100, zhihu
690052715: the seven golden cases of tests/layout. [3] ncu 2023.2 on an RTX A6000: uniform 16-byte loads take 2
wavefronts, and that is also their ideal. Not measured on 8.9 and later; tilewright assumes the same there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import SimulationError

LANES = 32
BANKS = 32
BANK_BYTES = 4
WAVEFRONT_BYTES = BANKS * BANK_BYTES
SECTOR_BYTES = 32
LINE_BYTES = 128

Ints = npt.NDArray[np.integer[Any]]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NOWHERE = np.iinfo(np.int64).max  # sorts an inactive lane behind every active one
_CHUNK_REQUESTS = 256  # keeps the temporaries in the L2 cache of a CPU: three times as fast at 4096 requests


@dataclass(frozen=True, slots=True)
class BankRules:
    """Which accesses wider than 4 bytes merge neighbouring groups into one of twice the lanes.

    A warp merges if for one distance d of the tuple every lane i reads what lane i ^ d reads, or one of the two is
    inactive. It must hold for the whole warp, not for one half [2]. Groups double once, never twice: 8-byte
    accesses become one group, 16-byte accesses two [1] [2]. For stores no source was found: they do not merge.
    """

    load_pair_distances: tuple[int, ...] = (1, 2)
    store_pair_distances: tuple[int, ...] = ()

    def pair_distances(self, *, store: bool) -> tuple[int, ...]:
        return self.store_pair_distances if store else self.load_pair_distances


VOLTA_TO_BLACKWELL = BankRules()


def passes(
    byte_addresses: Ints,
    width_bytes: int,
    active: Mask | None = None,
    *,
    store: bool,
    rules: BankRules = VOLTA_TO_BLACKWELL,
) -> Counts:
    """Wavefronts of each group of lanes, shape (requests, 4); a group that is inactive or merged away has 0."""
    _check_width(width_bytes)
    addresses = _place(byte_addresses, active)
    distances = rules.pair_distances(store=store)
    counts = np.zeros((len(addresses), 4), dtype=np.int64)
    for start in range(0, len(addresses), _CHUNK_REQUESTS):
        chunk = slice(start, start + _CHUNK_REQUESTS)
        _count_passes(addresses[chunk], width_bytes, distances, into=counts[chunk])
    return counts


def wavefronts(
    byte_addresses: Ints,
    width_bytes: int,
    active: Mask | None = None,
    *,
    store: bool,
    rules: BankRules = VOLTA_TO_BLACKWELL,
) -> Counts:
    """Wavefronts of each request of shared memory, shape (requests,); 0 where no lane is active.

    >>> lane = np.arange(32)
    >>> wavefronts(np.stack([lane * 4, lane * 8, lane * 128]), 4, store=False)
    array([ 1,  2, 32])
    """
    return _total(passes(byte_addresses, width_bytes, active, store=store, rules=rules))


def ideal_wavefronts(
    byte_addresses: Ints,
    width_bytes: int,
    active: Mask | None = None,
    *,
    store: bool,
    rules: BankRules = VOLTA_TO_BLACKWELL,
) -> Counts:
    """The fewest wavefronts that any placement of the same data could reach: one for each group that is active.

    A group never asks for more than 128 distinct bytes, so a placement without conflicts always exists; what stays
    is the width, the active lanes and the merging. This is our reading of ncu's `memory_l1_wavefronts_shared_ideal`;
    it fits the one published case [3] (uniform 16-byte loads: 2), which distinct bytes / 128 would not (1).
    """
    return _total(passes(byte_addresses, width_bytes, active, store=store, rules=rules) > 0)


def copy_wavefronts(
    targets: Ints, sources: Ints, width_bytes: int, active: Mask | None = None, reading: Mask | None = None
) -> Counts:
    """Wavefronts of cp.async through L1 (cp.async.ca), shape (requests,).

    L1 lies in the same banks as shared memory, and a wavefront reads a bank once and writes a bank once. Lanes are
    served in their order: each comes after every earlier lane of its group that reads its bank, or writes it. Unlike
    a store, lanes that want one word do not share it. sources: as `targets`, up to a shift that all share. reading:
    of the active lanes, those that read at all, and do not just write zeros.

    Source: every pattern of cp.async.ca in benchmarks/results/shared_memory_h200.json, and worklog/12 in
    benchmarks/results/calibration_cuda_cores_h200_512.json.

    >>> lane = np.arange(32)[None]
    >>> copy_wavefronts(lane * 4, lane * 4, 4), copy_wavefronts(lane % 4 * 512 + lane // 4 * 4, lane % 4 * 16, 4)
    (array([1]), array([11]))
    """
    turns = copy_turns(targets, sources, width_bytes, active, reading)
    groups = turns.reshape(len(turns), -1, WAVEFRONT_BYTES // max(width_bytes, BANK_BYTES))
    return _total(groups.max(axis=2))


def copy_turns(
    targets: Ints, sources: Ints, width_bytes: int, active: Mask | None = None, reading: Mask | None = None
) -> Counts:
    """The wavefront of its group that serves each lane of cp.async through L1, from 1, (requests, 32); 0: inactive."""
    _check_width(width_bytes)
    slot_bytes = max(width_bytes, BANK_BYTES)
    slots = WAVEFRONT_BYTES // slot_bytes
    written, read = (np.asarray(side) // slot_bytes % slots for side in (targets, sources))
    writes, reads = (np.broadcast_to(True if mask is None else mask, written.shape) for mask in (active, reading))
    rows = np.arange(len(written))
    turns = np.zeros(written.shape, dtype=np.int64)
    for first in range(0, LANES, slots):
        last_write, last_read = np.zeros((2, len(written), slots), dtype=np.int64)
        for lane in range(first, first + slots):
            to, source = written[:, lane], read[:, lane]
            is_write, is_read = writes[:, lane], writes[:, lane] & reads[:, lane]
            served = 1 + np.maximum(last_write[rows, to], np.where(is_read, last_read[rows, source], 0))
            last_write[rows[is_write], to[is_write]] = served[is_write]
            last_read[rows[is_read], source[is_read]] = served[is_read]
            turns[is_write, lane] = served[is_write]
    return turns


def matrix_wavefronts(row_addresses: Ints, matrices: int, active: Mask | None = None) -> Counts:
    """Wavefronts of ldmatrix or stmatrix .x1, .x2 or .x4, shape (requests,).

    row_addresses: (requests, 32) bytes; lanes 8j to 8j + 7 hold the 16-byte rows of matrix j. Matrices do not merge.

    >>> matrix_wavefronts(np.stack([np.arange(32) * 16, np.arange(32) * 128]), 4)
    array([ 4, 32])
    """
    # As a store of 16 bytes a lane: quarter warps that never merge.
    return wavefronts(row_addresses, 16, _naming_rows(row_addresses, matrices, active), store=True)


def ideal_matrix_wavefronts(row_addresses: Ints, matrices: int, active: Mask | None = None) -> Counts:
    """The fewest wavefronts of ldmatrix or stmatrix: one for each matrix of which some row is named.

    >>> ideal_matrix_wavefronts(np.arange(32)[None] * 128, 2)
    array([2])
    """
    return ideal_wavefronts(row_addresses, 16, _naming_rows(row_addresses, matrices, active), store=True)


def _naming_rows(row_addresses: Ints, matrices: int, active: Mask | None) -> Mask:
    """The lanes whose addresses count."""
    naming = np.broadcast_to(np.arange(LANES) < 8 * matrices, np.shape(row_addresses))
    return naming if active is None else naming & active


def sectors(byte_addresses: Ints, width_bytes: int, active: Mask | None = None) -> Counts:
    """Distinct 32-byte sectors of each request, shape (requests,): the traffic between L1 and L2.

    >>> lane = np.arange(32)
    >>> sectors(np.stack([lane * 4, lane * 16, lane * 4096]), 4)
    array([ 4, 16, 32])
    """
    return _distinct(byte_addresses, width_bytes, active, SECTOR_BYTES)


def lines(byte_addresses: Ints, width_bytes: int, active: Mask | None = None) -> Counts:
    """Distinct 128-byte lines of each request, shape (requests,): one look-up of a tag each.

    >>> lines(np.arange(32)[None] * 16, 16)
    array([4])
    """
    return _distinct(byte_addresses, width_bytes, active, LINE_BYTES)


def _place(byte_addresses: Ints, active: Mask | None) -> Counts:
    addresses = np.asarray(byte_addresses, dtype=np.int64)
    return addresses if active is None else np.where(active, addresses, _NOWHERE)


def _check_width(width_bytes: int) -> None:
    if width_bytes not in (1, 2, 4, 8, 16):
        raise SimulationError(
            f"A lane cannot access {width_bytes} bytes at once.",
            hint="an access is 1, 2, 4, 8 or 16 bytes wide",
        )


def _merges(addresses: Counts, pair_distances: tuple[int, ...]) -> Mask:
    """For each request, whether for one of the distances all pairs of active lanes agree."""
    merged = np.zeros(len(addresses), dtype=np.bool_)
    for distance in pair_distances:
        pairs = addresses.reshape(len(addresses), -1, 2, distance)
        low, high = pairs[:, :, 0, :], pairs[:, :, 1, :]
        agree = (low == high) | (low == _NOWHERE) | (high == _NOWHERE)
        merged |= agree.all(axis=(1, 2))
    return merged


def _count_passes(addresses: Counts, width_bytes: int, pair_distances: tuple[int, ...], into: Counts) -> None:
    slot_bytes = max(width_bytes, BANK_BYTES)
    slots = WAVEFRONT_BYTES // slot_bytes
    if slots == LANES:
        into[:, :1] = _fullest_slot(addresses, LANES, slot_bytes)
        return
    merged = _merges(addresses, pair_distances)
    for rows, lanes in ((~merged, slots), (merged, 2 * slots)):
        if rows.any():
            into[rows, : LANES // lanes] = _fullest_slot(addresses[rows], lanes, slot_bytes)


def _fullest_slot(addresses: Counts, lanes: int, slot_bytes: int) -> Counts:
    """Distinct units in the fullest slot of each group of `lanes`, shape (requests, 32 / lanes).

    A slot is as many neighbouring banks as one lane's access takes, a unit is what lies in a slot at one address.
    """
    slots = WAVEFRONT_BYTES // slot_bytes
    units = np.sort((addresses // slot_bytes).reshape(-1, lanes), axis=1)
    first = units != _NOWHERE // slot_bytes
    first[:, 1:] &= units[:, 1:] != units[:, :-1]
    slot = (units & (slots - 1)) + slots * np.arange(len(units))[:, None]
    per_slot = np.bincount(slot[first], minlength=slots * len(units))
    fullest: Counts = per_slot.reshape(len(addresses), LANES // lanes, slots).max(axis=2)
    return fullest


def _distinct(byte_addresses: Ints, width_bytes: int, active: Mask | None, piece_bytes: int) -> Counts:
    """Distinct pieces touched by each request; an aligned access never straddles two."""
    _check_width(width_bytes)
    pieces = np.sort(_place(byte_addresses, active) // piece_bytes, axis=1)
    some_inactive = pieces[:, -1] == _NOWHERE // piece_bytes  # they are a piece of their own, which is none
    distinct: Counts = 1 + _total(pieces[:, 1:] != pieces[:, :-1]) - some_inactive
    return distinct


def _total(per_group: npt.NDArray[Any]) -> Counts:
    total: Counts = per_group.sum(axis=1, dtype=np.int64)
    return total
