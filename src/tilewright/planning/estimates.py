"""What would be chosen with no measurement: the plans of a request in the order of their estimates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from tilewright.device.spec import DeviceSpec
from tilewright.errors import LaunchError
from tilewright.ir.register_budgets import COURIER, PRODUCER, STEP
from tilewright.kernels import wgmma
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request
from tilewright.planning.cost.gemv import gemv_plan_seconds, least_plan_seconds
from tilewright.planning.cost.plans import most_us_of_pieces
from tilewright.planning.emulated import of_pieces, splitting_us
from tilewright.planning.packing import Shards
from tilewright.planning.ranking import ranked
from tilewright.planning.raster import visited
from tilewright.planning.skinny import skinny_for
from tilewright.units import ceil_div, round_up
from tilewright.winners.plan_config import PlanConfig


def estimated(request: Request, spec: DeviceSpec) -> Iterator[PlanConfig]:
    """What would be chosen with no measurement, best first."""
    return (config for _, config in estimates(request, spec))


def estimates(request: Request, spec: DeviceSpec) -> Iterator[tuple[float, PlanConfig]]:
    """Plans with their estimated microseconds, best first: of the likely kernels, then of all others."""
    gemm, stack, every = request.gemm, request.stack, request.promote_every
    count = 1 if stack is None else stack.count
    least_us = inf if request.unsplit or every or gemm.pieces else 1e6 * least_plan_seconds(gemm, spec, count)
    gemv: tuple[float, PlanConfig] | None = None
    told: set[PlanConfig] = set()
    for time_us, config in chain(_ranked(request, spec), _ranked(request, spec, corrected=_OTHERS)):
        if least_us < time_us:  # before, GEMV kernels are not even looked at
            gemv, least_us = _gemv(request, spec), inf
        if gemv is not None and gemv[0] < time_us:
            yield gemv
            gemv = None
        plan = config  # ranks have an order of their own
        if not request.shards:
            plan = visited(config, gemm, spec, count, fixed_order=request.fixed_order)
        if plan not in told:
            yield time_us, plan
        told.add(plan)
    if least_us < inf:
        gemv = _gemv(request, spec)
    if gemv is not None:
        yield gemv


_OTHERS = 4000
"""Plans beyond the likely ones that are looked at where none of these can be taken."""


def _ranked(request: Request, spec: DeviceSpec, corrected: int | None = None) -> Iterator[tuple[float, PlanConfig]]:
    """The plans that `ranked` finds for a request, when they are asked for."""
    yield from ranked(
        request.gemm,
        spec,
        request.alignment,
        keep_order=request.unsplit,
        stack=request.stack,
        promote_every=request.promote_every,
        corrected=corrected,
    )


def _gemv(request: Request, spec: DeviceSpec) -> tuple[float, PlanConfig] | None:
    """The plan of a GEMV kernel, where a problem is skinny."""
    skinny = skinny_for(request.gemm, request.alignment, spec, request.stack)
    if skinny is None:
        return None
    plan = PlanConfig(GemvConfig(split_k=skinny.config.split_k))
    count = 1 if request.stack is None else request.stack.count
    return 1e6 * gemv_plan_seconds(skinny.config, request.gemm, spec, count), plan


def pieces_us(request: Request, spec: DeviceSpec) -> float:
    """The estimated microseconds of a product by pieces, splitting included; infinite where none can be multiplied."""
    product = next(iter(estimates(of_pieces(request), spec)), (inf, None))[0]
    return product + splitting_us(request, spec)


def prefers_f32(request: Request, spec: DeviceSpec) -> bool:
    """Whether f32 arithmetic is estimated to take no longer than the pieces of a product."""
    plain = replace(request, algorithm=None, or_f32=False, fallback=None)
    plain_us = next(iter(estimates(plain, spec)), (inf, None))[0]
    return plain_us <= most_us_of_pieces(pieces_us(request, spec), of_pieces(request).gemm, spec)


def registers_of(config: PlanConfig) -> object:
    """What the registers of a thread depend on: kernels that agree in it spill alike. The launch, the order of tiles,
    the stages of the ring and hints to the L2 are not among it."""
    if not isinstance(config.kernel, WgmmaConfig):
        return config
    return replace(
        config.kernel,
        dependent_launch=False,
        raster_rows=1,
        stages=0,
        subtile_stages=1,
        evict_first="",
        serpentine=False,
    )


_SHARED = {False: "waits for rows of A that arrive while it runs", True: "adds up over ranks"}


def is_ruled_out(request: Request, config: PlanConfig) -> bool:
    """Whether a plan cannot be that of a request: it needs a workspace and there is none, or ranks cannot share it."""
    if request.shards is not None and not is_shared(request.shards, config):
        return True
    return request.without_workspace and needs_workspace(config)


def is_shared(shards: Shards, config: PlanConfig) -> bool:
    """Whether ranks can share a product that is computed so. Where they sum it, no tile has rows of two of them, and
    consumers leave the producer's warpgroup registers for a courier (`register_budgets`)."""
    kernel = config.kernel
    if config.split_k > 1 or not isinstance(kernel, WgmmaConfig) or not kernel.persistent or kernel.cluster_k > 1:
        return False
    if shards.summed:
        rows = kernel.m * kernel.cluster_m
        given_up = round_up(ceil_div(COURIER - PRODUCER, kernel.consumers), STEP)
        has_room = wgmma.registers_of(kernel) + given_up <= wgmma.consumer_registers(kernel)
        return bool(has_room) and not any(start % rows for start in shards.starts if start < sum(shards.rows))
    return "A" not in config.packed


def no_kernel(request: Request) -> LaunchError:
    """What is said of a request for which there is no kernel at all."""
    if request.shards is not None:
        return LaunchError(
            f"No kernel of {request.gemm} {_SHARED[request.shards.summed]}.",
            note="persistent kernels of wgmma do, on compute capability 9.0, where TMA reads operands as they lie. "
            "Where ranks add up, each keeps whole tiles.",
            hint="leave the product and the exchange to launches of their own.",
        )
    without = " without a workspace" if request.without_workspace else ""
    return LaunchError(
        f"No kernel sums {request.gemm} in the one order that was asked for{without}.",
        hint="leave out batch_invariant and deterministic='bitwise'.",
    )


def needs_workspace(config: PlanConfig) -> bool:
    """Whether launches leave something for each other."""
    if isinstance(config.kernel, GemvConfig):
        return config.split_k > 1
    return bool(config.packed) or config.shares_k
