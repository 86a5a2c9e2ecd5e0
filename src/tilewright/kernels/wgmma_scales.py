"""Kernels of wgmma with scales of blocks: what these take of registers and of shared memory; the sides of a tile, and
whether its fragments are promoted in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import F32
from tilewright.ir.tiles import BOX_ALIGN_BYTES
from tilewright.kernels.columns import Column
from tilewright.kernels.wgmma_steps import INSTRUCTION_ROWS
from tilewright.problem.block_scales import NAMES, BlockScales, slots_of
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

PRODUCER_REGISTERS = 24
COPY_REGISTERS, COPY_REGISTERS_OF_BOTH = 40, 56
"""Of the producer's warpgroup where some of its warps copy scales of blocks, of rows of one operand or of both."""

_FEW_COLUMNS = 64
"""Of an instruction whose columns have scales of their own, where its rows could have them: each takes a register."""


def rows_of(c: Any) -> Column:
    """Along which the 64 rows of an instruction run."""
    return c.n * c.swap_ab + c.m * (1 - c.swap_ab)


def columns_of(c: Any) -> Column:
    return c.m * c.swap_ab + c.n * (1 - c.swap_ab)


def sharing(c: Any) -> Column:
    return c.consumers - (c.consumers - 1) * c.ping_pong


def fragments_of(config: Any) -> Column:
    """Fragments of 64 rows of a warpgroup; one where a tile has less than each needs, which laws refuse."""
    return np.maximum(1, rows_of(config) // (INSTRUCTION_ROWS * sharing(config)))


def promotes_in_turn(config: Any) -> Column:
    """As `wgmma_steps.promotes_in_turn`, of however many fragments."""
    return (config.promote_every == config.k) & (config.pieces == 1) & (sharing(config) > 1)


def scale_registers(config: Any, gemm: Gemm) -> Column:
    """Registers of a thread for the scales of blocks that its accumulators are multiplied by when they are promoted."""
    scales = gemm.block_scales
    if scales is None:
        return 0
    rows, columns = (np.where(config.swap_ab, *sides) for sides in ((scales.b, scales.a), (scales.a, scales.b)))
    of_rows = fragments_of(config) * np.where(rows == 1, 2, 1)
    across = columns_of(config)
    return of_rows + np.where(columns == 1, across // 4, across // np.gcd(across, np.maximum(columns, 1)))


def blocks_fit(config: Any, gemm: Gemm) -> Column:
    """Whether a thread that would hold a scale for each of its columns has few of them, or no other choice."""
    scales = gemm.block_scales
    if scales is None:
        return config.m > 0
    shared = np.where(config.swap_ab, scales.a, scales.b)
    return np.logical_not((shared == 1) & (max(scales.a, scales.b) > 1) & (columns_of(config) > _FEW_COLUMNS))


def scale_bytes(config: Any, gemm: Gemm | None = None) -> Column:
    """Shared memory of the scales that come with the tiles of a stage."""
    scales = None if gemm is None else gemm.block_scales
    if scales is None:
        return 0
    if scales.by_tma:
        return sum(_slot_bytes(config, scales, name) for name in NAMES if scales.depth_of(name) == 1)
    entries = config.m // np.gcd(config.m, scales.a) + config.n // np.gcd(config.n, scales.b)
    return entries * F32.bytes


def slot_bytes(config: Any, stages: Column, gemm: Gemm | None = None) -> Column:
    """Shared memory of the slots that have the scales of several blocks of k each, beside so many stages."""
    scales = None if gemm is None else gemm.block_scales
    total: Column = 0
    if scales is not None and scales.by_tma:
        for name in NAMES:
            depth = scales.depth_of(name)
            if depth > 1:
                total = total + slots_of(stages, depth) * _slot_bytes(config, scales, name)
    return total


def _slot_bytes(config: Any, scales: BlockScales, name: str) -> Column:
    """Shared memory of what TMA loads of one operand's scales, which begins at a multiple of 128 bytes."""
    along, across = scales.box(name, config.m if name == NAMES[0] else config.n)
    return ceil_div(along * across * F32.bytes, BOX_ALIGN_BYTES) * BOX_ALIGN_BYTES


def producer_registers(gemm: Gemm | None = None) -> int:
    """Of a thread of the producer's warpgroup, some of whose warps copy the scales of blocks."""
    scales = None if gemm is None else gemm.block_scales
    if scales is None or scales.by_tma:
        return PRODUCER_REGISTERS
    return COPY_REGISTERS if max(scales.a, scales.b) > 1 else COPY_REGISTERS_OF_BOTH
