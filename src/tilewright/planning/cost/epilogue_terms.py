"""What a function of the epilogue costs beside a product of wgmma: what it applies, reads and folds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.dtypes import F32
from tilewright.kernels.columns import Column, Columns
from tilewright.problem.gemm import Gemm
from tilewright.problem.values import Applied, inside

_APPLIED = 0.4
"""Clocks of an SM for a function of an element. Measured on an H100 with silu of one of two sums: 128 x 128 with two
consumers of a tile took 2.94 ms for 8192 x (2 x 14336) x 4096, 128 x 96 in ping-pong 2.52."""

_READ_EACH = 0.1
"""Clocks of an SM for an element of a matrix that an epilogue reads, some chunks ahead. Measured on an H200: beta * C
adds 68 us to 8192 x 8192 x 1024 with two consumers of 128 x 256, 42 with 128 x 192 in ping-pong."""

_FOLDED_EACH = 0.05
"""Clocks of an SM for an element of a fold. Measured on an H200: sums of squares of rows add 35 us to 8192 x 8192 x
4096 with two consumers of 128 x 256, of which memory takes 16."""

_GROUP, _WIDE_GROUP, _MOST_AT_ONCE = 8, 64, 256
"""Elements of a partial result, and where warpgroups fold eight of them; elements of a line that one launch folds."""


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


def beside_clocks(c: Columns, gemm: Gemm) -> Column:
    """Clocks of a tile for what its epilogue applies, reads and folds, which runs beside the MMAs of the next one in
    ping-pong only."""
    folds = sum(one.fold is not None for one in gemm.epilogue.written)
    each = function_clocks(gemm) + _READ_EACH * matrices_read(gemm) + _FOLDED_EACH * folds
    return each * c.m * c.n / c.cluster_k


def partial_bytes(c: Columns, gemm: Gemm) -> Column:
    """Of the partial results of folds, which a launch behind the kernel reads."""
    elements: Column = 0.0
    for one in gemm.epilogue.written:
        if one.fold is None or one.fold.codes is not None or one.fold.whole:
            continue
        in_rows = one.along != gemm.operand("C").contiguous and gemm.size(gemm.operand("C").contiguous) > _MOST_AT_ONCE
        wide = in_rows & (c.n % _WIDE_GROUP == 0) & (c.swap_ab == 0) & (c.subtile > 0)
        elements = elements + gemm.m * gemm.n / np.where(wide, _WIDE_GROUP, _GROUP)
    return 2.0 * F32.bytes * elements
