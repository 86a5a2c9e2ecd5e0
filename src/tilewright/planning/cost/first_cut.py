"""Which plans of wgmma are priced at all: the likely ones of thousands. First the kernels without clusters and options,
with every count of split-K, of which each stands for all of its own; then the plans of those that are left.

The work of the busiest SM says most, in a few operations on columns. What it leaves out is learned: a network knows a
kernel by a few numbers, which a table keeps, another knows how much each of them matters to a problem. Both are taught
what the whole estimate says of drawn problems (`benchmarks/fit_first_cut.py`, record 0114).
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.kernels.columns import Column, Columns
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES
from tilewright.planning.cost.correction import FirstCut, fit_for, stacked
from tilewright.planning.cost.plans import problem_features
from tilewright.planning.cost.promising import tiles_along
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

KERNELS, PLANS = 40, 64
"""Kernels that a choice looks at, and of their plans those that it prices."""

_ALONE = 16
"""And of those without split-K: a call may have no workspace, or one order of summation."""

_UNKNOWN = 32
"""Times as many of products that nobody taught: the work alone leaves out what matters."""

_LITTLE_WORK = 3000
"""Kernels or plans of which networks are asked, those of the least work."""

_LEAST_WORK = 40
"""Elements of C whose products take as long as the arrival of a row of A or a column of B."""

_WORK_OF_A_BYTE = 1 / 75
"""Elements of C whose products take as long as a byte of memory, with all SMs asking."""

_OTHER_WORK = 80_000
"""Elements of C whose products take as long as start, prologue and epilogue of a block."""


def likely(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int, most: int, *, plans: bool) -> Any:
    """Places of the likely ones, ascending. count: of a batch. most: how many. plans: whether these are plans; kernels
    else, of which each stands for all of its plans in any cluster."""
    first = None if gemm.pieces is not None else fit_for("wgmma", gemm.dtype).first
    load, at, some = load_of(c, gemm, spec, count), None, c
    if count > 1 or (first is not None and len(c) > _LITTLE_WORK):
        at = _least(load.work, len(c) if first is None else max(most, _LITTLE_WORK))
        at = at[np.isfinite(load.work.take(at))]
        some, load = c[at], Load(*(of.take(at) for of in load))
    told = load.work if first is None else logarithms(some, load, gemm, spec, count, first, plans=plans)
    (alone,) = (some.split_k == 1).nonzero()
    best = _least(told, most if first else _UNKNOWN * most), alone.take(_least(told.take(alone), _ALONE))
    chosen = np.zeros(len(c), dtype=bool)
    places = np.concatenate(best)
    chosen[places if at is None else at.take(places)] = True
    return chosen.nonzero()[0]


def _least(values: Any, most: int) -> Any:
    """Places of the least of them."""
    return values.argpartition(most)[:most] if len(values) > most else np.arange(len(values))


class Load(NamedTuple):
    """work: of the busiest SM; infinite of kernels that are not looked at. fill: waves of blocks, as a fraction."""

    work: Any
    fill: Any


def load_of(c: Columns, gemm: Gemm, spec: DeviceSpec, count: int) -> Load:
    """What kernels make an SM do."""
    split = c.split_k
    parts = split * c.cluster_k
    blocks = c.tiles * parts * count
    fill = blocks / (spec.sm_count * c.per_sm)
    steps = tiles_along(ceil_div(gemm.k, SWIZZLE_ATOM_BYTES // gemm.dtype.bytes), parts)
    work = np.ceil(fill) * c.k_tile_work * steps
    work = np.maximum(work, count * gemm.compulsory_bytes * _WORK_OF_A_BYTE) + _OTHER_WORK * (1.0 + (split > 1))
    if count > 1:  # blocks of a batch whose sums are short begin and end too often, if each has one tile
        many = (c.persistent > 0) | (fill <= 1)
        work = np.where(many | (not many.any()), work, np.inf)
    return Load(work, fill)


def k_tile_work(core: Columns, products: int) -> Column:
    """Work of a k tile of all blocks of an SM. products: of pieces."""
    return core.per_sm * np.maximum(products * core.m * core.n, 1.0 * core.pieces * _LEAST_WORK * (core.m + core.n))


def logarithms(
    c: Columns, load: Load, gemm: Gemm, spec: DeviceSpec, count: int, first: FirstCut, *, plans: bool
) -> Any:
    """Of what kernels or plans take, beside each other."""
    matters = _matters(first, gemm, spec, count)
    sized = sized_features(c, load, gemm)
    told = sized[0] + matters[-SIZED:] @ sized
    known = c.fact(("first cut", plans), lambda kept: _known(kept, first, plans=plans))
    if not plans:
        return told + known @ matters[:NUMBERS]
    own, early, rows = (known[:, of] @ matters[of] for of in (slice(NUMBERS), _OF_EARLY, _OF_ROWS))
    return told + own + c.dependent_launch * early + (c.raster_rows > 1) * rows


@lru_cache(maxsize=64)
def _matters(first: FirstCut, gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """How much numbers and features matter to a problem, of which kernels are asked, then plans."""
    return first.problem.said(about(gemm, spec, count))[0]


def _known(c: Columns, first: FirstCut, *, plans: bool) -> Any:
    """The numbers by which kernels are known; those of options of plans alone."""
    found = first.kernel.said(kernel_features(c, plans=plans))
    return found if plans else found[:, :NUMBERS].copy()


NUMBERS, OF_OPTION = 16, 6
"""By which a kernel is known, and further ones that matter with an option."""

_OF_EARLY = slice(NUMBERS, NUMBERS + OF_OPTION)
_OF_ROWS = slice(NUMBERS + OF_OPTION, NUMBERS + 2 * OF_OPTION)


def about(gemm: Gemm, spec: DeviceSpec, count: int) -> Any:
    """What a network is asked about a problem, (1, features). It says how much each number that a kernel is known by
    matters, then each of `sized_features`."""
    return np.append(problem_features(gemm, count), [[log2(spec.dram_gb_per_s)]], axis=1)


def kernel_features(c: Columns, *, plans: bool) -> Any:
    """What a network is asked about kernels, (kernels, features). It says by which numbers each is known: those of the
    kernel, of its dependent launch, and of rows of tiles that are visited together."""
    told = (
        *(plans, np.log2(c.m), np.log2(c.n), c.n % 64, c.n % 32, c.n / (c.m + c.n), c.consumers, c.ping_pong),
        *(c.swap_ab, c.persistent, c.cluster_m, c.cluster_n, np.log2(c.cluster_k), c.left_in_registers, c.per_sm),
        *(c.pieces, c.stages, c.subtile, c.subtile_stages, c.stages * (c.m + c.n)),
        c.m / c.cluster_n + c.n / c.cluster_m,
    )
    return stacked(told, len(c))


def sized_features(c: Columns, load: Load, gemm: Gemm) -> Any:
    """What the sizes of a problem make of kernels, (features, kernels): the logarithm of their work beside the least,
    parts of split-K, waves, and what tiles add at the edges."""
    waves = np.ceil(load.fill)
    found = np.empty((SIZED, len(waves)))
    found[0] = load.work / load.work.min()
    found[1] = c.split_k
    found[2] = load.fill
    found[3] = tiles_along(gemm.m, c.m) * c.m / gemm.m
    found[4] = tiles_along(gemm.n, c.n) * c.n / gemm.n
    np.log2(found[:5], out=found[:5])
    np.divide(load.fill, waves, out=found[5])
    np.divide(1.0, waves, out=found[6])
    np.minimum(load.fill, 1.0, out=found[7])
    return found


SIZED = 8
"""Features that depend on sizes."""
