"""Which GEMV kernels fit a problem, and how long an SM is busy with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.device.spec import WARP_THREADS, DeviceSpec
from tilewright.dtypes import F32
from tilewright.ir.kernel import WIDEST_BYTES
from tilewright.kernels.gemv import MOST_ROWS, GemvConfig
from tilewright.kernels.skinny import few_order, is_k_major
from tilewright.problem.gemm import Gemm
from tilewright.units import ceil_div

_LOADS, _NARROW_LOADS = 8, 16
"""Loads of a lane in flight: of 8 bytes or more, and narrower ones. 16 warps x 32 lanes x 8 x 16 bytes are 64 KiB of an
SM; bandwidth times latency of an H200 is 25 to 33 KiB."""

_CHUNK_FLOATS = 8192
"""Floats of the skinny operand in shared memory at once: 32 KiB, so that several blocks share an SM."""

_SEGMENT_BYTES = 64
"""Neighbouring bytes that the lanes of a warp read of one line of an MN-major matrix, at least: two sectors."""

_BESIDE_REGISTERS = 32
"""Of a thread, for addresses, counters and guards. Registers of twelve kernels, compiled for sm_90a, lie within 40 of
this estimate."""

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
    warps = 8 if rows <= 4 else 4
    part_k = ceil_div(gemm.k, split_k)
    for outputs, lanes_k, warps_k in _shapes(gemm, rows, width, warps):
        for steps in _step_counts(loads // outputs):
            batch = steps * warps_k * lanes_k * (width if k_major else 1)
            if steps > 1 and batch >= 2 * part_k:
                continue
            least = max(batch, warps * WARP_THREADS * few_width // rows)
            chunk = 1 << (max(least, min(part_k, _CHUNK_FLOATS // rows)) - 1).bit_length()
            if chunk * rows <= 2 * _CHUNK_FLOATS:
                yield GemvConfig(
                    *(rows, width, few_width, outputs, lanes_k, warps_k, warps, steps, chunk, split_k),
                    whole_k=gemm.k % width == 0,
                    near=facts.near,
                )


def _step_counts(most: int) -> tuple[int, ...]:
    """As many steps as may be, and fewer where a sum is short.

    >>> _step_counts(8)
    (8, 4, 2, 1)
    """
    return tuple(most >> bit for bit in range(most.bit_length()))


def _shapes(gemm: Gemm, rows: int, width: int, warps: int) -> Iterator[tuple[int, int, int]]:
    """Outputs of a lane, lanes along k, warps along k."""
    if not is_k_major(gemm):
        for lanes_k in (1, 2, 4, 8):
            if lanes_k == 1 or WARP_THREADS // lanes_k * width * gemm.dtype.bytes >= _SEGMENT_BYTES:
                yield 1, lanes_k, warps
        return
    most_lanes = 32 if rows <= 4 else 16
    short = next(lanes for lanes in (8, 16, 32) if lanes * width >= gemm.k or lanes == 32)
    lanes_k = min(most_lanes, short)
    many, lanes_out = max(gemm.m, gemm.n), WARP_THREADS // lanes_k
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
    ring = config.steps * held * gemm.dtype.bytes // 4
    values = 0 if gemm.dtype is F32 else held
    factors = min(config.rows * config.width, _MOST_FACTORS) if k_major else config.rows
    return _BESIDE_REGISTERS + sums + ring + values + factors


def shared_bytes(config: GemvConfig, gemm: Gemm) -> int:
    """Shared memory of a block."""
    k_major = is_k_major(gemm)
    sums = config.warps_k * config.rows * config.outputs_of_block(k_major=k_major)
    return F32.bytes * (config.chunk * (config.rows if k_major else config.pitch) + sums)


def blocks_that_fit(config: GemvConfig, gemm: Gemm, spec: DeviceSpec) -> int:
    """Blocks that an SM has room for at a time."""
    return min(
        spec.max_registers_per_block // (registers(config, gemm) * config.threads),
        spec.max_shared_bytes_per_block // (shared_bytes(config, gemm) + 1024),
        2048 // config.threads,
    )
