"""What kernels of mma.sync take where rows of A or B are not multiples of 16 bytes, so that copies are narrow.

The performance model counts copies as wide ones. Narrow ones are more of them: each takes registers, which cost blocks
their place on an SM. Those of less than 4 bytes cp.async does not copy: a thread loads elements, waits, and stores
them, so that each k tile takes as long as memory takes to answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.tile_sizes import accumulators_of, warps_of
from tilewright.planning.cost.launches import Around, Sizes
from tilewright.problem.gemm import Gemm

_LEAST_ASYNC_BYTES = 4
"""That cp.async copies."""

_OTHER_REGISTERS, _REGISTERS_OF_A_COPY, _REGISTERS_TOGETHER = 32, 2, 8
"""Of a thread, beside two for each accumulator; of each of its copies into a stage; and of which ptxas takes multiples.
ptxas gives 16 x 128 x 32 by four warps with 33 copies 128 where this says 136, 64 x 128 x 32 with 34 242 and 232, 32 x
64 x 64 with 12 by eight 116 and 96."""

_ANSWER_CLOCKS, _ELEMENT_CLOCKS = 817.0, 8.0
"""Of a k tile, from loads of elements to their stores; and of each element of a thread."""

_ASYNC_BYTES_PER_CLOCK = 42.0
"""Of what cp.async copies meanwhile. H200: 62 products, most of 2 to 64 rows, whose rows of A or B begin at any
element, take what these three constants say but for 0.142 in the logarithm (record 0089)."""

_MOST_COPIES = 64
"""Of a thread into a stage of mma.sync's ring, from which on a kernel is out of the question: its loop outgrows the
caches of instructions. H100, bf16, 8 x 50265 x 768: 324 us with 64 copies (59 KB of code), 332 with 66 (107 KB), 58
with 36 (28 KB); of 507 plans measured, those with up to 56 take what is estimated (benchmarks/choice_sweep.py)."""

_ROWS_OF_A_THREAD = 2
"""Of the longer side of a tile, from which on the same holds of kernels that copy elements: all 24 that were measured
took 4.8 to 32 times of the best of their problems (H200, record 0089)."""


def copies_of_a_thread(c: Columns, gemm: Gemm, around: Around) -> tuple[Column, Column]:
    """Of A and of B into a stage of mma.sync's ring: pieces as wide as their rows allow."""
    threads, row_bytes = WARP_THREADS * warps_of(c), c.k * gemm.dtype.bytes
    a_bytes, b_bytes = around.row_bytes("A"), around.row_bytes("B")
    return c.m * row_bytes / (a_bytes * threads), c.n * row_bytes / (b_bytes * threads)


def room_for_copies(c: Columns, gemm: Gemm, around: Around, spec: DeviceSpec) -> Column:
    """Blocks of an SM whose threads have registers for their copies."""

    def found(c: Columns) -> Any:
        a_copies, b_copies = copies_of_a_thread(c, gemm, around)
        registers = _OTHER_REGISTERS + 2 * accumulators_of(c) + _REGISTERS_OF_A_COPY * (a_copies + b_copies)
        registers = _REGISTERS_TOGETHER * np.ceil(registers / _REGISTERS_TOGETHER)
        registers = np.minimum(spec.max_registers_per_thread, registers)
        room = spec.registers_per_sm // (registers * WARP_THREADS * warps_of(c))
        return np.maximum(1, room).astype(np.int64)

    return c.fact(("room for copies", *_widths(gemm, around), spec), found)


def loops_fit_caches(c: Columns, gemm: Gemm, around: Around) -> Any:
    """Which kernels have loops that the caches of instructions hold."""

    def found(c: Columns) -> Any:
        a_copies, b_copies = copies_of_a_thread(c, gemm, around)
        fits = a_copies + b_copies < _MOST_COPIES
        if copies_elements(around):
            fits &= np.maximum(c.m, c.n) < _ROWS_OF_A_THREAD * WARP_THREADS * warps_of(c)
        return fits

    return c.fact(("loops", *_widths(gemm, around)), found)


def _widths(gemm: Gemm, around: Around) -> tuple[int, ...]:
    return gemm.dtype.bytes, around.row_bytes("A"), around.row_bytes("B")


def copies_elements(around: Around) -> bool:
    """Whether threads copy A or B element by element."""
    return around.loads_bytes < _LEAST_ASYNC_BYTES


def waiting_clocks(c: Columns, gemm: Gemm, around: Around, sizes: Sizes, per_sm: Column, most: Any, steps: Any) -> Any:
    """What copies by elements take more, of the busiest SM with `most` blocks, of which so many share it at a time.
    steps: k tiles of a block."""
    elements, async_bytes = 0.0, 0.0
    tiles = zip(("A", "B"), (c.m, c.n), (sizes.m, sizes.n), copies_of_a_thread(c, gemm, around), strict=True)
    for name, tile, size, copies in tiles:
        if around.row_bytes(name) < _LEAST_ASYNC_BYTES:
            elements = elements + copies
        else:
            async_bytes = async_bytes + np.minimum(tile, size) * c.k * gemm.dtype.bytes
    waits = np.ceil(most / np.maximum(1, per_sm)) * (_ANSWER_CLOCKS + _ELEMENT_CLOCKS * elements)
    return steps * (waits + most * async_bytes / _ASYNC_BYTES_PER_CLOCK)
