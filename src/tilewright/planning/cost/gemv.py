"""How long products take of which reading one matrix is all the time: GEMV kernels, by what memory and the busiest SM
do beside each other."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf, log2

from tilewright.device.catalog import device
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.kernels.gemv import MOST_ROWS, GemvConfig
from tilewright.kernels.gemv_space import STAGE_UNROLL, blocks_that_fit, starts_early
from tilewright.kernels.skinny import is_k_major
from tilewright.model.power import Energy, Events, sustained_mhz
from tilewright.model.prediction import HIGH, LOW, Prediction, Term
from tilewright.model.time import EARLY_SECONDS, LAUNCH_SECONDS
from tilewright.planning.cost.launches import MORE_LAUNCHES_SECONDS, reduction_seconds
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div, format_bytes

NOMINAL = device("H200")
"""The device for which the shape of a kernel is chosen, so that it is the same on every one."""

# The constants below: 2,210 kernels of 102 drawn products of 0.5 MB to 1.2 GB (H200, record 0094).

_START_SECONDS = 1.75e-6
"""From the end of the kernel before, in a graph."""

_EARLY_SECONDS = 1.2e-6
"""What a kernel that starts early saves, and asks the L2 ahead. This, the start and what parts take were fitted to GEMV
kernels of 322 problems, whose times were 0.92 of the estimate before (H200, record 0108)."""

_READ_SHARE = 0.963
"""What a kernel that only reads reaches of the nominal bandwidth of DRAM."""

_OVERLAP = 2
"""How memory and the SMs overlap: the power in which their times are added."""

_LATENCY, _IDLE_BYTES, _LOADING_BYTES = 1.53, 1 << 20, 2 << 20
"""Of a load under load, by that of a single access to memory; bytes up to which nothing is loaded, and from which on it
is in full. Of an estimate that knew no difference 28 plans of less than 1 MiB took 0.72, 17 up to 2 MiB 0.89, 11 up to
3 MiB 1.12 (H200, record 0109)."""

_STAGING = 1.43
"""Times of the latency until a block has the skinny operand of a chunk in shared memory, for each round of loads."""

_ISSUED_BESIDE, _OF_A_PRODUCT, _OF_A_VALUE = 9.9, 0.845, 0.364
"""What a lane issues for each load of the long matrix (address, guard, zeros), for each product, and to unpack an
element of 2 bytes."""

_ALONE = 6.1
"""Clocks of an instruction of a warp, while no other warp of its scheduler has one to issue."""

_WAVEFRONT_CLOCKS = 1.9
"""Of 128 bytes of shared memory, with what the lanes of a warp then wait for."""

_SHUFFLE_CLOCKS = 1.0
"""Of a warp whose lanes each take a sum from another: an SM serves 32 lanes a clock (CUDA C++ programming guide)."""

_PARTS_SECONDS, _PART_BYTES_PER_SECOND = 0.3e-6, 1.3e12
"""What split-K takes beside the reduction, and how fast partial sums are stored."""

LEAST_OF_PARTS_SECONDS = _PARTS_SECONDS + LAUNCH_SECONDS - EARLY_SECONDS
"""And with the launch of the reduction: what parts must win."""

_LINE_BYTES = {64: 1.26, 128: 1.09, 256: 1.02}
"""Neighbouring bytes that a warp reads of a line of an MN-major matrix, and times that memory takes of what it takes
for more."""

_NARROW = 1.02
"""And where all the warps of a block lie along k."""


def gemv_plan_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """Of a plan of `count` problems; the host's time for further launches counts."""
    return gemv_seconds(config, gemm, spec, count) + (config.parts(gemm) > 1) * MORE_LAUNCHES_SECONDS


