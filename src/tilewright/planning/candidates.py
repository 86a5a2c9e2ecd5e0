"""The kinds of tile that dispatch knows: rungs at points of their choices, large tiles first.

A kind says nothing of its speed: `works` counts what one block does, and the performance model tells the time of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F16, F32
from tilewright.ladders.hopper.r9_best import PAIRED
from tilewright.ladders.hopper.tiles import engine_stores, fits, goes_in_parts
from tilewright.model.occupancy import occupancy
from tilewright.model.work import is_misaligned
from tilewright.problem.gemm import Gemm, OperandName, Order
from tilewright.units import ceil_div

Unit = Literal["FFMA", "mma.sync", "wgmma"]

_WGMMA_K_BYTES, _MMA_K_BYTES, _FFMA_K = 128, 64, 16
_OTHER_REGISTERS = 32

_SHARED_TIMES, _SHARED_BYTES = 3.5, 60e6
"""What blocks ask the L2 for in all, by the size of the matrices and in bytes, from which on a kernel whose blocks
share out k is better off if its neighbours lie side by side."""

_MOST_ROWS = 16
"""Rows of blocks that walk together at most: their strips of A stay in the L2."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of tile. m, n, k: elements of a block's tile and of a step. warp_m, warp_n: of a warp's part of it.

    stages: slots of the ring in shared memory. ahead: copies run ahead of their use. turns: warpgroups that have a tile
    each. walks: blocks stay, and go over the tiles of one problem. stands_in: for kernels that walk, where those cannot
    be; else they are better. splits: several blocks may share a sum over k.
    """

    rung: str
    point: Mapping[str, Any]
    unit: Unit
    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    stages: int
    ahead: bool = True
    turns: int = 1
    walks: bool = False
    stands_in: bool = False
    splits: bool = True

    @property
    def by_engine(self) -> bool:
        """Whether the copy engine brings its tiles."""
        return self.unit == "wgmma"

    @property
    def in_pairs(self) -> bool:
        """Whether blocks start in clusters."""
        return "blocks" in self.point

    @property
    def is_turned(self) -> bool:
        """Whether the 64 rows of an instruction run along n."""
        return bool(self.point.get("turned", 0))

    def readers(self, name: OperandName) -> int:
        """Blocks that share one copy of a tile of A or B."""
        shares = {"m_block": "B", "n_block": "A"}.get(self.point.get("along", ""))
        return int(self.point["blocks"]) if shares == name else 1

    def point_for(self, gemm: Gemm, splits: int) -> Mapping[str, Any]:
        """The point where so many blocks share out a sum: such kernels start early but where they live on what
        neighbours ask for at the same time.

        Blocks that start where others have just ended lie on the SMs in any order. Measured on the H200 in bf16:
        512 x 512 x 16384 in 4 parts 17.2 us, early 20.4; 512 x 512 x 8192 10.8 and 11.8; but 256 x 512 x 4096 in
        4 parts 6.6 and 6.2, and 128 x 4096 x 4096 in 4 parts 16.0 and 14.9.
        """
        tiles = ceil_div(gemm.m, self.m) * ceil_div(gemm.n, self.n)
        asked = tiles * gemm.k * (self.m + self.n) * gemm.dtype.bytes
        late = splits > 1 and asked >= max(_SHARED_TIMES * gemm.compulsory_bytes, _SHARED_BYTES)
        return {**self.point, "early": 0} if self.by_engine and late else self.point

    @property
    def warps(self) -> int:
        """Of a block; beside warpgroups there is one more that copies."""
        own = self.m // self.warp_m * (self.n // self.warp_n)
        return self.turns * own + 4 if self.by_engine else own

    def shared_bytes(self, gemm: Gemm) -> int:
        """Of its tiles of A and B."""
        return self.stages * (self.m + self.n) * self.k * gemm.dtype.bytes

    def blocks_per_sm(self, gemm: Gemm, spec: DeviceSpec) -> int:
        """By shared memory and registers; 0 where a block is too large for the device.

        Registers are twice the sums and some more, which is within a block of what ptxas makes of all of these.
        """
        shared_bytes = self.shared_bytes(gemm)
        if self.by_engine:  # of those that walk, one is started on each SM
            alone = self.walks or self.m * self.n > PAIRED or not fits(self.point, 2)
            return (1 if alone else 2) if shared_bytes <= spec.max_shared_bytes_per_block else 0
        sums = self.warp_m * self.warp_n // WARP_THREADS
        return occupancy(
            spec,
            threads_per_block=self.warps * WARP_THREADS,
            registers_per_thread=min(spec.max_registers_per_thread, 2 * sums + _OTHER_REGISTERS),
            static_shared_bytes=shared_bytes,
        ).blocks_per_sm


def candidates(gemm: Gemm, spec: DeviceSpec) -> Iterator[Candidate]:
    """What can multiply the formats of a problem on a device; nothing where no unit is made for them, and the kernel
    that multiplies everything must do."""
    if gemm.multiplied is F32:
        yield from _ffma(gemm, spec)
    elif spec.tensor.flops_per_clk_per_sm(gemm.multiplied.rate, "f32"):
        if spec.compute_capability[0] == 9:
            yield from _wgmma(gemm)
        if spec.compute_capability >= (8, 0):
            yield from _mma(gemm)
        elif gemm.dtype is F16:
            yield Candidate(
                "hierarchy/wmma_vectorised", {}, "mma.sync", 128, 128, 16, 64, 32, 1, ahead=False, splits=False
            )


def _ffma(gemm: Gemm, spec: DeviceSpec) -> Iterator[Candidate]:
    """k is unrolled by 8, but for the largest tiles: in a longer run of multiply-adds ptxas moves the loads of the next
    tile to its end, right before their use, which few warps have nothing to cover with (tests/planning/test_works.py).
    """
    from tilewright.ladders.worklog.r13_best import BEST

    for bm, bn, wm, wn in (
        (128, 256, 64, 64),
        (256, 128, 64, 64),
        (128, 128, 64, 64),
        (128, 128, 32, 64),
        (64, 256, 64, 64),
        (64, 256, 32, 64),
        (128, 64, 64, 32),
        (64, 128, 32, 64),
        (64, 64, 32, 32),
        (32, 64, 16, 32),
    ):
        unroll = BEST["unroll"] if bm * bn == BEST["bm"] * BEST["bn"] else 8
        point = {**BEST, "bm": bm, "bn": bn, "wm": wm, "wn": wn, "unroll": unroll, "group": _group(gemm, spec, bm, bn)}
        yield Candidate("worklog/best", point, "FFMA", bm, bn, _FFMA_K, wm, wn, BEST["stages"])
    # Rows that nearly fill a tile may be as fast as in the thin kernel: copies of B run ahead by several slots.
    if 8 < gemm.m <= 16 and gemm.b is Order.ROW:
        point = {**BEST, "bm": 16, "bn": 256, "wm": 16, "wn": 64, "b": "async", "stages": 4, "unroll": 8}
        yield Candidate("worklog/best", point, "FFMA", 16, 256, _FFMA_K, 16, 64, 4)


def _group(gemm: Gemm, spec: DeviceSpec, bm: int, bn: int) -> int:
    """Rows of blocks that walk over n together. One after another, each would read all of B anew, where it does not fit
    into the L2 and a row has more blocks than run at a time."""
    rows, columns = ceil_div(gemm.m, bm), ceil_div(gemm.n, bn)
    again = columns > spec.sm_count and gemm.k * gemm.n * gemm.dtype.bytes > spec.l2_bytes
    return min(_MOST_ROWS, rows) if again else 1


def _mma(gemm: Gemm) -> Iterator[Candidate]:
    from tilewright.ladders.ampere.r6_full import BEST

    for m, n, warp_m, warp_n, stages in (
        (128, 256, 64, 64, 3),
        (128, 128, 64, 64, 3),
        (64, 128, 32, 64, 4),
        (64, 64, 32, 32, 4),
    ):
        point = {**BEST, "m": m, "n": n, "warp_m": warp_m, "warp_n": warp_n, "stages": stages}
        k = _MMA_K_BYTES // gemm.dtype.bytes
        yield Candidate("ampere/full", point, "mma.sync", m, n, k, warp_m, warp_n, stages)


def _wgmma(gemm: Gemm) -> Iterator[Candidate]:
    """Points of one rung: blocks that walk over tiles, then blocks that have one tile each."""
    from tilewright.ladders.hopper import r9_best as best

    k = _WGMMA_K_BYTES // gemm.dtype.bytes

    def candidate(point: Mapping[str, Any], *, stands_in: bool = False) -> Candidate:
        m, n, stages, turns = (int(point[name]) for name in ("m", "n", "stages", "turns"))
        walks = best.walks(point)
        warp_m, warp_n = (m, n // 4) if point.get("turned") else (m // int(point["groups"]) // 4, n)
        return Candidate(
            "hopper/best", point, "wgmma", m, n, k, warp_m, warp_n, stages,
            turns=turns, walks=walks, stands_in=stands_in, splits=not walks,
        )  # fmt: skip

    plain = gemm.epilogue.bias is None and gemm.epilogue.activation is None
    if goes_in_parts(gemm):
        # The rung's own rule, of clocks that were measured. Turns at wide tiles leave no registers for an epilogue.
        large = best.point_for(gemm) if plain else best.SHARED
        # Lanes read a place at once; a ring that is a stage deeper is worth more than a second one. So it is for the
        # largest tile, whoever stores it: 4096^3 in bf16 on the H200 199 us, with two places and three stages 209.
        alone = not engine_stores(gemm)
        walking = [
            best.walking(m, n, groups, parts=best.parts_of(m, n), places=1 if alone or m == 256 else 2)
            for m, n, groups in best.NARROW
        ]
    else:  # each lane stores its own results; at narrower tiles they hide its many stores
        large = best.SHARED
        walking = [best.walking(256, 128, 2, parts=0), best.walking(128, 128, 1, parts=0, turns=2)]
    for point in (large, *walking):
        yield candidate(point)
    if gemm.m > 64 and any(is_misaligned(gemm, name) for name in ("A", "B")):
        for point in (large, *walking):
            yield candidate(best.paired(point))
    for m, n, groups in ((128, 256, 2), *best.NARROW):
        pairs = (1, 2) if m * n <= best.PAIRED else (1,)
        for per_sm in pairs:
            point = best.standing(m, n, groups, per_sm=per_sm)
            yield candidate(point, stands_in=m * n >= large["m"] * large["n"])
    yield from (candidate(point) for point in _of_few_rows(gemm))


def _of_few_rows(gemm: Gemm) -> Iterator[Mapping[str, Any]]:
    """Tiles as high as C, where that has few rows; a atom of shared memory has rows of 32, 64 or 128 bytes."""
    from tilewright.ladders.hopper import r9_best as best

    along_m = gemm.a is Order.COL
    fits_slab = (m for m in best.FEW_ROWS if not along_m or m * gemm.dtype.bytes in (32, 64, 128))
    rows = next((m for m in fits_slab if m >= gemm.m), None)
    if rows is None:
        return
    for columns in best.FEW_COLUMNS:
        point = best.turned(rows, columns)
        yield point
        if along_m:  # of short rows the pair reads each once, which are many small requests
            yield best.paired(point, "n_block")
