"""How long GEMM kernels of warps take, those of CUDA cores and of mma.sync: by the performance model (docs/model.md),
with what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels.block_work import Setting
from tilewright.kernels.columns import Column, Columns
from tilewright.model.time import DRAM_SHARE, LAUNCH_SECONDS
from tilewright.planning.cost.block_clocks import blocks_per_sm, sm_clocks
from tilewright.planning.cost.exchange import exchange_clocks, filled_sms, shared_out
from tilewright.planning.cost.launches import Around, Sizes, moving
from tilewright.planning.cost.narrow_copies import copies_elements, room_for_copies, waiting_clocks
from tilewright.planning.cost.simt_features import Busiest
from tilewright.planning.packing import TMA_BYTES
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

_NARROW: Mapping[int, float] = {16: 1.0, 8: 0.94, 4: 0.65}
"""What is left of the speed of an mma.sync kernel whose copies are so many bytes wide, which the model takes for faster
than they are: measured on the H200 with 16-bit operands. Of copies of elements: `narrow_copies`."""

SLOW_B = 1.03
"""How much longer than by the model SIMT kernels take that transpose B on its way through shared memory, but for the
time that memory takes. Measured on the H200 in f32, B column-major: 4096^3 takes 2793 us, and 2673 where B was
transposed before; with tiles of 256 x 128, 2819 and 2719. By the model it is 1.9 %
(benchmarks/results/plans_h200.json)."""

_EDGES, _ODD_EDGES = 1.035, 1.1
"""And how much longer where edges are guarded, and where rows of C are stored element by element, guarded or not.
Measured on the H200: 4000^3, 250 k tiles, 2705 us, and 4096^3 2674 for 256; an odd ldc: see `pads_to_tiles`."""

_FAR_BYTES = 256 << 10
"""Rows of B that are as far apart are no faster: 2048 x 151936 x 2048, with rows of 594 KiB, takes 25.3 ms as it lies,
and 25.4 where B was transposed, beside the pre-pass. Rows of 56 KiB (4096 x 14336 x 4096) cost nothing; between these
nothing was measured."""

_BETWEEN = 0.955
"""Of the clocks of a SIMT kernel whose copies lie between its k steps, where it transposes both operands on their way:
0.947 to 0.957 in six kernels of 128 x 128 and 96 x 128 without edges (H100). Stores in a row hold up a warp for four
clocks each; of an operand that is not transposed there are a quarter as many."""

_IDLE = 0.05
"""How much longer memory takes for the same bytes if hardly an SM asks for them: to tell apart what is alike."""

_IN_A_ROW = 1.5e-6
"""What `LAUNCH_SECONDS` counts too much where kernels follow each other in a graph: small mma.sync kernels took as much
less than estimated (benchmarks/choice_sweep.py, H200). The estimates of other families are corrected as a whole."""


_CROWDED = 2
"""Blocks of mma.sync that an SM has room for, at most, where a cluster that finds no place beside others costs their
time: 24 x 2048 x 10944 in 16 clusters of 8 took 35.9 us in the place of 27. With room for three or more, eight kernels
of 128 and 256 blocks in clusters of 8 took no longer (tf32 and bf16, H200)."""


def kernels_timed(
    kind: str, c: Columns, read: Gemm, spec: DeviceSpec, around: Around, sizes: Sizes
) -> tuple[Any, Busiest]:
    """Seconds of the GEMM kernels of a table, but wgmma's, with parts of split-K, without their reduction; and what the
    busiest SM does. read: behind the packing."""
    per_sm = blocks_per_sm(kind, c, read, spec)
    narrow = kind == "mma" and around.loads_bytes < TMA_BYTES
    if narrow:
        per_sm = np.minimum(per_sm, room_for_copies(c, read, around, spec))
    together = np.maximum(1, per_sm)
    k_tiles = ceil_div(sizes.k, c.k)
    blocks, steps = shared_out(c, sizes.tiles(c), k_tiles, spec.sm_count * together, around.count)
    parts = c.split_k > 1
    whole_bytes, part_bytes = around.stores_bytes
    stores = np.where(parts, part_bytes, whole_bytes)
    setting = Setting(
        blocks=blocks,
        k_tiles=steps,
        aligned_bytes=around.loads_bytes,
        result_bytes=stores,
        out_bytes=np.where(parts, F32.bytes, read.out.bytes),
    )
    stored = (whole_bytes, read.out.bytes), (part_bytes, F32.bytes)
    sms = filled_sms(c, spec)
    if kind == "mma":
        sms = np.where(together <= _CROWDED, sms, spec.sm_count)
    most = np.ceil(blocks / sms)
    clocks, step, ends = sm_clocks(kind, c, read, spec, setting, most, together, stored)
    by_elements = narrow and copies_elements(around)
    if by_elements:
        clocks = clocks + waiting_clocks(c, read, around, sizes, together, most, steps)
    exchange = exchange_clocks(c, together, ceil_div(k_tiles, np.maximum(steps, 1)) - 1)
    clocks = clocks + np.ceil(blocks / (sms * together)) * exchange
    idle = np.maximum(0.0, 1 - blocks / spec.sm_count)
    moved_bytes = around.count * sizes.compulsory_bytes(read) * (1 + _IDLE * idle)
    if kind == "simt" and read.a is Order.ROW and read.b is Order.COL:
        clocks = clocks * np.where(c.interleaved_copies, _BETWEEN, 1.0)
    clock_hz = 1e6 * (spec.tensor_clock_mhz if kind == "mma" else spec.boost_clock_mhz)
    seconds = np.maximum(clocks / clock_hz, moved_bytes / (DRAM_SHARE * spec.dram_gb_per_s * 1e9)) + LAUNCH_SECONDS
    if kind == "mma":
        left = 1.0 if by_elements else _NARROW[around.loads_bytes]
        seconds = LAUNCH_SECONDS - _IN_A_ROW + (seconds - LAUNCH_SECONDS) / left
    else:
        seconds = seconds + _simt_share(c, read, sizes, stores) * np.maximum(0.0, seconds - moving(moved_bytes, spec))
    at_once = np.maximum(1, np.minimum(together, most))
    return np.where(per_sm > 0, seconds, np.inf), Busiest(blocks, most, at_once, steps, step, ends, exchange)


def _simt_share(c: Any, read: Gemm, sizes: Sizes, stores: Column) -> Any:
    """By how much longer SIMT kernels take than by the model, but for the time that memory takes."""
    far = (read.b is Order.COL) | (np.maximum(read.ldb, sizes.n) * read.dtype.bytes >= _FAR_BYTES)
    whole = (sizes.m % c.m == 0) & (sizes.n % c.n == 0) & (sizes.k % c.k == 0)
    edges = np.where(stores < TMA_BYTES, _ODD_EDGES, np.where(whole, 1.0, _EDGES))
    return np.where(far, SLOW_B, 1.0) * edges - 1


def least_seconds(gemm: Gemm, spec: DeviceSpec) -> float:
    """That arithmetic on CUDA cores, or memory, leaves a product."""
    return max(gemm.flops / (1e12 * spec.peak_fp32_tflops), float(moving(gemm.compulsory_bytes, spec, 0)))
