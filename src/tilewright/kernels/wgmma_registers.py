"""Registers of a thread of wgmma's kernels beside its accumulators, below which NVRTC spills."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels.columns import Column
from tilewright.kernels.wgmma_scales import columns_of, fragments_of
from tilewright.kernels.wgmma_steps import function_registers, stores_rows
from tilewright.problem.gemm import Gemm, Order

_TRANSPOSED_COLUMNS, _PAIRED_COLUMNS = 224, 16
"""Columns of an instruction whose result is transposed, beside which the addresses of more do not fit; and those that
an stmatrix stores: the last 8 of 216 take one of their own, and spill 8 to 16 bytes (NVRTC 13.0, 13.5), 208 none."""

_BESIDE_ROWS = 16
"""More registers of a thread where warps store whole rows of C: ping-pong 128 x 192 spills 32 bytes with NVRTC 13.0."""

_NARROW_COLUMNS, _NARROWEST_COLUMNS, _SAVED = 40, 16, 8
"""Columns of an epilogue subtile up to which a consumer in ping-pong takes fewer registers of a thread, or fewer still,
and how many: beside 200 and 208 accumulators nine epilogues do not spill with them, each does with 64 columns (NVRTC
13.0, 13.5). With 208 kernels in clusters do where an operand runs along m or n."""

_BESIDE_REST = 32
"""More where C has 4 bytes and the last subtile is narrower than the others of 32 columns: in ping-pong 128 x 168
spills 12 bytes, 128 x 200 864, by one consumer 192 x 104 68; 128 x 160 and 192 in ping-pong none (NVRTC 13.0). Of 364
drawn kernels with it 192 x 104 alone did."""

_BESIDE_SCALES = 8
"""More of ping-pong with wider subtiles, beside scales of rows and of columns: 128 x 192 spills 96 bytes."""

_FRAGMENT_REGISTERS = 16
"""Registers of a thread for 64 rows of a k tile that are read through registers: 64 x 32 elements."""

_SEVERAL_OF_PERSISTENT = 8
"""More of a persistent block for several times 64 rows: with fewer NVRTC 13.0 spills up to 24 bytes. Found by compiling
80 drawn kernels."""


def registers_beside(config: Any, gemm: Gemm | None = None) -> Column:
    """Registers of a thread of a consumer beside its accumulators: with fewer NVRTC 13.0 spills, most of all where it
    transposes C on its way out by stmatrix, or sends accumulators to other blocks. Found by compiling 14,000 drawn
    kernels; a C of 4 bytes, which goes element by element, takes no more than one that is not staged. gemm: whose
    epilogue it computes; by default a plain one whose operands run along k."""
    by_element = gemm is not None and gemm.out.bytes == 4
    transposing = np.logical_and(config.swap_ab, (config.subtile > 0) & (not by_element))
    unstaged = np.where(config.swap_ab, 64, np.where(config.consumers == 1, 72, 48))
    unstaged = np.where(config.cluster_k > 1, 112, unstaged)
    columns = columns_of(config)
    wide = columns + columns % _PAIRED_COLUMNS * 2 > _TRANSPOSED_COLUMNS
    beside = np.where(transposing, np.where(wide, 140, np.where(config.consumers > 2, 92, 88)), unstaged)
    fragments = fragments_of(config)
    held = _FRAGMENT_REGISTERS * fragments + _SEVERAL_OF_PERSISTENT * config.persistent * (fragments > 1)
    beside = beside + _BESIDE_REST * _has_rest(config) if by_element else beside
    return beside + held * config.left_in_registers + _in_ping_pong(config, gemm) + _of_epilogue(config, gemm)


def _has_rest(config: Any) -> Column:
    """Whether the last epilogue subtile is narrower than the others, whose order of stores lanes exchange."""
    wide = (config.subtile > _NARROWEST_COLUMNS) & np.logical_not(config.swap_ab)
    return wide & (config.n % np.maximum(config.subtile, 1) > 0)


def _in_ping_pong(config: Any, gemm: Gemm | None) -> Column:
    """More of a consumer in ping-pong that stages C: fewer where few columns of it are stored at a time."""
    scaled = gemm is not None and {"m", "n"} <= {*gemm.epilogue.scale}
    if gemm is not None and gemm.out.bytes == 4:
        more = _BESIDE_SCALES * scaled - _SAVED * (config.subtile <= _NARROWEST_COLUMNS)
        return more * config.ping_pong * (config.subtile > 0)
    fewest = gemm is None or (gemm.a, gemm.b) == (Order.ROW, Order.COL)
    narrow, narrowest = (config.subtile <= most for most in (_NARROW_COLUMNS, _NARROWEST_COLUMNS))
    more = _BESIDE_SCALES * scaled * np.logical_not(narrow) - _SAVED * (narrow + 1 * narrowest * fewest)
    return more * config.ping_pong * (config.subtile > 0)


def _of_epilogue(config: Any, gemm: Gemm | None) -> Column:
    if gemm is None:
        return 0
    return function_registers(gemm) * np.logical_not(config.swap_ab) + _BESIDE_ROWS * stores_rows(config.subtile, gemm)
