"""How long products take of which reading one matrix is all the time: GEMV kernels, by what memory and the busiest SM
do beside each other."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tilewright.device.catalog import device
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels.gemv import GemvConfig
from tilewright.kernels.gemv_body import STAGE_UNROLL
from tilewright.kernels.gemv_space import blocks_that_fit
from tilewright.kernels.skinny import is_k_major
from tilewright.model.power import Energy, Events, sustained_mhz
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.model.time import DRAM_SHARE, LAUNCH_SECONDS
from tilewright.planning.cost.correction import FITTED_FOR
from tilewright.planning.cost.launches import MORE_LAUNCHES_SECONDS, reduction_seconds
from tilewright.planning.cost.plans import shared_factor
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div, format_bytes

NOMINAL = device("H200")
"""The device for which the shape of a kernel is chosen, so that it is the same on every one."""

_LATENCY = 2.5
"""Latency of memory under load, by that of a single access: 64 KiB in flight of an SM ask for all of its bandwidth."""

_ISSUED_BESIDE = 6.0
"""Instructions of a lane for each load of the long matrix: the load, its address and guard, zeros."""


_OVERLAP = 4
"""How memory and the SMs overlap: the power in which their times are added. Both at once are 1.19 times one."""


_AS_MEASURED = {2: {1: 0.93, 2: 1.0, 4: 1.35, 8: 1.5, 16: 1.5}, 4: {1: 0.92, 2: 0.94, 4: 1.0, 8: 1.4, 16: 1.3}}
"""Measured over estimated time without the start, by bytes of an element and rows of the kernel: medians of 60 drawn
layers on the H200. Several rows take more instructions than are counted."""


_PARTS_SECONDS = 1.0e-6
"""What split-K takes beside the reduction: 0.6 to 1.5 us in four products of one row (f32, H200)."""

_LINE_BYTES, _SHORT = 128, 1.15
"""Neighbours that a warp reads of a line of an MN-major matrix, and how much longer memory takes for fewer: 1 x 6400 x
2304 took 18.2 us by 64 bytes, and 15.6 by 128 (f32, H200)."""


def gemv_plan_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """Of a plan of `count` problems, as measurements correct it; the host's time for further launches counts."""
    shared = shared_factor("gemv", few_rows(gemm), count) if spec.compute_capability == FITTED_FOR else 1.0
    return shared * (gemv_seconds(config, gemm, spec, count) + (config.parts(gemm) > 1) * MORE_LAUNCHES_SECONDS)


def least_plan_seconds(gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """What no plan takes less than: the time of memory, without an SM's. Infinite where no kernel has so many rows."""
    measured = _AS_MEASURED.get(gemm.dtype.bytes, {})
    share = next((share for rows, share in measured.items() if min(gemm.m, gemm.n) <= rows), inf)
    if share == inf:
        return inf
    shared = shared_factor("gemv", few_rows(gemm), count) if spec.compute_capability == FITTED_FOR else 1.0
    return _LEAST * shared * (LAUNCH_SECONDS + share * dram_seconds(gemm, spec, count))


_LEAST = 1 - 1e-6
"""For sums that are rounded in another order."""


def gemv_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """By the terms alone, of the kernel and the reduction of split-K."""
    total = LAUNCH_SECONDS + read_seconds(config, gemm, spec, count) * _AS_MEASURED[gemm.dtype.bytes][config.rows]
    parts = config.parts(gemm)
    return total if parts == 1 else total + float(reduction_seconds(gemm, gemm, spec, parts)) + _PARTS_SECONDS


def read_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec = NOMINAL, count: int = 1) -> float:
    """The time of memory and that of the busiest SM, overlapped."""
    dram = dram_seconds(gemm, spec, count) * times_of_memory(config, gemm)
    return overlapped(dram, sm_seconds(config, gemm, spec, count=count))


def times_of_memory(config: GemvConfig, gemm: Gemm) -> float:
    """Of what memory takes for whole lines, for those that warps of a kernel read."""
    neighbours = config.lanes_out * config.width * gemm.dtype.bytes
    return _SHORT if not is_k_major(gemm) and neighbours < _LINE_BYTES else 1.0


