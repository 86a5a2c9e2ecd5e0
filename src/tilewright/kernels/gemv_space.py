"""Which GEMV kernels fit a problem, and how long an SM is busy with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.device.arch import SINCE, Feature
from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.ir.register_budgets import REGISTERS_PER_SM, STEP
from tilewright.kernels.gemv import MOST_ROWS, GemvConfig
from tilewright.kernels.skinny import few_order, is_k_major
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div, round_up

_LOADS, _NARROW_LOADS = 8, 16
"""Loads of a lane in flight: of 8 bytes or more, and narrower ones. 16 warps x 32 lanes x 8 x 16 bytes are 64 KiB of an
SM; bandwidth times latency of an H200 is 25 to 33 KiB."""

_CHUNK_FLOATS = 8192
"""Floats of the skinny operand in shared memory at once: 32 KiB, so that several blocks share an SM."""

_SEGMENT_BYTES = 64
"""Neighbouring bytes that the lanes of a warp read of one line of an MN-major matrix, at least: two sectors."""

_BESIDE_REGISTERS, _OF_A_SUM, _BESIDE_STAGING = 24, 1.5, 16
"""Of a thread, for addresses, counters and guards; of each of its sums; and beside loads of the skinny operand. 1,096
kernels, compiled for sm_90a without a bound, have 12 registers more or fewer than by this estimate (one standard
deviation)."""

MOST_THREADS_PER_SM = 1536
"""Of the GPUs from compute capability 8.6 on the fewest."""

_WARPS_BESIDE = 2, 4
"""Warps of a block that read neighbouring columns of an MN-major matrix, where not all lie along k: 1 and 2 KiB of a
line. The best of 27 products of at least 32 MB with them takes 0.98 of the time of the best without (H200)."""

STAGE_UNROLL = 8
"""Loads of the skinny operand that a thread has in flight."""

_MOST_FACTORS = 32
"""Values of the skinny operand that the compiler loads ahead, at most."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What may be assumed of the operands: bytes that addresses, lines and steps are multiples of (at most 16), and
    whether every offset fits in 31 bits."""

    long_bytes: int
    few_bytes: int
    near: bool


def fitting(gemm: Gemm, facts: Facts, split_k: int = 1) -> Iterator[GemvConfig]:
    """Every kernel worth trying for a problem whose sum over k so many blocks share."""
    few, many, size_bytes = min(gemm.m, gemm.n), max(gemm.m, gemm.n), gemm.dtype.bytes
    if not 1 <= few <= MOST_ROWS or gemm.k < 1:
        return
    k_major = is_k_major(gemm)
    rows = next(count for count in (1, 2, 4, 8, 16) if few <= count)
    width = next(
        w
        for w in (8, 4, 2, 1)
        if w * size_bytes <= WIDEST_BYTES and facts.long_bytes % (w * size_bytes) == 0 and (k_major or many % w == 0)
    )
    whole = gemm.k % 4 == 0 or (k_major and width % 4 == 0)
    quads = few_order(gemm) == "k" and whole and facts.few_bytes % (4 * size_bytes) == 0
    few_width = 4 if quads else 1
    loads = _LOADS if width * size_bytes >= 8 else _NARROW_LOADS
    warps = 8 if rows <= (4 if k_major else 8) else 4
    part_k = ceil_div(gemm.k, split_k)
    for outputs, lanes_k, warps_k in _shapes(gemm, rows, width, warps):
        step_k = warps_k * lanes_k * (width if k_major else 1)
        for steps in _step_counts(loads // outputs, 2 * part_k / step_k):
            batch = steps * step_k
            least = max(batch, warps * WARP_THREADS * few_width // rows)
            chunk = 1 << (max(least, min(part_k, _CHUNK_FLOATS // rows)) - 1).bit_length()
            if chunk * rows <= 2 * _CHUNK_FLOATS:
                yield GemvConfig(
                    *(rows, width, few_width, outputs, lanes_k, warps_k, warps, steps, chunk, split_k),
                    whole_k=gemm.k % width == 0,
                    near=facts.near,
                )


def _step_counts(most: int, below: float) -> tuple[int, ...]:
    """As many steps as may be, and half of them; fewer where a sum is short.

    >>> _step_counts(8, 100), _step_counts(8, 3.5), _step_counts(8, 0.5)
    ((8, 4), (2, 1), (1,))
    """
    counts = [most >> bit for bit in range(most.bit_length())]
    return tuple([count for count in counts if count < below][:2]) or (1,)


def _shapes(gemm: Gemm, rows: int, width: int, warps: int) -> Iterator[tuple[int, int, int]]:
    """Outputs of a lane, lanes along k, warps along k."""
    many = max(gemm.m, gemm.n)
    if not is_k_major(gemm):
        for lanes_k in (1, 2, 4, 8):
            if lanes_k == 1 or WARP_THREADS // lanes_k * width * gemm.dtype.bytes >= _SEGMENT_BYTES:
                yield 1, lanes_k, warps
        for beside in _WARPS_BESIDE:
            if beside * WARP_THREADS * width <= many:
                yield 1, 1, warps // beside
        return
    most_lanes = 32 if rows <= 4 else 16
    short = next(lanes for lanes in (8, 16, 32) if lanes * width >= gemm.k or lanes == 32)
    lanes_k = min(most_lanes, short)
    lanes_out = WARP_THREADS // lanes_k
    warp_counts = [warps >> bit for bit in range(warps.bit_length())]  # that share out k, the most first
    for outputs in (4, 2, 1):
        for warps_k in warp_counts:
            fills = outputs * lanes_out * (warps // warps_k) <= many
            if fills or (outputs == 1 and warps_k == warps):
                yield outputs, lanes_k, warps_k


def registers(config: GemvConfig, gemm: Gemm) -> int:
    """Registers of a thread, about."""
    k_major = is_k_major(gemm)
    held = config.outputs * config.width
    sums = config.rows * (config.outputs if k_major else held)
    ring = config.steps * config.outputs * ceil_div(config.width * gemm.dtype.bytes, 4)
    factors = min(config.rows * config.width, _MOST_FACTORS) if k_major else 0
    if gemm.dtype is not F32:
        factors += factors // 2  # values that were unpacked
    pieces = config.rows * config.chunk // (config.threads * config.few_width)
    fetched = min(pieces, STAGE_UNROLL) * ceil_div(config.few_width * gemm.dtype.bytes, 4)
    return ring + max(_BESIDE_REGISTERS + round(_OF_A_SUM * sums) + factors, _BESIDE_STAGING + fetched)


def blocks_by_registers(config: GemvConfig, gemm: Gemm) -> int:
    """Blocks that an SM has registers for at a time; the compiler is told of them."""
    each = round_up(registers(config, gemm), STEP)
    return max(1, min(REGISTERS_PER_SM // (each * config.threads), MOST_THREADS_PER_SM // config.threads))


def shared_bytes(config: GemvConfig, gemm: Gemm) -> int:
    """Shared memory of a block."""
    k_major = is_k_major(gemm)
    sums = config.warps_k * config.rows * config.outputs_of_block(k_major=k_major)
    return F32.bytes * (config.chunk * (config.rows if k_major else config.pitch) + sums)


def blocks_that_fit(config: GemvConfig, gemm: Gemm, spec: DeviceSpec) -> int:
    """Blocks that an SM has room for at a time."""
    by_shared = spec.max_shared_bytes_per_block // (shared_bytes(config, gemm) + 1024)
    return min(blocks_by_registers(config, gemm), by_shared)


def blocks_of(config: GemvConfig, gemm: Gemm, count: int = 1) -> int:
    """Of a launch that computes `count` problems."""
    outputs = config.outputs_of_block(k_major=is_k_major(gemm))
    return ceil_div(max(gemm.m, gemm.n), outputs) * config.parts(gemm) * count


ASKED_BYTES = 16 << 10
"""That a block asks the L2 for while it waits for the kernel before. Pure reads of 30 MB by two blocks an SM take 7.7
us with 8 KiB, 7.4 with 16, 8.1 with 32, and 8.8 where they do not start early (H200, record 0099)."""

_LEAST_EVEN = {1: 0.0, 2: 0.88}
_LEAST_EVEN_OF_MORE = 0.78
_LEAST_EVEN_BEHIND_REDUCTION = 0.75
"""Of the blocks that would give each SM as many, by how many that are: with fewer, those that start under the kernel
before crowd on some SMs. Behind the reduction of split-K, which leaves most SMs idle, they do so less."""


def starts_early(config: GemvConfig, gemm: Gemm, spec: DeviceSpec, count: int = 1) -> bool:
    """Whether a kernel should start under the one before it, on a device that can do that. In one wave it takes 0.93 of
    the time, in several 0.95 to 1.01 (H200, 16 and 5 kernels; record 0099)."""
    if spec.compute_capability < SINCE[Feature.DEPENDENT_LAUNCH]:
        return False
    blocks = blocks_of(config, gemm, count)
    each = ceil_div(blocks, spec.sm_count)
    if each > blocks_that_fit(config, gemm, spec):
        return True
    least = _LEAST_EVEN.get(each, _LEAST_EVEN_OF_MORE)
    if config.parts(gemm) > 1:
        least = min(least, _LEAST_EVEN_BEHIND_REDUCTION)
    return blocks >= least * each * spec.sm_count
