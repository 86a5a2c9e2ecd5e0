"""Which kernels could compute a problem, the most promising first: the analytical choice.

A candidate's time is what the performance model says of its blocks (docs/model.md), whose work `works` counts without
simulating; on top come the launches around it: copies that are made first, and the sum of parts. A choice takes a few
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import Protocol

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.ladders.hopper.tiles import engine_stores
from tilewright.model.time import DRAM_SHARE, EARLY_SECONDS, LAUNCH_SECONDS, predict_seconds
from tilewright.planning.candidates import Candidate, candidates
from tilewright.planning.copies import (
    ENGINE_BYTES,
    PADDED,
    Alignment,
    as_read,
    finishes,
    ways_to_copy,
)
from tilewright.planning.stack import Stack
from tilewright.planning.works import work_of
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div
from tilewright.winners.choice import Choice


class Database(Protocol):
    """Choices that were measured."""

    def best_choice(self, device: str, gemm: Gemm, alignment_bytes: int, order: str | None = None) -> Choice | None:
        """What won on a device, by its driver's name for it; None if nobody tuned the problem.

        order: only kernels of this reduction order, by its name.
        """
        ...


_NARROW: Mapping[int, float] = {16: 1.0, 8: 0.94, 4: 0.65, 2: 0.40}
"""What is left of the speed of a kernel for tensor cores whose copies are so many bytes wide, which the model takes for
faster than they are: measured on the H200 with 16-bit operands. Rows at any 2 bytes are loaded element by element."""

_ROW_OUTSIDE = 0.009
"""By how much longer a kernel takes for each row of its tiles that lies outside of C, where all have as many: the copy
engine fills boxes with zeros more slowly than it copies. Measured on the H200: tiles of 64 rows times 8192 x 8192 in
bf16 take 34.9 us where C has 64 rows, 43.3 where it has 32, 49.6 where it has 16."""

_SLOW_B = 1.03
"""How much longer than by the model FFMA kernels take that turn B on its way through shared memory, but for the time
that memory takes. Measured on the H200 in f32, B by columns: 4096^3 takes 2793 us, and 2673 where B was turned before;
with tiles of 256 x 128, 2819 and 2719. By the model it is 1.9 % (benchmarks/results/plans_h200.json)."""

_EDGES, _ODD_EDGES = 1.035, 1.1
"""And how much longer where edges are guarded, and where rows of C are stored element by element, guarded or not.
Measured on the H200: 4000^3, 250 steps of k, 2705 us, and 4096^3 2674 for 256 of them; an odd ldc: see `can_fill`."""

_FAR_BYTES = 256 << 10
"""Rows of B that are as far apart are no faster: 2048 x 151936 x 2048, with rows of 594 KiB, takes 25.3 ms as it lies,
and 25.4 where B was turned, beside the turning. Rows of 56 KiB (4096 x 14336 x 4096) cost nothing; between these
nothing was measured."""

MORE_LAUNCHES_US = 3.0
"""What each further launch costs beside its time on the GPU: the host's time for it (5 us, measured on the H200's host
with cuda.core), counted about half, since the host is often ahead."""

_IDLE = 0.05
"""How much longer memory takes for the same bytes if hardly an SM asks for them: to tell apart what is alike."""

_LEAST_STEPS: Mapping[str, int] = {"FFMA": 4, "mma.sync": 8, "wgmma": 8}
"""Steps over k that are worth a part of their own, by the unit: products of FFMA take longest."""


def estimate_us(
    gemm: Gemm,
    spec: DeviceSpec,
    tile: Candidate,
    splits: int = 1,
    *,
    alignment_bytes: int = ENGINE_BYTES,
    result_bytes: int = ENGINE_BYTES,
    count: int = 1,
) -> float:
    """About how long a problem takes, or `count` of them in one launch; infinite where a block does not fit on an SM.

    gemm: as the kernel finds it, behind copies, whose time is none of this.
    alignment_bytes: of addresses and rows of A and B, as the kernel finds them. result_bytes: of what it writes.
    """
    per_sm = tile.blocks_per_sm(gemm, spec)
    if not per_sm:
        return float("inf")
    blocks = _tiles(gemm, tile) * splits * count
    work = work_of(
        tile,
        gemm,
        blocks=blocks,
        steps=ceil_div(ceil_div(gemm.k, splits), tile.k),
        aligned_bytes=alignment_bytes,
        result_bytes=result_bytes,
        out=F32 if splits > 1 else gemm.out,
    )
    idle = max(0.0, 1 - blocks / spec.sm_count)
    moved_bytes = count * gemm.compulsory_bytes * (1 + _IDLE * idle)
    seconds = predict_seconds(work, spec, blocks_per_sm=per_sm, dram_bytes=moved_bytes)
    if tile.unit == "mma.sync":
        seconds = LAUNCH_SECONDS + (seconds - LAUNCH_SECONDS) / _NARROW[max(alignment_bytes, gemm.dtype.bytes)]
    elif tile.unit == "FFMA":
        far = gemm.b is Order.COL or gemm.ldb * gemm.dtype.bytes >= _FAR_BYTES
        whole = not (gemm.m % tile.m or gemm.n % tile.n or gemm.k % tile.k)
        edges = _ODD_EDGES if result_bytes < ENGINE_BYTES else 1.0 if whole else _EDGES
        slower = (_SLOW_B if far else 1.0) * edges
        seconds += (slower - 1) * max(0.0, seconds - _moved_seconds(moved_bytes, spec))
    if tile.by_engine:  # all of these start early
        outside = max(0, tile.m - gemm.m)
        seconds = (1 + _ROW_OUTSIDE * outside) * seconds + launch_seconds(spec) - LAUNCH_SECONDS
    if splits > 1:
        seconds += finish_seconds(gemm, spec, splits)
    return seconds * 1e6


def copy_seconds(gemm: Gemm, spec: DeviceSpec, choice: Choice, count: int = 1) -> float:
    """Of the launches that copy operands, of each of `count` problems, and C where the kernel writes whole tiles."""
    read = as_read(gemm, choice)
    copied = sum(read.storage_elements(name) for name in choice.pads)
    seconds = _moved_seconds(2 * count * copied * gemm.dtype.bytes, spec, bool(choice.pads))
    return seconds + (finish_seconds(gemm, spec, 1) if choice.filled and choice.splits == 1 else 0.0)


def finish_seconds(gemm: Gemm, spec: DeviceSpec, parts: int) -> float:
    """Of the launch that adds up parts of sums."""
    return _moved_seconds((parts * F32.bytes + gemm.out.bytes) * gemm.m * gemm.n, spec)


def launch_seconds(spec: DeviceSpec) -> float:
    """Of a copy or a reduction, or another kernel that starts early where it can."""
    return LAUNCH_SECONDS - (EARLY_SECONDS if spec.compute_capability >= SINCE[Feature.DEPENDENT_LAUNCH] else 0.0)


def _moved_seconds(size_bytes: float, spec: DeviceSpec, launches: int = 1) -> float:
    """Of launches that only move bytes; what lies in L2 is no faster than memory for so simple a kernel."""
    return launches * launch_seconds(spec) + size_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)


def choices(
    gemm: Gemm, spec: DeviceSpec, alignment: Alignment, *, keep_order: bool = False, stack: Stack | None = None
) -> list[tuple[float, Choice]]:
    """Candidates with their estimated microseconds, best first. keep_order: never share out a sum over k. stack: where
    the problem is one of many."""
    found: list[tuple[float, Choice]] = []
    # A map of a stack has a step between its matrices, which must be one.
    engine = gemm.k > 0 and (stack is None or min(stack.a, stack.b) > 0)
    walks = engine and stack is None and (alignment.c >= ENGINE_BYTES or not engine_stores(gemm))
    count = 1 if stack is None else stack.count
    for tile in candidates(gemm, spec):
        if (tile.by_engine and not engine) or (tile.walks and not walks) or (tile.in_pairs and stack is not None):
            continue
        if tile.turns > 1 and _tiles(gemm, tile) <= spec.sm_count:  # nobody would have a second turn
            continue
        alone = keep_order or stack is not None or not tile.splits
        for copies in ways_to_copy(tile.rung, gemm, alignment):
            if copies.filled and stack is not None:
                continue
            copying = Choice(tile.rung, tile.point, 1, *copies)
            read = as_read(gemm, copying)
            before_us = copy_seconds(gemm, spec, copying, count) * 1e6 + bool(copies.pads) * MORE_LAUNCHES_US
            for splits in (1,) if alone else _split_counts(gemm, spec, tile):
                if tile.stands_in and walks and splits == 1:
                    continue
                choice = Choice(tile.rung, tile.point_for(gemm, splits), splits, *copies)
                loads, stores = _aligned_bytes(gemm, alignment, choice)
                time_us = estimate_us(read, spec, tile, splits, alignment_bytes=loads, result_bytes=stores, count=count)
                if time_us != float("inf"):
                    found.append((before_us + time_us + finishes(choice) * MORE_LAUNCHES_US, choice))
    return sorted(found, key=lambda pair: pair[0])


def _aligned_bytes(gemm: Gemm, alignment: Alignment, choice: Choice) -> tuple[int, int]:
    """What a kernel may assume of what it reads and of what it writes: behind copies, and before parts are added up."""
    a, b = (ENGINE_BYTES if name in choice.pads else alignment.of(name) for name in PADDED)
    parts = next(size for size in (16, 8, 4) if choice.filled or gemm.n * F32.bytes % size == 0)
    return min(a, b), parts if finishes(choice) else alignment.c


def choices_for_list(gemms: Sequence[Gemm], spec: DeviceSpec) -> list[Choice]:
    """Candidates for problems that one launch computes, best first. Their blocks share the SMs, and the longest sum is
    the least that it takes."""
    found: list[tuple[float, int, Choice]] = []
    first = gemms[0]
    moved_bytes = sum(gemm.compulsory_bytes for gemm in gemms)
    for number, tile in enumerate(candidates(first, spec)):
        per_sm = tile.blocks_per_sm(first, spec)
        if tile.by_engine or not per_sm:
            continue
        depths = [ceil_div(gemm.k, tile.k) for gemm in gemms]
        tiles = [_tiles(gemm, tile) for gemm in gemms]
        blocks = max(1, sum(tiles))
        alike = work_of(tile, first, blocks=blocks, steps=ceil_div(sum(map(mul, tiles, depths)), blocks))
        longest = work_of(tile, first, blocks=1, steps=max(depths))
        time = max(predict_seconds(w, spec, blocks_per_sm=per_sm, dram_bytes=moved_bytes) for w in (alike, longest))
        found.append((time, number, Choice(tile.rung, tile.point)))
    return [choice for _, _, choice in sorted(found, key=lambda entry: entry[:2])]


def _tiles(gemm: Gemm, tile: Candidate) -> int:
    return ceil_div(gemm.m, tile.m) * ceil_div(gemm.n, tile.n)


def _split_counts(gemm: Gemm, spec: DeviceSpec, tile: Candidate) -> Iterator[int]:
    """1, and how often k may be shared out while SMs would be idle and each part is worth its start."""
    yield 1
    # Twice the SMs: of 1.1 rounds of blocks, half as long ones make 2.2, which are 1.5 of the whole ones.
    room = 2 * spec.sm_count * max(1, tile.blocks_per_sm(gemm, spec))
    most = min(room // max(_tiles(gemm, tile), 1), gemm.k // (_LEAST_STEPS[tile.unit] * tile.k))
    for splits in (2, 3, 4, 5, 6, 8, 12, 16, 24, 32):
        if splits <= most:
            yield splits
