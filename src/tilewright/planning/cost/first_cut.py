"""Which kernels of wgmma are priced at all: the likely ones, of thousands with every count of split-K.

The work of a kernel's busiest SM says most, in a few operations on columns. What it leaves out is learned: a network
knows a kernel by a few numbers, which a table keeps, another knows how much each of them matters to a problem. Both are
taught what the whole estimate says of drawn problems (`benchmarks/fit_first_cut.py`, record 0114).
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES
from tilewright.planning.cost.correction import FirstCut, fit_for, stacked
from tilewright.planning.cost.plans import problem_features
from tilewright.planning.cost.promising import tiles_along
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

LIKELY = 40
"""Kernels that a choice looks at."""

_ALONE = 16
"""And of those without split-K: a call may have no workspace, or one order of summation."""

_UNKNOWN = 512
"""Kernels of products that nobody taught: the work alone leaves out what matters."""

_LITTLE_WORK = 1536
"""Kernels of which networks are asked, those of the least work."""

_LEAST_WORK = 40
"""Elements of C whose products take as long as the arrival of a row of A or a column of B."""

_WORK_OF_A_BYTE = 1 / 75
"""Elements of C whose products take as long as a byte of memory, with all SMs asking."""

_OTHER_WORK = 80_000
"""Elements of C whose products take as long as start, prologue and epilogue of a block."""


def likely(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int = 1, most: int | None = None) -> Any:
    """Places of the kernels that are priced, ascending. count: of a batch. most: how many; None: as many as a choice
    needs."""
    first = None if gemm.pieces is not None else fit_for("wgmma", gemm.dtype).first
    most = most or (LIKELY if first else _UNKNOWN)
    work = work_of(c, gemm, spec, count)
    at = _least(work, len(c) if first is None else max(most, _LITTLE_WORK))
    at = at[np.isfinite(work.take(at))]
    told = work.take(at) if first is None else logarithms(c, at, work.take(at), gemm, spec, count, first)
    alone = (c.split_k.take(at) == 1).nonzero()[0]
    best = _least(told, most), alone.take(_least(told.take(alone), _ALONE))
    chosen = np.zeros(len(c), dtype=bool)
    chosen[at.take(np.concatenate(best))] = True
    return chosen.nonzero()[0]


def _least(values: Any, most: int) -> Any:
    """Places of the least of them."""
    return values.argpartition(most)[:most] if len(values) > most else np.arange(len(values))


def work_of(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """Work of the busiest SM; infinite of kernels that are not looked at."""
    split = c.split_k
    parts = split * c.cluster_k
    blocks = c.tiles * parts * count
    steps = tiles_along(ceil_div(gemm.k, SWIZZLE_ATOM_BYTES // gemm.dtype.bytes), parts)
    work = np.ceil(blocks / (spec.sm_count * c.per_sm)) * c.k_tile_work * steps
    work = np.maximum(work, count * gemm.compulsory_bytes * _WORK_OF_A_BYTE) + _OTHER_WORK * (1.0 + (split > 1))
    if count > 1:  # blocks of a batch whose sums are short begin and end too often, if each has one tile
        many = (c.persistent > 0) | (blocks <= spec.sm_count * c.per_sm)
        work = np.where(many | (not many.any()), work, np.inf)
    return work


def k_tile_work(core: Columns, products: int) -> Column:
    """Work of a k tile of all blocks of an SM. products: of pieces."""
    return core.per_sm * np.maximum(products * core.m * core.n, 1.0 * core.pieces * _LEAST_WORK * (core.m + core.n))


def logarithms(c: Columns, at: Any, work: Any, gemm: Gemm, spec: DeviceSpec, count: int, first: FirstCut) -> Any:
    """Of what some kernels take, beside each other. at: places of the kernels. work: of each."""
    matters = first.problem.said(about(gemm, spec, count))[0]
    some = c[at]
    sized = sized_features(some, work, gemm, spec, count)
    known = some.fact("first cut", lambda kept: first.kernel.said(kernel_features(kept)))
    return sized[0] + matters[-SIZED:] @ sized + known @ matters[:-SIZED]


def about(gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """What a network is asked about a problem, (1, features). It says how much each number that a kernel is known by
    matters, then each of `sized_features`."""
    return np.append(problem_features(gemm, count), [[log2(spec.dram_gb_per_s)]], axis=1)


def kernel_features(c: Columns) -> Any:
    """What a network is asked about kernels, (kernels, features). It says by which numbers each is known."""
    told = (
        *(np.log2(c.m), np.log2(c.n), c.n % 64, c.n % 32, c.n / (c.m + c.n), c.consumers, c.ping_pong, c.swap_ab),
        *(c.persistent, c.cluster_m, c.cluster_n, np.log2(c.cluster_k), c.left_in_registers, c.per_sm, c.pieces),
        *(c.stages, c.subtile, c.subtile_stages, c.stages * (c.m + c.n), c.m / c.cluster_n + c.n / c.cluster_m),
    )
    return stacked(told, len(c))


def sized_features(c: Columns, work: Any, gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """What the sizes of a problem make of kernels, (features, kernels): the logarithm of their work beside the least,
    parts of split-K, waves, and what tiles add at the edges."""
    fill = c.tiles * (c.split_k * c.cluster_k) * (count / spec.sm_count) / c.per_sm
    waves = np.ceil(fill)
    found = np.empty((SIZED, len(work)))
    found[0] = work / work.min()
    found[1] = c.split_k
    found[2] = fill
    found[3] = tiles_along(gemm.m, c.m) * c.m / gemm.m
    found[4] = tiles_along(gemm.n, c.n) * c.n / gemm.n
    np.log2(found[:5], out=found[:5])
    np.divide(fill, waves, out=found[5])
    np.divide(1.0, waves, out=found[6])
    np.minimum(fill, 1.0, out=found[7])
    return found


SIZED = 8
"""Features that depend on sizes."""
