"""The kernels that come into question for a problem, as NumPy columns, a table for each family.

A table says nothing of speed: `cost` prices every row of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import GemmConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.mma_presets import BEST as MMA_BEST
from tilewright.kernels.mma_presets import at_depth
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.spaces import wgmma_core
from tilewright.kernels.wgmma_steps import INSTRUCTION_ROWS
from tilewright.planning.correction import FITTED_FOR
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

_MOST_ROWS = 16
"""Rows of tiles that blocks visit together, at most: their strips of A stay in the L2."""


_FLAT = ((32, 256, 32, 64), (32, 128, 32, 32), (16, 64, 16, 32), (16, 32, 16, 32))
_DEEP = ((16, 128, 16, 32), (16, 128, 16, 64), (16, 256, 16, 64), (32, 128, 32, 32))
"""m, n and those of a warp: more SIMT tiles, and some with k tiles twice as deep. By the model alone they seem faster
than they are, so they are candidates where `correction` knows them."""


def candidates(gemm: Gemm, spec: DeviceSpec, count: int = 1) -> Mapping[str, Columns]:
    """Tables of what can multiply the formats of a problem on a device, by family. count: of such problems."""
    configs = list(configurations(gemm, spec))
    found = {configs[0].kind: Columns.of(configs, configs[0].columns)}
    if spec.compute_capability[0] == 9 and found.keys() == {"mma"}:
        return {"wgmma": _wgmma(gemm, spec, count), **found}
    return found


def families_for(gemm: Gemm, spec: DeviceSpec, family: str) -> tuple[str, ...]:
    """A family that was asked for, as far as the device has what it needs."""
    since = {"simt": (0, 0), "mma": (8, 0), "wgmma": (9, 0)}
    known = family in since and spec.compute_capability >= since[family]
    return (family,) if known and (family != "wgmma" or spec.compute_capability[0] == 9) else ()


def configurations(gemm: Gemm, spec: DeviceSpec) -> Iterator[GemmConfig]:
    """The kernels behind the tables but for wgmma's. Where no tensor core multiplies the formats, the CUDA cores do."""
    rate = spec.tensor.flops_per_clk_per_sm(gemm.multiplied.rate, "f32") if gemm.multiplied is not F32 else 0
    tensor_cores = bool(rate)
    if not tensor_cores or spec.compute_capability < (8, 0):
        yield from _simt(gemm, spec)
        return
    yield from _mma(gemm)


def _simt(gemm: Gemm, spec: DeviceSpec) -> Iterator[SimtConfig]:
    """k is unrolled by 8, but for the largest tiles: in a longer run of FMAs ptxas moves the loads of the next tile to
    its end, right before their use, which few warps have nothing to cover with (tests/planning/test_candidates.py)."""
    for m, n, warp_m, warp_n in (
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
        *(_FLAT if spec.compute_capability == FITTED_FOR else ()),
    ):
        unroll = 16 if m * n == 128 * 256 else 8
        rows = _raster_rows(gemm, spec, m, n)
        yield SimtConfig((m, n, 16), (warp_m, warp_n), unroll=unroll, raster_rows=rows)
    for m, n, warp_m, warp_n in _DEEP if spec.compute_capability == FITTED_FOR else ():
        yield SimtConfig((m, n, 32), (warp_m, warp_n), unroll=16, raster_rows=_raster_rows(gemm, spec, m, n))
    # Rows that nearly fill a tile may be as fast as in the GEMV kernel: copies of B run ahead by several stages.
    if 8 < gemm.m <= 16 and gemm.b is Order.ROW and gemm.dtype is F32:
        yield SimtConfig((16, 256, 16), (16, 64), b_transport="cp_async", stages=4, unroll=8)


def _raster_rows(gemm: Gemm, spec: DeviceSpec, m: int, n: int) -> int:
    """Rows of tiles that blocks visit together. One row after another, each would read all of B anew, where it does not
    fit into the L2 and a row has more tiles than run at a time."""
    rows, columns = ceil_div(gemm.m, m), ceil_div(gemm.n, n)
    again = columns > spec.sm_count and gemm.k * gemm.n * gemm.dtype.bytes > spec.l2_bytes
    return min(_MOST_ROWS, rows) if again else 1


