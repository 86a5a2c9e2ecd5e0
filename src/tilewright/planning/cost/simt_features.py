"""What the network of SIMT kernels is asked: how many warps cover each other's waits, what a thread holds, what blocks
share, what their shared memory leaves of the L1, and which parts of the time a plan spends where.
"""

from __future__ import annotations

from math import log2
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.simt import copied_by_registers, registers_of, shared_bytes
from tilewright.kernels.tile_sizes import warps_of
from tilewright.layout.banks import SECTOR_BYTES
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.exchange import filled_sms, parts_of, streams_k
from tilewright.planning.packing import TMA_BYTES
from tilewright.problem.gemm import Gemm, OperandName
from tilewright.units import KIB, ceil_div

_L1_AND_SHARED_BYTES = 256 * KIB
"""Of an SM of compute capability 9.0, where plans were measured. Source: CUDA C++ programming guide."""

_L1_LINE_BYTES = 128


class Busiest(NamedTuple):
    """Columns of kernels: what the busiest SM does. blocks: of the grid. most, together: blocks of the SM, and those
    that run at once. steps: k tiles of a block. step, ends: clocks of a k tile of all that run at once, and of what
    lies before the first and behind the last. exchange: clocks in which sums are exchanged."""

    blocks: Any
    most: Any
    together: Any
    steps: Any
    step: Any
    ends: Any
    exchange: Any

    def at(self, rows: Any) -> Busiest:
        """Of some of the kernels."""
        return Busiest(*(np.asarray(column).take(rows) for column in self))


def class_features(c: Columns, gemm: Gemm, spec: DeviceSpec) -> tuple[Any, ...]:
    """The first of them: what no size of a problem changes."""
    by_async = (c.a_transport == "cp_async") + 2 * (c.b_transport == "cp_async")
    warps, held = warps_of(c), copied_by_registers(c)
    asked = (c.m + c.n) * c.k / (WARP_THREADS * warps) - held
    return (
        *(np.log2(c.m), np.log2(c.n), c.k * gemm.dtype.bytes, c.warp_m, c.warp_n, np.log2(c.cluster_k)),
        *(by_async, c.unroll, c.copied, warps, held, asked, registers_of(c)),
    )


def sized_features(
    c: Columns,
    gemm: Gemm,
    lie: tuple[Column, ...],
    spec: DeviceSpec,
    sizes: tuple[Column, Column, Column],
    busiest: Busiest,
    seconds: Any,
    finishing: Any,
    count: int,
) -> tuple[Any, ...]:
    """The others. lie: whether A and B lie in columns, and bytes that rows of A, B and C are multiples of. seconds: as
    estimated, of which `finishing` behind the kernel."""
    m, n, k = sizes
    tile_m, tile_n, blocks = c.m, c.n, busiest.blocks
    rows, columns = ceil_div(m, tile_m), ceil_div(n, tile_n)
    sms = filled_sms(c, spec)
    fill = blocks / (sms * np.maximum(1, blocks_per_sm("simt", c, gemm, spec)))
    parts = blocks / (rows * columns * count)
    size_bytes = gemm.dtype.bytes
    moved_bytes = count * ((m * k + n * k) * size_bytes + m * n * gemm.out.bytes)
    asked_bytes = blocks * busiest.steps * (_asked(c, lie, size_bytes, "A") + _asked(c, lie, size_bytes, "B"))
    depth, steps_clocks = np.maximum(k, 1), busiest.steps * busiest.step
    left_bytes = _left_of_l1(c, gemm, spec, busiest.together)
    lines_bytes = 1.0 * busiest.together * (_in_flight(c, lie, size_bytes, "A") + _in_flight(c, lie, size_bytes, "B"))
    clock_hz = 1e6 * spec.boost_clock_mhz
    return (
        *(np.where(streams_k(c), -1.0, np.log2(c.split_k)), parts_of(c), *lie),
        *(np.log2(fill), fill / np.ceil(fill), blocks / (sms * busiest.most)),
        *(np.log2(rows), np.log2(columns), rows * tile_m / m, columns * tile_n / n),
        *(np.log2(m), np.log2(n), np.log2(depth), np.log2(depth / parts)),
        *(busiest.together * warps_of(c), np.log2(busiest.most), np.log2(np.maximum(1, busiest.steps))),
        np.log2(busiest.step / (busiest.together * tile_m * tile_n * c.k)),
        busiest.ends / (busiest.ends + steps_clocks),
        *(finishing / seconds, busiest.exchange / (seconds * clock_hz)),
        *(np.log2(seconds), moved_bytes / (spec.dram_gb_per_s * 1e9) / seconds, np.log2(moved_bytes / spec.l2_bytes)),
        *(np.log2(np.maximum(count * gemm.flops, 1) / seconds), np.log2(np.maximum(asked_bytes, 1) / seconds)),
        *(log2(count), c.dependent_launch, c.interleaved_copies, c.double_buffered_fragments),
        *(left_bytes, np.log2(1 + lines_bytes), np.log2((1 + lines_bytes) / left_bytes)),
    )


def _left_of_l1(c: Columns, gemm: Gemm, spec: DeviceSpec, together: Any) -> Any:
    """Bytes of the L1 beside the shared memory of so many blocks: the driver takes the smallest carve-out that fits."""
    needed = together * (shared_bytes(c, gemm) + spec.reserved_shared_bytes_per_block)
    carveouts = np.array(spec.shared_carveouts_bytes)
    taken = carveouts.take(carveouts.searchsorted(np.minimum(needed, carveouts[-1])))
    return 1.0 * (_L1_AND_SHARED_BYTES - taken)


def _in_flight(c: Columns, lie: tuple[Column, ...], size_bytes: int, name: OperandName) -> Any:
    """Bytes of lines of the L1 that the loads of A or B of a block wait for: whole lines, of each row of a tile where
    rows run along k. Copies of 16 bytes by cp.async go around the L1."""
    along_k, aligned_bytes = (1 - lie[0], lie[2]) if name == "A" else (lie[1], lie[3])
    side, transport = (c.m, c.a_transport) if name == "A" else (c.n, c.b_transport)
    by_async = transport == "cp_async"
    ahead = np.where(by_async, c.stages - 1, 1) * c.k * size_bytes
    rows = side * np.where(along_k > 0, ceil_div(ahead, _L1_LINE_BYTES) * _L1_LINE_BYTES, ahead)
    return np.where(by_async & (along_k < 1) & (aligned_bytes >= TMA_BYTES), 0, rows)


def _asked(c: Columns, lie: tuple[Column, ...], size_bytes: int, name: OperandName) -> Any:
    """Bytes of a tile of A or B, by sectors: rows along k that begin inside of one touch another one in part."""
    along_k, aligned_bytes = (1 - lie[0], lie[2]) if name == "A" else (lie[1], lie[3])
    outside = along_k * np.where(aligned_bytes < TMA_BYTES, SECTOR_BYTES - aligned_bytes, 0)
    return (c.m if name == "A" else c.n) * (c.k * size_bytes + outside)
