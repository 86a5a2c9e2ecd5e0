"""When a problem has so few rows or columns that reading the other matrix is all its time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from tilewright.artifacts import CudaSource
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F32, TF32
from tilewright.model.demand import FFMA_CLOCKS
from tilewright.model.time import DRAM_SHARE, LAUNCH_SECONDS
from tilewright.planning.choices import finish_seconds
from tilewright.planning.copies import Alignment
from tilewright.planning.passes.thin import MANY_ROWS, THREADS, WARPS, columns_along, thin_source
from tilewright.planning.stack import Stack
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div, round_up

MOST_ROWS = 16
"""Of f32, whose products the CUDA cores do while the long matrix is read."""

MOST_ROWS_NARROW = 4
"""Of 2-byte formats, which come twice as fast and must be unpacked; beyond, tensor cores are faster."""

LEAST_LONG = 64
"""Columns below which a problem is not long, only small."""

_BLOCKS_PER_SM = 2
_LEAST_PART = 256
"""Products that are worth a part of their own."""


_ADDED_PER_VALUE = 1.5
"""Instructions of a lane beside its products, for each number of the long matrix: its load, unpacking, loads of the few
rows from shared memory. Roughly."""


@dataclass(frozen=True, slots=True)
class Skinny:
    """A launch of the thin kernel. long: which matrix is read in one go. parts: of k, in the workspace, of part_of_k
    products each. whole: C is written at once, without a workspace."""

    source: CudaSource
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    long: Literal["A", "B"]
    parts: int
    part_of_k: int
    whole: bool

    @property
    def block(self) -> tuple[int, int, int]:
        return THREADS, 1, 1

    def __str__(self) -> str:
        return self.source.entry + (f", k in {self.parts} parts" if self.parts > 1 else "")


def estimate_us(gemm: Gemm, skinny: Skinny, spec: DeviceSpec, count: int = 1) -> float:
    """About how long the thin kernel takes for a problem, or `count` of them: the time of memory, of the busiest SM's
    share of L2, or of the products, whichever is most, and of the sum of parts."""
    few, many = sorted((gemm.m, gemm.n))
    clock_hz = spec.boost_clock_mhz * 1e6
    blocks = prod(skinny.grid)
    busiest = ceil_div(blocks, spec.sm_count) / blocks  # of all the work
    long_bytes = count * many * gemm.k * gemm.dtype.bytes
    rows = next(r for r in (1, 2, 4, 8, 16) if few <= r)
    instructions = count * many * gemm.k * (rows * FFMA_CLOCKS * spec.ffma_issue_interval_clk + _ADDED_PER_VALUE)
    latency = 2 * spec.dram_latency_clk / clock_hz  # of the first loads and the last stores
    sm_seconds = latency + busiest * max(
        long_bytes / (spec.l2_bytes_per_clk_per_sm * clock_hz),
        instructions / WARP_THREADS / (spec.schedulers_per_sm * clock_hz),
    )
    total = LAUNCH_SECONDS + max(sm_seconds, count * gemm.compulsory_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9))
    return 1e6 * (total if skinny.whole else total + finish_seconds(gemm, spec, skinny.parts))


def skinny_for(
    gemm: Gemm, alignment: Alignment, spec: DeviceSpec | None, stack: Stack | None = None, *, parts: int = 0
) -> Skinny | None:
    """The thin kernel for a problem or a stack of them; None where it is not thin, or another format is asked for.

    parts: of k; 0 for as many as fill the device, which must be known then. Operands that may be rounded to tf32 are
    not: that would win no time here.
    """
    most = MOST_ROWS if gemm.dtype is F32 else MOST_ROWS_NARROW
    few, many = min(gemm.m, gemm.n), max(gemm.m, gemm.n)
    if not 1 <= few <= most or many < LEAST_LONG or gemm.k < 1 or gemm.product not in (None, gemm.dtype, TF32):
        return None
    if gemm.accumulate is not F32 or (stack is not None and gemm.epilogue):
        return None
    long: Literal["A", "B"] = "B" if gemm.m <= gemm.n else "A"
    short: Literal["A", "B"] = "A" if long == "B" else "B"
    across = gemm.operand(long).contiguous != "k"
    length = many if across else gemm.k
    width = next(
        w
        for w in (16 // gemm.dtype.bytes, 8 // gemm.dtype.bytes, 4 // gemm.dtype.bytes, 1)
        if alignment.of(long) % (w * gemm.dtype.bytes) == 0 and length % w == 0
    )
    rows = next(r for r in (1, 2, 4, 8, 16) if few <= r)
    per_block = 32 * width if across else WARPS * columns_along(rows)
    blocks = ceil_div(many, per_block)
    if not parts:
        assert spec is not None
        room = spec.sm_count * (_BLOCKS_PER_SM if rows >= MANY_ROWS else 2 * _BLOCKS_PER_SM)
        # Problems of a stack fill the GPU together, and have no workspace each.
        parts = max(1, min(room // blocks, gemm.k // _LEAST_PART)) if stack is None else 1
    part_of_k = round_up(ceil_div(gemm.k, parts), 8 * 32)
    parts = ceil_div(gemm.k, part_of_k)
    whole = parts == 1 and not gemm.epilogue
    out = gemm.out if whole else F32
    leading = gemm.ldc if whole else gemm.n
    strides = (leading, 1) if long == "B" else (1, leading)  # from r to r, and from j to j
    turned = gemm.operand(short).contiguous == "k"
    short_leading = gemm.leading(short)
    steps = (0, 0, 0) if stack is None else (stack.a, stack.b, stack.c)  # of A, B and C
    arguments = (
        *(0, 0, 0),
        *(few, many, gemm.k, part_of_k),
        *((short_leading, 1) if turned else (1, short_leading)),
        *(gemm.leading(long), *strides, gemm.m * gemm.n),
        *(steps if long == "B" else (steps[1], steps[0], steps[2])),
        *((gemm.alpha, gemm.beta) if whole else (1.0, 0.0)),
    )
    source = thin_source(gemm.dtype, out, rows=rows, width=width, across=across)
    grid = (blocks, parts, 1 if stack is None else stack.count)
    return Skinny(source, grid, arguments, long, parts, part_of_k, whole)
