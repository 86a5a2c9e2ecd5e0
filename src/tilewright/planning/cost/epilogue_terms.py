"""What a function of the epilogue costs beside a product of wgmma: what it applies, reads and folds."""

from __future__ import annotations

from functools import lru_cache
from math import log

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Column, Columns
from tilewright.lowering.epilogue_results import LEAST_IN_LANES, MOST_AT_ONCE, MOST_LEFT, TOGETHER, WIDE_GROUP
from tilewright.problem.gemm import Gemm
from tilewright.problem.values import Added, Applied, inside

_APPLIED = 0.4
"""Clocks of an SM for a function of an element. Measured on an H100 with silu of one of two sums: 128 x 128 with two
consumers of a tile took 2.94 ms for 8192 x (2 x 14336) x 4096, 128 x 96 in ping-pong 2.52."""

_READ, _READ_BETWEEN = 0.1, 0.5
"""Clocks of an SM for an element of a matrix that an epilogue reads some chunks ahead, and between stores of results,
where a thread has no registers for that, or reads single elements. Measured on an H200 at 8192 x 8192 x 1024: beta * C
adds 62 us with two consumers of 128 x 256 and 39 with 128 x 192 in ping-pong, a residual beside sums of rows 54 with
128 x 256, 144 with 200 x 128 and swap-AB, 246 with 128 x 176 in ping-pong; memory takes 32."""

_FOLDED, _SHARED_OUT, _FOLDED_APART = 0.02, 0.04, 0.25
"""Clocks of an SM for an element of a fold: in groups of 64; in groups of 8 where lanes share out the values of a
chunk, as those of columns always are; and by shuffles of each value, where threads store C themselves. Measured in the
same way at k = 4096 with 128 x 256: sums of squares of rows add 9 us; two sums of columns with the largest of rows 37
to 54, most of it behind the kernel. By shuffles of each value these took 112, and sums of squares of rows with swap-AB
68."""

_BEHIND_US = 1.0
"""Of a launch that folds partial results, beside what it reads."""

_SLOWED = 0.3
"""The share of the clocks of reads that MMAs of another warpgroup beside them lose. Of 8192 x 8192 x 4096 in
ping-pong, a residual and sums of rows take 845 us with 128 x 176, sums of rows 752; beta * C 718 with 128 x 192,
nothing 701. Of folds they lose all: two sums of columns with the largest of rows add 52 us to 128 x 176 in ping-pong,
37 to 54 to 128 x 256 with two consumers of a tile."""

_BESIDE_SUMS = 68
"""Registers of a thread beside its sums with which it reads a chunk of 2-byte elements ahead (`epilogue_ahead`)."""


@lru_cache(maxsize=64)
def function_clocks(gemm: Gemm) -> float:
    """Clocks of an SM for what functions of the epilogue apply to an element: beside a sum of some thousand of k they
    are a tenth of the time, which only ping-pong hides."""
    epilogue = gemm.epilogue
    if epilogue.function is None:
        return 0.0
    values = (epilogue.value, *(one.value for one in epilogue.results))
    return _APPLIED * len({one for value in values for one in inside(value) if isinstance(one, Applied)})


@lru_cache(maxsize=64)
def matrices_read(gemm: Gemm) -> int:
    """Matrices that an epilogue reads, of the size of C."""
    return (gemm.beta != 0) + sum(not one.is_vector for one in gemm.epilogue.named)


def beside_clocks(c: Columns, gemm: Gemm) -> tuple[Column, Column]:
    """Clocks of a tile for what its epilogue reads and folds; of these, what MMAs of another warpgroup lose."""
    folds: Column = sum((_fold_clocks(one, c, gemm) for one in gemm.epilogue.written if one.fold is not None), 0.0)
    reads: Column = 0.0
    if count := matrices_read(gemm):
        has_room = wgmma.accumulators_of(c) + _BESIDE_SUMS <= wgmma.consumer_registers(c, gemm)
        ahead = (c.swap_ab == 0) & has_room if gemm.epilogue.written else c.m > 0
        reads = count * np.where(ahead, _READ, _READ_BETWEEN)
    elements = c.m * c.n / c.cluster_k
    return (reads + folds) * elements, (_SLOWED * reads + folds) * elements


def _fold_clocks(one: Added, c: Columns, gemm: Gemm) -> Column:
    """Clocks for an element of a fold."""
    assert one.fold is not None
    shared = np.where(c.subtile > 0, _SHARED_OUT, _FOLDED_APART)
    if one.along == gemm.operand("C").contiguous and not one.fold.whole:
        return shared
    return np.where(_folds_wide(c), _FOLDED, shared)


def _folds_wide(c: Columns) -> Column:
    """Whether warpgroups fold the groups of rows of C themselves."""
    return (c.n % WIDE_GROUP == 0) & (c.swap_ab == 0) & (c.subtile > 0)


def partials(c: Columns, gemm: Gemm, spec: DeviceSpec) -> tuple[Column, Column]:
    """Of the partial results of folds: bytes that kernels write, and seconds of the launches that read them."""
    elements: Column = 0.0
    seconds: Column = 0.0
    along = gemm.operand("C").contiguous
    for one in gemm.epilogue.written:
        if one.fold is None or one.fold.codes is not None or one.fold.whole:
            continue
        length = gemm.size("n" if one.along == "m" else "m")
        wide = _folds_wide(c) & (one.along != along and length > MOST_AT_ONCE)
        group = np.where(wide, WIDE_GROUP, LEAST_IN_LANES)
        elements = elements + gemm.m * gemm.n / group
        levels = np.ceil(np.log(np.maximum(length / group / MOST_LEFT, 1.0)) / log(TOGETHER))
        seconds = seconds + 1e-6 * _BEHIND_US * (1 + levels)
    read = elements * TOGETHER / (TOGETHER - 1)
    return F32.bytes * elements, seconds + F32.bytes * read / (spec.dram_gb_per_s * 1e9)
