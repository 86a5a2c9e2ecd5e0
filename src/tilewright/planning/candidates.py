"""The kinds of tile that dispatch knows: rungs at points of their choices, large tiles first.

A kind says nothing of its speed: `works` counts what one block does, and the performance model tells the time of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F16, F32
from tilewright.model.occupancy import occupancy
from tilewright.problem.gemm import Gemm

Unit = Literal["FFMA", "mma.sync", "wgmma"]

_WGMMA_K_BYTES, _MMA_K_BYTES, _FFMA_K = 128, 64, 16
_OTHER_REGISTERS = 32


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
    def warps(self) -> int:
        """Of a block; beside warpgroups there is one more that copies."""
        own = self.m // self.warp_m * (self.n // self.warp_n)
        return self.turns * own + 4 if self.by_engine else own

    def blocks_per_sm(self, gemm: Gemm, spec: DeviceSpec) -> int:
        """By shared memory and registers; 0 where a block is too large for the device.

        Registers are twice the sums and some more, which is within a block of what ptxas makes of all of these.
        """
        shared_bytes = self.stages * (self.m + self.n) * self.k * gemm.dtype.bytes
        if self.by_engine:  # their registers are handed out so that one block takes the SM
            return int(shared_bytes <= spec.max_shared_bytes_per_block)
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
    multiplied = "tf32" if gemm.multiplies_tf32 else gemm.dtype.name
    if gemm.multiplied is F32:
        yield from _ffma()
    elif spec.tensor.flops_per_clk_per_sm(multiplied, "f32"):
        if spec.compute_capability[0] == 9:
            yield from _wgmma(gemm)
        if spec.compute_capability >= (8, 0):
            yield from _mma(gemm)
        elif gemm.dtype is F16:
            yield Candidate(
                "hierarchy/wmma_vectorised", {}, "mma.sync", 128, 128, 16, 64, 32, 1, ahead=False, splits=False
            )


def _ffma() -> Iterator[Candidate]:
    from tilewright.ladders.worklog.r13_best import BEST

    for bm, bn, wm, wn in (
        (128, 256, 64, 64),
        (256, 128, 64, 64),
        (128, 128, 64, 64),
        (64, 256, 64, 64),
        (128, 64, 64, 32),
        (64, 128, 32, 64),
        (64, 64, 32, 32),
        (32, 64, 16, 32),
    ):
        point = {**BEST, "bm": bm, "bn": bn, "wm": wm, "wn": wn}
        yield Candidate("worklog/best", point, "FFMA", bm, bn, _FFMA_K, wm, wn, BEST["stages"])


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
    from tilewright.ladders.hopper.r9_best import point_for

    k = _WGMMA_K_BYTES // gemm.dtype.bytes
    best = point_for(gemm)  # the rung's own rule, of clocks that were measured between tiles
    m, n, stages, turns = (int(best[name]) for name in ("m", "n", "stages", "turns"))
    yield Candidate(
        "hopper/best", best, "wgmma", m, n, k, _warp_m(best), n, stages, turns=turns, walks=True, splits=False
    )
    for m, n, groups, stages in (
        (128, 256, 2, 4),
        (128, 192, 2, 4),
        (128, 128, 2, 6),
        (64, 256, 1, 4),
        (64, 128, 1, 6),
        (64, 64, 1, 8),
    ):
        point = {"m": m, "n": n, "groups": groups, "stages": stages}
        large = m * n >= best["m"] * best["n"]
        yield Candidate("hopper/shared_b", point, "wgmma", m, n, k, _warp_m(point), n, stages, stands_in=large)


def _warp_m(point: Mapping[str, Any]) -> int:
    """Rows of a warp, of which a group has four."""
    return int(point["m"]) // int(point["groups"]) // 4
