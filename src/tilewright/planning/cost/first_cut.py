"""Which plans of wgmma are priced at all: the likely ones of thousands. First the kernels without clusters and options,
with every count of split-K, of which each stands for all of its own; then the plans of those that are left.

The work of the busiest SM says most, in a few operations on columns. What it leaves out is learned: a network knows a
kernel by a few numbers, which a table keeps, another knows how much each of them matters to a problem. Both are taught
what the whole estimate says of drawn problems (`benchmarks/fit_first_cut.py`, record 0114).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES
from tilewright.planning.cost.correction import FirstCut, fit_for, stacked
from tilewright.planning.cost.plans import problem_features
from tilewright.planning.cost.promising import least, likeliest, tiles_along
from tilewright.planning.cost.wgmma_terms import CLUSTERED_SMS
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

KERNELS, PLANS = 40, 64
"""Kernels that a choice looks at, and of their plans those that it prices."""

_UNKNOWN, _UNKNOWN_PLANS = 32, 8
"""Times as many of products that nobody taught: the work alone leaves out what matters, and so do the terms."""

_LITTLE_WORK = 3000
"""Kernels or plans of which networks are asked, those of the least work."""

_LEAST_WORK = 40
"""Elements of C whose products take as long as the arrival of a row of A or a column of B."""

_WORK_OF_A_BYTE = 1 / 75
"""Elements of C whose products take as long as a byte of memory, with all SMs asking."""

_OTHER_WORK = 80_000
"""Elements of C whose products take as long as start, prologue and epilogue of a block."""


def likely_kernels(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int, most: int) -> Any:
    """Places of the likely kernels, ascending: each stands for all of its plans, in any cluster. count: of a batch.
    most: how many."""
    first, load, at, some = _first(gemm), load_of(c, gemm, spec, count), None, c
    if count > 1 or (first is not None and len(c) > _LITTLE_WORK):
        at = least(load.work, len(c) if first is None else max(most, _LITTLE_WORK))
        at = at[np.isfinite(load.work.take(at))]
        some, load = c[at], Load(*(of.take(at) for of in load))
    told = load.work
    if first is not None:
        known = some.fact("first cut", lambda kept: _known(kept, first, plans=False))
        told = _beside_each_other(some, load, known, _matters(first, gemm, spec, count), gemm, count)
    chosen = likeliest(told, some.split_k == 1, most if first else _UNKNOWN * most)
    return chosen if at is None else np.sort(at.take(chosen))


def with_likelihood(
    c: Columns, gemm: Gemm, spec: DeviceSpec, count: int, by_terms: Callable[[Columns], Any]
) -> Columns:
    """Kernels with what `likely_plans` asks for. by_terms: seconds of kernels, where nobody taught more. as_kernel:
    logarithms of what they take, beside each other; others: what each of `OPTIONS` adds."""
    first, load = _first(gemm), load_of(c, gemm, spec, count)
    if first is None:
        return c.with_columns(as_kernel=by_terms(c), **dict.fromkeys(OPTIONS, np.zeros(len(c))))
    matters = _matters(first, gemm, spec, count)
    known = c.fact("first cut of plans", lambda kept: _known(kept, first, plans=True))
    told = _beside_each_other(c, load, known, matters, gemm, count)
    options = (known * matters[:-SIZED])[:, NUMBERS:].reshape(len(c), len(OPTIONS), OF_OPTION).sum(axis=2).T
    return c.with_columns(as_kernel=told, **dict(zip(OPTIONS, options, strict=True)))


def likely_plans(c: Columns, gemm: Gemm, most: int) -> Any:
    """Places of the likely plans of kernels `with_likelihood`, ascending."""
    told = c.as_kernel + c.dependent_launch * c.adds_early + (c.raster_rows > 1) * c.adds_rows
    told += (c.staging == 1) * c.adds_less + (c.staging == 2) * c.adds_more
    return likeliest(told, c.split_k == 1, most if _first(gemm) else _UNKNOWN_PLANS * most)


def _first(gemm: Gemm) -> FirstCut | None:
    return None if gemm.pieces is not None else fit_for("wgmma", gemm.dtype).first


class Load(NamedTuple):
    """work: of the busiest SM; infinite of kernels that are not looked at. fill: waves of blocks, as a fraction. steps:
    k tiles of a block."""

    work: Any
    fill: Any
    steps: Any


def load_of(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int) -> Load:
    """What kernels make an SM do."""
    split = c.split_k
    parts = split * c.cluster_k
    blocks = c.tiles * parts * count
    clustered = (c.cluster_m * c.cluster_n >= 4) | (c.cluster_k >= 4)
    fill = blocks / (spec.sm_count * c.per_sm * np.where(clustered, CLUSTERED_SMS, 1.0))
    steps = tiles_along(ceil_div(gemm.k, SWIZZLE_ATOM_BYTES // gemm.dtype.bytes), parts)
    work = np.ceil(fill) * c.k_tile_work * steps
    work = np.maximum(work, _memory_work(gemm, count)) + _OTHER_WORK * (1.0 + (split > 1))
    if count > 1:  # blocks of a batch whose sums are short begin and end too often, if each has one tile
        many = (c.persistent > 0) | (blocks <= spec.sm_count * c.per_sm)
        work = np.where(many | (not many.any()), work, np.inf)
    return Load(work, fill, steps)


def _memory_work(gemm: Gemm, count: int) -> float:
    return count * gemm.compulsory_bytes * _WORK_OF_A_BYTE


def k_tile_work(core: Columns, products: int) -> Column:
    """Work of a k tile of all blocks of an SM. products: of pieces."""
    return core.per_sm * np.maximum(products * core.m * core.n, 1.0 * core.pieces * _LEAST_WORK * (core.m + core.n))


OPTIONS = ("adds_early", "adds_rows", "adds_less", "adds_more")
"""Of plans: dependent launch, rows of tiles that are visited together, less of C staged, or more."""

NUMBERS, OF_OPTION = 16, 6
"""By which a kernel is known, and further ones that matter with each option."""


def _beside_each_other(c: Columns, load: Load, known: Any, matters: Any, gemm: Gemm, count: int) -> Any:
    """Logarithms of what kernels take, without options."""
    sized = sized_features(c, load, gemm, count)
    return sized[0] + matters[-SIZED:] @ sized + known[:, :NUMBERS] @ matters[:NUMBERS]


@lru_cache(maxsize=64)
def _matters(first: FirstCut, gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """How much numbers and features matter to a problem, of which kernels are asked, then plans."""
    return first.problem.said(about(gemm, spec, count))[0]


def _known(c: Columns, first: FirstCut, *, plans: bool) -> Any:
    """The numbers by which kernels are known; those of options of plans alone."""
    found = first.kernel.said(kernel_features(c, plans=plans))
    return found if plans else found[:, :NUMBERS].copy()


def about(gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """What a network is asked about a problem, (1, features). It says how much each number that a kernel is known by
    matters, then each of `sized_features`."""
    return np.append(problem_features(gemm, count), [[log2(spec.dram_gb_per_s)]], axis=1)


def kernel_features(c: Columns, *, plans: bool) -> Any:
    """What a network is asked about kernels, (kernels, features). It says by which numbers each is known: those of the
    kernel, then of each option."""
    told = (
        *(plans, np.log2(c.m), np.log2(c.n), c.n % 64, c.n % 32, c.n / (c.m + c.n), c.consumers, c.ping_pong),
        *(c.swap_ab, c.persistent, c.cluster_m, c.cluster_n, np.log2(c.cluster_k), c.left_in_registers, c.per_sm),
        *(c.pieces, c.stages, c.subtile, c.subtile_stages, c.stages * (c.m + c.n)),
        c.m / c.cluster_n + c.n / c.cluster_m,
    )
    return stacked(told, len(c))


def sized_features(c: Columns, load: Load, gemm: Gemm, count: int) -> Any:
    """What the sizes of a problem make of kernels, (features, kernels): the logarithm of their work beside the least,
    parts of split-K, waves, k tiles, rows and columns of tiles and what these add at the edges, what is asked of the L2
    beside what is read, and how far memory bounds them."""
    waves, rows, columns = np.ceil(load.fill), tiles_along(gemm.m, c.m), tiles_along(gemm.n, c.n)
    asked = c.m / c.cluster_n + c.n / c.cluster_m
    found = np.empty((SIZED, len(waves)))
    found[0] = load.work / load.work.min()
    found[1] = c.split_k
    found[2] = load.fill
    found[3] = rows * c.m / gemm.m
    found[4] = columns * c.n / gemm.n
    found[5] = rows
    found[6] = columns
    found[7] = np.maximum(load.steps, 1)
    found[8] = waves
    found[9] = c.tiles * asked / (gemm.m + gemm.n)
    np.log2(found[:10], out=found[:10])
    np.divide(load.fill, waves, out=found[10])
    np.divide(1.0, waves, out=found[11])
    np.minimum(load.fill, 1.0, out=found[12])
    np.divide(_memory_work(gemm, count), load.work, out=found[13])
    return found


SIZED = 14
"""Features that depend on sizes."""