def least_plan_seconds(gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """What no plan takes less than: the time of memory, and of the widest loads on SMs that are all as busy. Infinite
    where no kernel has so many rows."""
    few = min(gemm.m, gemm.n)
    if few > MOST_ROWS or gemm.dtype.bytes not in (2, 4):
        return inf
    width = WIDEST_BYTES // gemm.dtype.bytes
    issued = width * (few * _OF_A_PRODUCT + (gemm.dtype is not F32) * _OF_A_VALUE) + _ISSUED_BESIDE
    loads = count * max(gemm.m, gemm.n) * gemm.k / width / WARP_THREADS
    alone = _LATENCY * spec.dram_latency_clk * (2 + _STAGING)
    clocks = max(alone, loads * issued / (spec.schedulers_per_sm * spec.sm_count))
    busy = clocks / (spec.boost_clock_mhz * 1e6)
    return _LEAST * (_START_SECONDS - _EARLY_SECONDS + overlapped(dram_seconds(gemm, spec, count), busy))


_LEAST = 1 - 1e-6
"""For sums that are rounded in another order."""


def gemv_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """Of the kernel and the reduction of split-K."""
    total = start_seconds(config, gemm, spec, count) + read_seconds(config, gemm, spec, count)
    total += adding_seconds(config, gemm, spec, count)
    parts = config.parts(gemm)
    if parts == 1:
        return total
    stored = parts * gemm.m * gemm.n * F32.bytes / _PART_BYTES_PER_SECOND
    return total + float(reduction_seconds(gemm, gemm, spec, parts)) + _PARTS_SECONDS + stored


def start_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """From the end of the kernel before, in a graph."""
    return _START_SECONDS - starts_early(config, gemm, spec, count) * _EARLY_SECONDS


def read_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec = NOMINAL, count: int = 1) -> float:
    """The time of memory and that of the busiest SM, overlapped."""
    dram = dram_seconds(gemm, spec, count) * times_of_memory(config, gemm)
    return overlapped(dram, sm_seconds(config, gemm, spec, count=count))


def adding_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """How long the lanes of an SM's warps take to add their sums by shuffles, when all is read: long beside the reading
    where k is short. The shape of a kernel is chosen without it, as constants were fitted without it. With it 166 plans
    take 0.87 to 1.15 of their estimate (the root of the mean square), before 0.83 to 1.20; 24 with k below 130 0.84 to
    1.20 instead of 0.73 to 1.38 (H200, record 0111)."""
    k_major, many = is_k_major(gemm), max(gemm.m, gemm.n)
    outputs = config.outputs_of_block(k_major=k_major)
    warps = config.warps * ceil_div(many, outputs) * config.parts(gemm) * count
    sums = config.rows * (config.outputs if k_major else config.width)
    clocks = warps * sums * log2(config.lanes_k) * _SHUFFLE_CLOCKS / spec.sm_count
    return clocks / (spec.boost_clock_mhz * 1e6)


def times_of_memory(config: GemvConfig, gemm: Gemm) -> float:
    """Of what memory takes for long pieces of lines, for those that a kernel reads."""
    if is_k_major(gemm):
        return 1.0
    neighbours = config.lanes_out * config.width * gemm.dtype.bytes
    narrow = _NARROW if neighbours * config.warps_out <= _NARROW_BYTES else 1.0
    return narrow * next((times for most, times in _LINE_BYTES.items() if neighbours <= most), 1.0)


