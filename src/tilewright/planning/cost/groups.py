"""How long products of several sizes take that one launch computes: groups whose ends lie on the GPU, and groups that
the host knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.model.time import predict_seconds
from tilewright.planning.cost.block_clocks import CORRECTED_WAVEFRONT_CLOCKS, blocks_per_sm
from tilewright.planning.cost.launches import Around
from tilewright.planning.cost.plans import plan_seconds
from tilewright.planning.packing import TMA_BYTES, Alignment, Groups, Packing
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

_SMALL_GROUP = 512
"""Rows of a group up to which its last row of tiles decides: of more than four rows of 128 it is a detail."""

_IN_TURN = 1.04
"""Times of a kernel that takes its tiles one after the other: nothing covers how it finds the group of the next one.
H200, bf16, eighteen groups of 280 to 2000 rows, half of them uneven, 52 to 960 GFLOP, by up to nine kernels each: the
choice is 1.010 of the best measured, and 1.018 without this (record 0078)."""

_UNEVEN = 0.25
"""How much it counts that large groups may end anywhere in their last row of tiles, or of clusters of them: half of it
is empty then."""

_TIE, _WASTED = 0.05, 0.02
"""How much of the time of the SMs counts where memory takes longer, and how much rows of tiles that a group does not
have: of kernels that wait for memory alike, the one is chosen that asks the SMs for less."""


def tma_groups_seconds(c: Columns, typical: Gemm, groups: Groups, spec: DeviceSpec, result_bytes: int) -> Any:
    """Of kernels of wgmma, of groups of which `typical` is one; infinite for those that are far from the best.
    result_bytes: that rows of C are multiples of."""
    around = Around(Packing(), TMA_BYTES, TMA_BYTES, result_bytes, groups.count)
    (of_likely, likely), *others = _sizes_of(typical, groups.along)
    (found,) = plan_seconds("wgmma", [(c, around)], likely, spec, corrected=_LOOKED_AT)
    near = np.argsort(found, kind="stable")[:_LOOKED_AT]
    some = c[near]
    times = [(of_likely, likely, found[near])]
    for share, one in others:
        times.append((share, one, plan_seconds("wgmma", [(some, around)], one, spec, corrected=_LOOKED_AT)[0]))
    seconds = np.full(len(c), np.inf)
    seconds[near] = sum(share * one_s * (1 + _WASTED * _rows_asked(some, one) / one.m) for share, one, one_s in times)
    if groups.along == "m" and typical.m > _SMALL_GROUP:
        seconds = seconds * (1 + _UNEVEN * c.m * c.cluster_m / 2 / typical.m)
    return seconds * np.where(c.ping_pong > 0, 1.0, _IN_TURN)


_LOOKED_AT = 64
"""Kernels that are priced for several sizes."""


def _sizes_of(typical: Gemm, along: str) -> tuple[tuple[float, Gemm], ...]:
    """What a kernel of wgmma is chosen for, and with which weight: products of as many groups of one size. Small groups
    may all have the average size, and end with a tile; or any, and end anywhere inside their last one."""
    if along == "k" or typical.m > _SMALL_GROUP:
        return ((1.0, typical),)
    spread = min(_SPREAD, typical.m / 2)
    uneven = (replace(typical, m=max(1, round(typical.m + rows))) for rows in (-spread, spread))
    return ((_EQUAL, typical), *(((1 - _EQUAL) / 2, one) for one in uneven))


_SPREAD, _EQUAL = 64, 0.4
"""Rows that stand for the half of a last tile that is empty in the mean; and how much equal sizes count. H200, bf16, 24
problems, 19 of them uneven, up to 19 kernels each: by these the choice is 1.026 of the best measured, by the average
size and an eighth more 1.075, at worst 1.12 and 1.30 (record 0085)."""


def _rows_asked(c: Columns, one: Gemm) -> Any:
    """Rows of the tiles of a group, with those that it does not have."""
    return ceil_div(one.m, c.m * c.cluster_m) * (c.m * c.cluster_m)


def groups_seconds(kind: str, c: Columns, typical: Gemm, groups: Groups, spec: DeviceSpec, alignment: Alignment) -> Any:
    """Of persistent kernels of warps, by the performance model."""
    tiles = _lines_of_tiles(typical.m, c.m, groups) * ceil_div(typical.n, c.n)
    setting = Setting(
        np.ceil(groups.count * tiles), ceil_div(typical.k, c.k), min(alignment.a, alignment.b), alignment.c
    )
    moved_bytes = float(groups.count * typical.compulsory_bytes)
    together, alone = (_seconds(kind, c, typical, spec, setting, of_dram) for of_dram in (moved_bytes, 0.0))
    return together + _TIE * alone


def _lines_of_tiles(rows: int, tile: Any, groups: Groups) -> Any:
    """Rows of tiles of an average group. Ragged ones end anywhere inside their last tile; those of equal sizes do not.
    The host knows neither, so that the mean of the two counts."""
    whole = ceil_div(rows, tile)
    if groups.along == "k":
        return whole
    return (whole + np.maximum(1.0, rows / tile + 0.5)) / 2


def several_seconds(kind: str, c: Columns, gemms: Sequence[Gemm], spec: DeviceSpec) -> Any:
    """Of kernels of warps that compute problems of one class together; infinite where a block does not fit on an SM.
    Their blocks share the SMs, and the longest sum is the least that it takes."""
    k_tiles = np.stack([ceil_div(gemm.k, c.k) for gemm in gemms])
    tiles = np.stack([ceil_div(gemm.m, c.m) * ceil_div(gemm.n, c.n) for gemm in gemms])
    blocks = np.maximum(1, tiles.sum(axis=0))
    alike = Setting(blocks, ceil_div((tiles * k_tiles).sum(axis=0), blocks))
    longest = Setting(np.ones_like(blocks), k_tiles.max(axis=0))
    moved_bytes = sum(gemm.compulsory_bytes for gemm in gemms)
    first = gemms[0]
    seconds = [_seconds(kind, c, first, spec, setting, moved_bytes) for setting in (alike, longest)]
    return np.where(blocks_per_sm(kind, c, first, spec) > 0, np.maximum(*seconds), np.inf)


def _seconds(kind: str, c: Columns, gemm: Gemm, spec: DeviceSpec, setting: Setting, moved_bytes: float) -> Any:
    return predict_seconds(
        work_of(kind, c, gemm, setting),
        spec,
        blocks_per_sm=np.maximum(1, blocks_per_sm(kind, c, gemm, spec)),
        dram_bytes=moved_bytes,
        wavefront_clocks=CORRECTED_WAVEFRONT_CLOCKS,
    )
