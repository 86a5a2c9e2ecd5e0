"""Plans of two products of one A, whose finished sums the epilogue combines: `C = f(A @ B, A @ B1)`.

One kernel with two accumulators reads A once, and stores C alone. What it costs is what a plain product of [B B1], of
twice the columns, costs, whose tiles are as wide as both tiles of a pair. Its instructions are as wide, too
(`ir.joined`), but with swap-AB.
The function of the two sums takes an SM as long as the MMAs of some 400 of k, which a kernel in ping-pong hides: on an
H100 128 x 96 in ping-pong takes 2.52 ms (cluster of two along n) or 2.56, 128 x 128 with two consumers of a tile 2.94.
Where no such kernel reads the operands as they lie, or small problems are faster otherwise, A @ B1 goes to a workspace,
and the product by B reads it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request
from tilewright.planning.cost.launches import around_us
from tilewright.planning.cost.plans import combining_us
from tilewright.planning.packing import Alignment
from tilewright.planning.plan import Place, Plan, Step
from tilewright.planning.ranking import ranked
from tilewright.planning.raster import visited
from tilewright.problem.epilogue import PLAIN
from tilewright.problem.gemm import Gemm
from tilewright.problem.values import Accumulated, Added, Element, Value, with_leaves
from tilewright.units import round_up
from tilewright.winners.plan_config import PlanConfig

OTHER = Added("other_sum", None, F32)
"""The finished sum of the second product, where it lies in a workspace."""

MOST_BUILT = 16
"""Kernels of two accumulators that are built, one after the other, until one can be."""

_TRIED = 256
"""Plans of the product of twice the columns that are asked for halves."""


def in_one_kernel(request: Request, spec: DeviceSpec) -> Iterator[tuple[float, PlanConfig]]:
    """Plans of one kernel with their estimated microseconds, best first."""
    gemm = request.gemm
    wide = replace(gemm, n=2 * gemm.n, ldb=0, ldc=0, beta=0.0, epilogue=PLAIN, ld_added=(), numbers=())
    exposed_us = combining_us(wide, spec)
    found: dict[PlanConfig, float] = {}
    likely = ranked(wide, spec, request.alignment, keep_order=True, stack=request.stack, corrected=_TRIED)
    for time_us, config in islice(likely, _TRIED):
        half = _halved(config, gemm)
        if half is not None:
            hidden = isinstance(half.kernel, WgmmaConfig) and half.kernel.ping_pong
            found.setdefault(half, time_us if hidden else time_us + exposed_us)
    for half, time_us in sorted(found.items(), key=lambda one: one[1]):
        yield time_us, visited(half, gemm, spec, fixed_order=request.fixed_order)


def _halved(config: PlanConfig, gemm: Gemm) -> PlanConfig | None:
    """The plan whose pairs of tiles are the tiles of another; None where there is none. Two sums and a narrower last
    subtile spill (NVRTC 13.0), so subtiles of wgmma are equal."""
    kernel = config.kernel
    if config.packed or config.tile_multiples or not isinstance(kernel, (WgmmaConfig, MmaConfig)):
        return None
    m, n, k = kernel.tile
    half: WgmmaConfig | MmaConfig
    if isinstance(kernel, WgmmaConfig):
        half = replace(kernel, tile=(m, n // 2, k), accumulators=2, subtile=min(kernel.subtile, n // 2))
    else:
        warp_m, warp_n = kernel.warp_tile
        half = replace(kernel, tile=(m, n // 2, k), warp_tile=(warp_m, warp_n // 2), accumulators=2)
    uneven = isinstance(half, WgmmaConfig) and half.subtile and half.n % half.subtile and not half.swap_ab
    return None if n % 2 or uneven or half.reasons_against(gemm) else replace(config, kernel=half)


def in_two(request: Request) -> tuple[Request, Request]:
    """The product by B1, whose result goes to a workspace tight and in f32, and that by B, which reads it there."""
    gemm, alignment = request.gemm, request.alignment
    size_bytes = next(size for size in (16, 8, 4) if gemm.n * F32.bytes % size == 0)
    first = replace(gemm, out=F32, ldc=0, beta=0.0, epilogue=PLAIN, ld_added=(), numbers=())
    epilogue = replace(gemm.epilogue, function=_reads_other(gemm.epilogue.function))
    at = [one.name for one in epilogue.matrices].index(OTHER.name)
    leading = (*gemm.ld_added[:at], gemm.n, *gemm.ld_added[at:])
    second = replace(gemm, epilogue=epilogue, ld_added=leading)
    # Vectors of C are as many elements of what lies beside it.
    beside = size_bytes // F32.bytes * gemm.out.bytes
    return (
        replace(request, gemm=first, alignment=Alignment(alignment.a, alignment.b, size_bytes)),
        replace(request, gemm=second, alignment=replace(alignment, c=min(alignment.c, beside))),
    )


def reading_us(gemm: Gemm, spec: DeviceSpec) -> float:
    """What the second launch adds to its product: a start, and the sum of the first that it reads."""
    return around_us(gemm.m * gemm.n * F32.bytes, spec, starts=0)


def _reads_other(function: Value | None) -> Value:
    assert function is not None
    return with_leaves(function, lambda leaf: Element(OTHER) if isinstance(leaf, Accumulated) and leaf.number else leaf)


def joined(first: Plan, second: Plan, gemm: Gemm) -> Plan:
    """The plans of `in_two` one after the other."""
    size_bytes = round_up(gemm.m * gemm.n * F32.bytes, 256)
    named = [one.name for one in gemm.epilogue.named]
    read = [one.name for one in replace(gemm.epilogue, function=_reads_other(gemm.epilogue.function)).named]
    b1 = int(Place.OPERAND) + len(named)
    # What the function reads has other numbers where it reads the sum as well.
    places = {
        Place.OPERAND + at: (Place.OPERAND + named.index(name), 0) for at, name in enumerate(read) if name in named
    }
    other = int(Place.OPERAND) + read.index(OTHER.name)

    def moved(step: Step, places: Mapping[int, tuple[int, int]]) -> Step:
        found = []
        for place, offset in step.pointers:
            to, start = places.get(place, (place, 0))
            found.append((to, start + offset))
        return replace(step, pointers=tuple(found))

    scratch = {int(Place.SCRATCH): (int(Place.SCRATCH), size_bytes)}
    product = [moved(step, {Place.B: (b1, 0), Place.OUT: (Place.SCRATCH, 0), **scratch}) for step in first.steps]
    combined = [moved(step, {**places, other: (Place.SCRATCH, 0), **scratch}) for step in second.steps]
    most = max(first.scratch_bytes, second.scratch_bytes)
    return Plan((*product, *combined), size_bytes + most, f"{first.words}, then {second.words}")