def _mma(gemm: Gemm) -> Iterator[MmaConfig]:
    for m, n, warp_m, warp_n, stages in (
        (128, 256, 64, 64, 3),
        (128, 128, 64, 64, 3),
        (64, 128, 32, 64, 4),
        (64, 64, 32, 32, 4),
    ):
        config = replace(MMA_BEST, tile=(m, n, 32), warp_tile=(warp_m, warp_n), stages=stages)
        yield at_depth(config, gemm)


_LEAST_WORK = 40
"""Elements of C whose products take as long as the arrival of a row of A or a column of B."""

_WORK_OF_A_BYTE = 1 / 75
"""Elements of C whose products take as long as a byte of memory, with all SMs asking."""

_OTHER_WORK = 80_000
"""Elements of C whose products take as long as start, prologue and epilogue of a block."""

_MOST_WORK = 1.35
"""Times of the least work of the busiest SM, above which kernels are not looked at closely."""

_LONG_FLOPS = 1.05e11
"""Of a persistent kernel that does not start under the one before. Blocks that start where others have just ended lie
on the SMs in any order, and neighbours no longer ask for the same lines at the same time: more requests reach the L2.
Measured on the H200 in bf16 at 4096 x 14336 x 4096, sustained: 0.990 of cuBLAS with dependent launch, else 1.000; at
2048^3, 24 us in a burst, 1.000 with it, else 0.973 (benchmarks/results/early_start_h200.jsonl)."""

_FLAT_GRID = 0.3
"""Rows of tiles by columns, up to which tiles are visited column by column: neighbours share the longer operand. On the
H200 in bf16, 300 x 6144 x 4096 with tiles of 80 x 192: 28.6 us, row by row 35.4."""


def _wgmma(gemm: Gemm, spec: DeviceSpec, count: int) -> Columns:
    """Tiles that a problem fills and that keep the SMs busy."""
    c = wgmma_core(gemm)
    high, wide = np.where(c.swap_ab, 8, INSTRUCTION_ROWS), np.where(c.swap_ab, INSTRUCTION_ROWS, 8)
    rows, columns = ceil_div(gemm.m, c.m), ceil_div(gemm.n, c.n)
    kept = (c.m < gemm.m + high) & (c.n < gemm.n + wide) & (c.cluster_m <= rows) & (c.cluster_n <= columns)
    return c[np.flatnonzero(kept & ((c.ping_pong == 0) | (rows * columns * count > spec.sm_count)))]


def promising(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> Columns:
    """Kernels of wgmma, with split-K, whose busiest SM has little more work than that of the best of them."""
    if not len(c):
        return c
    blocks = ceil_div(gemm.m, c.m) * ceil_div(gemm.n, c.n) * c.split_k * count
    # Blocks of a batch whose sums are short begin and end too often, if each has one tile.
    many = (c.persistent > 0) | (blocks <= spec.sm_count)
    if count > 1 and many.any():
        c, blocks = c[many], blocks[many]
    steps = ceil_div(ceil_div(gemm.k, c.k), c.split_k)
    step = np.maximum(c.m * c.n, _LEAST_WORK * (c.m + c.n))
    work = ceil_div(blocks, spec.sm_count * c.per_sm) * c.per_sm * steps * step
    work = np.maximum(work, count * gemm.compulsory_bytes * _WORK_OF_A_BYTE) + _OTHER_WORK * (1 + (c.split_k > 1))
    # Without split-K too: a call may have no workspace, or one order of summation.
    whole = c.split_k == 1
    least = np.where(whole, np.min(work, where=whole, initial=np.inf), work.min())
    return c[np.flatnonzero(work <= _MOST_WORK * least)]


def with_options(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> Columns:
    """Kernels of wgmma in the order of tiles, and with or without the dependent launch, that sweeps found good."""
    rows, columns = ceil_div(gemm.m, c.m), ceil_div(gemm.n, c.n)
    by_columns = (c.persistent > 0) | (rows <= _FLAT_GRID * columns)
    blocks = rows * columns * c.split_k * count
    room = blocks <= spec.sm_count * c.per_sm / 2
    early = np.where(c.persistent, gemm.flops * count < _LONG_FLOPS, room)
    return c.with_columns(raster_rows=np.where(by_columns, _MOST_ROWS, 1), dependent_launch=early)
