"""Kernels for groups of ragged sizes whose ends lie on the GPU: which come into question, and their plan.

The host knows how many rows (or products of a sum) all groups have together, and how many groups there are. So a kernel
is chosen for groups of the average size, by the performance model. All of them are persistent kernels, whose blocks
find the groups of their tiles themselves: of wgmma where TMA takes the operands, else of mma.sync or the CUDA cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.ir.kernel import MOST_GROUPS
from tilewright.ir.work import Problems
from tilewright.kernels import wgmma
from tilewright.kernels.columns import Columns, Deferred, legal
from tilewright.kernels.configuration import row_of
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.spaces import joined, product, stages_more, with_long_rows
from tilewright.kernels.tensor_rate import tensor_rate
from tilewright.kernels.wgmma_steps import SWIZZLE_ATOM_BYTES, reads_orders, stages_c, tma_stores
from tilewright.lowering.groups import TABLE
from tilewright.planning.assembly import (
    Request,
    added_places,
    as_multiplied_by,
    check_maps,
    multiplied_on,
    streamed,
    tiles_of,
)
from tilewright.planning.candidates import families_for, leaves_first, listed, promoted, starts_early
from tilewright.planning.cost.block_clocks import blocks_per_sm
from tilewright.planning.cost.groups import groups_seconds, tma_groups_seconds
from tilewright.planning.kernels import Kernels
from tilewright.planning.packing import TMA_BYTES, Groups
from tilewright.planning.plan import Place, Plan, Role, Step
from tilewright.planning.raster import rows_together
from tilewright.problem.gemm import Gemm, Order
from tilewright.toolchain import arguments, grid_of
from tilewright.units import ceil_div
from tilewright.winners.plan_config import PlanConfig

_NOMINAL = 256
"""A size in the place of any."""

_LEAST_STAGES = 3
"""Of a ring: with fewer loads do not run ahead far enough."""

_RASTER_ROWS = 8
"""Rows of tiles that are visited together, of kernels whose threads copy for themselves."""

_TRIED = 16
"""Kernels loaded by TMA that are built before others are: few spill."""

_LONG_FLOPS = 4e10
"""Of groups whose kernel does not start under the one before, for the reason of products (`candidates`). H200, bf16, in
turn: eight of 52 to 185 GFLOP take 0.95 to 0.99 of the time then, four of 260 to 600 as long; 64 of 64 rows, 24 GFLOP,
0.3 to 1.5 % more."""

SAFE = PlanConfig(SimtConfig((64, 64, 16), (32, 32), unroll=8, raster_rows=_RASTER_ROWS, persistent=True))
"""Right for every operand on every GPU."""


def ranked_ragged(request: Request, spec: DeviceSpec) -> Iterator[PlanConfig]:
    """Plans of persistent kernels for groups: some loaded by TMA, where they can be, and all whose threads copy for
    themselves, each best first; the last is right everywhere."""
    if reads_groups_by_tma(request, spec):
        yield from islice(_by_tma(request, spec), _TRIED)
    if request.gemm.block_scales is None:  # which only wgmma multiplies
        yield from _by_threads(request, spec)
        yield SAFE


def reads_groups_by_tma(request: Request, spec: DeviceSpec) -> bool:
    """Whether wgmma and TMA take the operands of groups as they lie, and the lowering of groups their orders."""
    gemm, groups, alignment = request.gemm, request.groups, request.alignment
    assert groups is not None
    multiplies = tensor_rate(gemm, spec) > 0
    ordered = gemm.a is Order.ROW if groups.along == "m" else (gemm.a, gemm.b) == (Order.COL, Order.ROW)
    aligned = min(alignment.a, alignment.b) >= TMA_BYTES and groups.step >= 0 and gemm.k > 0
    return multiplies and bool(families_for(gemm, spec, "wgmma")) and reads_orders(gemm) and ordered and aligned


def _by_tma(request: Request, spec: DeviceSpec) -> Iterator[PlanConfig]:
    gemm, groups, alignment = request.gemm, request.groups, request.alignment
    assert groups is not None
    typical = _typical(gemm, groups)
    staged = alignment.c >= TMA_BYTES or not tma_stores(gemm)
    room = spec.max_shared_bytes_per_block - (TABLE.size_bytes if groups.along == "m" else 0)
    # What can run depends on the formats and orders, and on whether TMA can store rows; not on the sizes.
    formats = gemm.resized(_NOMINAL, _NOMINAL if tma_stores(gemm) else _NOMINAL + 1, _NOMINAL)
    if formats.block_scales is not None:  # wherever they lie
        formats = replace(formats, block_scales=replace(formats.block_scales, steps_a=None, steps_b=None))
    c = _candidates(formats, groups.along, staged, room, request.promote_every)
    known = np.full(len(c), starts_early(typical, groups.count))  # the estimates have seen products that do, and do not
    c = c.with_columns(raster_rows=rows_together(c, typical, spec), dependent_launch=known)
    seconds = tma_groups_seconds(c, typical, groups, spec, alignment.c)
    c = c.with_columns(
        dependent_launch=np.full(len(c), groups.count * typical.flops < _LONG_FLOPS),
        evict_first=Deferred(lambda some: leaves_first(some, _largest(typical, groups), groups.count, readers=1)),
    )
    for at in np.argsort(seconds, kind="stable").tolist():
        yield PlanConfig(row_of("wgmma", c, at))


def _by_threads(request: Request, spec: DeviceSpec) -> Iterator[PlanConfig]:
    """The kernels that a plain product of a group would be chosen from, made persistent."""
    gemm, groups, alignment = request.gemm, request.groups, request.alignment
    assert groups is not None
    typical = _typical(gemm, groups)
    kind, c = listed(typical, spec)
    if request.promote_every:  # f32 sums of CUDA cores need none
        tables = promoted({kind: c}, request.promote_every, gemm)
        c = tables.get(kind, c)
    rows = np.full(len(c), _RASTER_ROWS)
    c = c.with_columns(persistent=np.ones_like(rows), raster_rows=rows)
    c = c[blocks_per_sm(kind, c, typical, spec) > 0]
    seconds = groups_seconds(kind, c, typical, groups, spec, alignment)
    for at in np.argsort(seconds, kind="stable").tolist():
        yield PlanConfig(row_of(kind, c, at))


def _typical(gemm: Gemm, groups: Groups) -> Gemm:
    """A group of the average size."""
    size = groups.expected or max(1, ceil_div(gemm.size(groups.along), groups.count))
    return replace(gemm, m=size) if groups.along == "m" else replace(gemm, k=size)


def _largest(typical: Gemm, groups: Groups) -> Gemm:
    """A group as large as most are at most. Where some have a second row of tiles, B is read by blocks that are no
    neighbours in time. H200, bf16, B first out of the L2: two problems of 16 rows on the average 1.013 and 1.015 of the
    speed, 13 of 60 to 320 rows 0.93 to 1.03, 0.984 in the mean (record 0085)."""
    return replace(typical, m=ceil_div(3 * typical.m, 2)) if groups.along == "m" else typical


@lru_cache(maxsize=256)
def _candidates(gemm: Gemm, along: str, staged: bool, room: int, promote_every: int) -> Columns:
    """Persistent kernels. staged: whether C may leave through shared memory, of which there are so many bytes."""
    common: dict[str, Any] = {
        "k": (SWIZZLE_ATOM_BYTES // gemm.dtype.bytes,),
        "cluster": (0, 1, 2),
        "split_k": (1,),
        "accumulators": (1,),
        "cluster_k": (1,),
        "left_in_registers": (0,),
        "stream_k": (0,),
        "persistent": (1,),
        "raster_rows": (16,),
        "promote_every": (promote_every,),
        "pieces": (1,),
        "evict_first": ("",),
        "serpentine": (0,),
    }
    rows, columns = (64, 128, 192, 256), range(32, wgmma.MAX_COLUMNS + 1, 8)
    tables = [
        product(m=rows, n=columns[::2], **common, consumers=(1, 2, 3), ping_pong=(0,), swap_ab=(0,)),
        product(m=rows[:2], n=columns, **common, consumers=(2,), ping_pong=(1,), swap_ab=(0,)),
    ]
    if along == "m":  # skinny groups: the rows of an instruction run along n
        tables.append(product(m=range(8, 65, 8), n=(64, 128), **common, consumers=(1, 2), ping_pong=(0,), swap_ab=(1,)))
    c = joined(*tables)
    c = c.with_columns(cluster_m=1 + (c.cluster == 1), cluster_n=1 + (c.cluster == 2))
    c = _with_rings(c, gemm, room, staged=staged)
    return c[legal(wgmma.LAWS, c, gemm) & (c.stages >= _LEAST_STAGES) & _fits_registers(c, along, gemm)].kept()


def _fits_registers(c: Columns, along: str, gemm: Gemm) -> Any:
    """Whether the names of groups have registers beside the accumulators and the addresses of stores. Seen with NVRTC
    13: of 3 consumers more than 80 accumulators, of 2 with per-thread stores more than 112, and clusters with either
    ping-pong or per-thread stores along k spill."""
    clustered = c.cluster_m * c.cluster_n > 1
    staged = c.subtile > 0
    most = np.where(staged, np.where(c.ping_pong > 0, 200, 128), 112)
    most = np.where(c.consumers > 2, 80, most)
    crowded = (along == "k") & clustered & ((c.ping_pong > 0) | ~staged)
    return (wgmma.accumulators_of(c) <= most) & ~crowded


def _with_rings(c: Columns, gemm: Gemm, room: int, *, staged: bool) -> Columns:
    """The deepest ring beside one or two stages of the epilogue, and beside two that hold more of C: of rows as wide as
    a swizzle atom where a thread has registers for them. Which is best depends on how much of C there is. room: bytes
    of shared memory. staged: whether C may leave through shared memory."""

    def with_stages(count: int, subtile: Any = None) -> Columns:
        one = c.with_columns(subtile_stages=np.full(len(c), count))
        if subtile is None:
            one = with_long_rows(one.with_columns(subtile=wgmma.subtile_of(one, gemm) * staged), gemm)
        else:
            one = one.with_columns(subtile=subtile)
        one = one.with_columns(stages=wgmma.deepest_ring(one, 1, gemm))
        return one.with_columns(stages=one.stages - (wgmma.shared_bytes(one, gemm) > room))

    one, two = with_stages(1), with_stages(2)
    deeper = (one.subtile > 0) & (one.stages > two.stages)
    widest = np.minimum(SWIZZLE_ATOM_BYTES // gemm.out.bytes, c.n) * stages_c(gemm) * staged
    # In ping-pong a part of a row, or scales, take registers that are not there: 128 x 176, FP8 by 128 x 192.
    spare = (c.ping_pong == 0) | ((c.n % np.maximum(widest, 1) == 0) & (not gemm.epilogue.scale))
    more = with_stages(2, np.where(spare, widest, two.subtile))
    larger = (more.subtile * 2 > two.subtile * two.subtile_stages) & (more.swap_ab == 0) & stages_more(more)
    # With less of C staged ping-pong takes 1.2 % longer in the mean of 26 pairs, and less time in two (record 0078).
    less = (c.ping_pong == 0) | ~larger
    return joined(two[less], one[deeper & less], more[larger])


def ragged_plan(kernels: Kernels, request: Request, config: PlanConfig) -> Plan:
    """The launch of a kernel for groups, or several where there are more groups than one counts."""
    gemm, groups = as_multiplied_by(config, multiplied_on(kernels.spec, request.gemm)), request.groups
    assert groups is not None
    along_m = groups.along == "m"
    smallest = replace(gemm, m=1) if along_m else replace(gemm, k=1)
    of_rows = Problems.COUNTED_M if groups.capacity else Problems.GROUPED_M
    problems = of_rows if along_m else Problems.GROUPED_K
    room = (groups.capacity,) if groups.capacity else ()
    built = kernels.kernel(gemm, request.alignment, config, problems=problems, others=(smallest,))
    check_maps(built.kernel, request.alignment, config)
    most = MOST_GROUPS if along_m else groups.count
    steps, cleared = list[Step](), list[Step]()
    part_of_k, size_bytes, workspace = 0, 0, tuple[tuple[int, int], ...]()
    if config.stream_k:
        tiles = tiles_of(replace(gemm, m=gemm.m + groups.count * built.kernel.cluster_tile["m"]), config)
        zeroed, part_of_k, workspace, size_bytes = streamed(kernels, config, tiles, 0)
        cleared = [zeroed]
    places = (Place.A, 0), (Place.B, 0), (Place.OUT, 0), *added_places(gemm), *workspace, (Place.GROUP_ENDS, 0)
    for first in range(0, groups.count, most):
        count = min(most, groups.count - first)
        steps_of_groups = groups.step, *groups.added, count
        values = (
            *arguments(gemm, (0,) * len(places), part_of_k=part_of_k),
            *steps_of_groups,
            *((first,) if along_m else ()),
            *room,
        )
        grid = grid_of(built.kernel, gemm, batch=count)
        launch = built.loaded.prepare(grid, built.kernel.block, values)
        steps += cleared
        steps.append(Step(launch, places, Role.PRODUCT, f"C of {count} groups"))
    return Plan(tuple(steps), size_bytes, str(config))