def sm_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec = NOMINAL, *, count: int = 1) -> float:
    """How long the busiest SM takes for its share of `count` problems."""
    clock_hz, k_major = spec.boost_clock_mhz * 1e6, is_k_major(gemm)
    many = max(gemm.m, gemm.n)
    outputs = config.outputs_of_block(k_major=k_major)
    part_k = config.part_of_k(gemm)
    blocks = ceil_div(many, outputs) * max(1, ceil_div(gemm.k, part_k)) * count
    part_k = min(part_k, gemm.k)
    loads = outputs * part_k / config.width  # of lanes, for a block
    # The skinny operand comes from the L2, where each byte costs less than one of memory.
    block_bytes = (outputs + config.rows / 4) * part_k * gemm.dtype.bytes
    room = blocks_that_fit(config, gemm, spec)
    busiest = ceil_div(blocks, spec.sm_count)
    together = max(1, min(room, busiest))
    latency = _LATENCY * spec.dram_latency_clk / clock_hz
    in_flight = together * min(
        config.threads * config.steps * config.outputs * config.width * gemm.dtype.bytes, block_bytes
    )
    rate = min(in_flight / latency, spec.l2_bytes_per_clk_per_sm * clock_hz)
    issued = config.width * (config.rows + (gemm.dtype is not F32)) + _ISSUED_BESIDE
    issue = busiest * loads * issued / WARP_THREADS / (spec.schedulers_per_sm * clock_hz)
    pieces = config.rows * config.chunk // (config.threads * config.few_width)
    fetches, chunks = ceil_div(pieces, STAGE_UNROLL), ceil_div(part_k, config.chunk)
    # What a block waits for, one after the other: the skinny operand of each chunk, C. Other blocks multiply meanwhile.
    chain = ceil_div(busiest, together) * latency * (1 + fetches * chunks)
    return 2 * latency + max(busiest * block_bytes / rate, issue, chain)


def dram_seconds(gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """What memory takes for `count` problems."""
    return count * gemm.compulsory_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)


def overlapped(dram: float, busy: float) -> float:
    """Seconds in which memory and the SMs work beside each other."""
    total: float = (dram**_OVERLAP + busy**_OVERLAP) ** (1 / _OVERLAP)
    return total


def few_rows(gemm: Gemm) -> Gemm:
    """The problem, or its transpose, whose result has no more rows than columns: to GEMV kernels they are the same."""
    if gemm.m <= gemm.n:
        return gemm
    a, b = gemm.b.other, gemm.a.other
    return Gemm(gemm.n, gemm.m, gemm.k, gemm.dtype, a=a, b=b, out=gemm.out, product=gemm.product)


def predict_gemv(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, clock_mhz: float | None = None) -> Prediction:
    """The time of a kernel with its reasons: that of memory, and that of the busiest SM, which depends on the clock.
    clock_mhz: by default that of the data sheet."""
    clock = clock_mhz or spec.boost_clock_mhz
    dram = dram_seconds(gemm, spec)

    def busy_at(mhz: float) -> float:
        return sm_seconds(config, gemm, replace(spec, boost_clock_mhz=round(mhz)))

    def seconds_at(mhz: float) -> float:
        return overlapped(dram, busy_at(mhz)) + LAUNCH_SECONDS

    total, busy = seconds_at(clock), busy_at(clock)
    bounds = (
        Term("busiest SM", busy, "its loads in flight, its instructions, and what its blocks wait for"),
        Term("DRAM", dram, f"{format_bytes(gemm.compulsory_bytes)} at {DRAM_SHARE:.0%} of {spec.dram_gb_per_s:g} GB/s"),
    )
    binding = max(bounds, key=lambda term: term.seconds)
    exposed = (
        Term("overlap", total - LAUNCH_SECONDS - binding.seconds, "memory and SMs wait for each other", "exposed"),
        Term("launch", LAUNCH_SECONDS, "from one kernel to the next", "exposed"),
    )
    loads = gemm.m * gemm.n * gemm.k / min(gemm.m, gemm.n) / config.width
    events = Events(0.0, gemm.m * gemm.n * gemm.k + loads, gemm.compulsory_bytes, gemm.compulsory_bytes)
    energy = Energy.of_events(events, spec)
    kept_mhz = sustained_mhz(energy, spec, clock, seconds_at)
    return Prediction(
        seconds=total,
        low_s=LOW * total,
        high_s=HIGH * total,
        tflops=gemm.flops / total / 1e12,
        clock_hz=clock * 1e6,
        terms=(*bounds, *exposed),
        binding=binding,
        relief="GEMV reads its matrix once: only fewer bytes are faster, as a narrower format has them.",
        device=spec.name,
        blocks_per_sm=blocks_that_fit(config, gemm, spec),
        power_w=energy.power_w(spec, clock, total),
        limit_w=spec.board_power_w,
        sustained_hz=kept_mhz * 1e6,
        sustained_s=seconds_at(kept_mhz),
    )