def sm_seconds(config: GemvConfig, gemm: Gemm, spec: DeviceSpec = NOMINAL, *, count: int = 1) -> float:
    """How long the busiest SM takes for its share of `count` problems: in waves of the blocks that it has room for, the
    last of which may have fewer."""
    k_major, many = is_k_major(gemm), max(gemm.m, gemm.n)
    outputs = config.outputs_of_block(k_major=k_major)
    part_k = config.part_of_k(gemm)
    blocks = ceil_div(many, outputs) * max(1, ceil_div(gemm.k, part_k)) * count
    part_k = min(part_k, gemm.k)
    loads = outputs * part_k / config.width / WARP_THREADS  # of warps, for a block
    quads = config.width / config.outputs if k_major else 1.0  # of the skinny operand, for a load and four of its rows
    issued = (
        config.width * (config.rows * _OF_A_PRODUCT + (gemm.dtype is not F32) * _OF_A_VALUE)
        + config.rows / _QUAD * quads
        + _ISSUED_BESIDE
    )
    wavefronts = config.rows * quads * config.lanes_k / WARP_THREADS if k_major else ceil_div(config.rows, _QUAD)
    # The skinny operand comes from the L2, where each byte costs less than one of memory.
    block_bytes = (outputs + config.rows / _QUAD) * part_k * gemm.dtype.bytes
    busy = max(
        loads * issued / spec.schedulers_per_sm,
        loads * wavefronts * _WAVEFRONT_CLOCKS,
        block_bytes / spec.l2_bytes_per_clk_per_sm,
    )
    # What a block waits for, one after the other: the skinny operand of each chunk, then the loads of each batch.
    loading = (count * gemm.compulsory_bytes - _IDLE_BYTES) / (_LOADING_BYTES - _IDLE_BYTES)
    latency = (1 + (_LATENCY - 1) * min(1.0, max(0.0, loading))) * spec.dram_latency_clk
    fetches = ceil_div(config.rows * config.chunk // (config.threads * config.few_width), STAGE_UNROLL)
    batches = ceil(loads / (config.warps * config.steps * config.outputs))
    each = max(latency, config.steps * config.outputs * issued * _ALONE)
    alone = latency * (1 + _STAGING * fetches * ceil_div(part_k, config.chunk)) + batches * each
    room = max(1, blocks_that_fit(config, gemm, spec))
    waves, rest = divmod(blocks, room * spec.sm_count)
    last = ceil_div(rest, spec.sm_count)
    clocks = waves * max(room * busy, alone) + (max(last * busy, alone) if last else 0)
    return clocks / (spec.boost_clock_mhz * 1e6)


_QUAD = 4
"""Floats of a load from shared memory."""

_NARROW_BYTES = 512
"""That a warp reads at a time, at most."""


def dram_seconds(gemm: Gemm, spec: DeviceSpec, count: int = 1) -> float:
    """What memory takes for `count` problems."""
    return count * gemm.compulsory_bytes / (_READ_SHARE * spec.dram_gb_per_s * 1e9)


def overlapped(dram: float, busy: float) -> float:
    """Seconds in which memory and the SMs work beside each other."""
    total: float = (dram**_OVERLAP + busy**_OVERLAP) ** (1 / _OVERLAP)
    return total


def predict_gemv(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, clock_mhz: float | None = None) -> Prediction:
    """The time of a kernel with its reasons: that of memory, and that of the busiest SM, which depends on the clock.
    clock_mhz: by default that of the data sheet."""
    clock = clock_mhz or spec.boost_clock_mhz
    dram, start = dram_seconds(gemm, spec), start_seconds(config, gemm, spec)

    def busy_at(mhz: float) -> float:
        return sm_seconds(config, gemm, replace(spec, boost_clock_mhz=round(mhz)))

    def adding_at(mhz: float) -> float:
        return adding_seconds(config, gemm, replace(spec, boost_clock_mhz=round(mhz)))

    def seconds_at(mhz: float) -> float:
        return overlapped(dram, busy_at(mhz)) + start + adding_at(mhz)

    total, busy, adding = seconds_at(clock), busy_at(clock), adding_at(clock)
    bounds = (
        Term("busiest SM", busy, "its loads in flight, its instructions, and what its blocks wait for"),
        Term("DRAM", dram, f"{format_bytes(gemm.compulsory_bytes)}, {_READ_SHARE:.0%} of {spec.dram_gb_per_s:g} GB/s"),
    )
    binding = max(bounds, key=lambda term: term.seconds)
    exposed = (
        Term("overlap", total - start - adding - binding.seconds, "memory and SMs wait for each other", "exposed"),
        Term("sums of lanes", adding, "shuffles, when all is read", "exposed"),
        Term("launch", start, "from one kernel to the next", "exposed"),
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
