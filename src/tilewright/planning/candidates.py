"""The kernels that come into question for a problem, as NumPy columns, a table for each family.

A table says nothing of speed: `cost` prices every row of it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.kernels import wgmma_presets as presets
from tilewright.kernels.columns import Columns
from tilewright.kernels.configuration import GemmConfig
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.mma_presets import BEST as MMA_BEST
from tilewright.kernels.mma_presets import at_depth
from tilewright.kernels.simt import SimtConfig
from tilewright.kernels.wgmma import SMALL_TILE, WgmmaConfig
from tilewright.kernels.wgmma_steps import stages_c, tma_stores
from tilewright.kernels.work import is_misaligned
from tilewright.problem.gemm import Gemm, Order
from tilewright.units import ceil_div

_MOST_ROWS = 16
"""Rows of tiles that blocks visit together, at most: their strips of A stay in the L2."""


def candidates(gemm: Gemm, spec: DeviceSpec) -> Mapping[str, Columns]:
    """Tables of what can multiply the formats of a problem on a device, by family."""
    found: dict[str, list[GemmConfig]] = {}
    for config in configurations(gemm, spec):
        found.setdefault(config.kind, []).append(config)
    return {kind: Columns.of(configs, configs[0].columns) for kind, configs in found.items()}


def families_for(gemm: Gemm, spec: DeviceSpec, family: str) -> tuple[str, ...]:
    """A family that was asked for, as far as the device has what it needs."""
    since = {"simt": (0, 0), "mma": (8, 0), "wgmma": (9, 0)}
    known = family in since and spec.compute_capability >= since[family]
    return (family,) if known and (family != "wgmma" or spec.compute_capability[0] == 9) else ()


def configurations(gemm: Gemm, spec: DeviceSpec) -> Iterator[GemmConfig]:
    """The kernels behind the tables. Where no tensor core multiplies the formats, the CUDA cores do."""
    rate = spec.tensor.flops_per_clk_per_sm(gemm.multiplied.rate, "f32") if gemm.multiplied is not F32 else 0
    tensor_cores = bool(rate)
    if not tensor_cores or spec.compute_capability < (8, 0):
        yield from _simt(gemm, spec)
        return
    if spec.compute_capability[0] == 9:
        yield from _wgmma(gemm)
    yield from _mma(gemm)


def _simt(gemm: Gemm, spec: DeviceSpec) -> Iterator[SimtConfig]:
    """k is unrolled by 8, but for the largest tiles: in a longer run of FMAs ptxas moves the loads of the next tile to
    its end, right before their use, which few warps have nothing to cover with (tests/planning/test_candidates.py)."""
    for m, n, warp_m, warp_n in (
        (128, 256, 64, 64),
        (256, 128, 64, 64),
        (128, 128, 64, 64),
        (128, 128, 32, 64),
        (64, 256, 64, 64),
        (64, 256, 32, 64),
        (128, 64, 64, 32),
        (64, 128, 32, 64),
        (64, 64, 32, 32),
        (32, 64, 16, 32),
    ):
        unroll = 16 if m * n == 128 * 256 else 8
        rows = _raster_rows(gemm, spec, m, n)
        yield SimtConfig((m, n, 16), (warp_m, warp_n), unroll=unroll, raster_rows=rows)
    # Rows that nearly fill a tile may be as fast as in the GEMV kernel: copies of B run ahead by several stages.
    if 8 < gemm.m <= 16 and gemm.b is Order.ROW and gemm.dtype is F32:
        yield SimtConfig((16, 256, 16), (16, 64), b_transport="cp_async", stages=4, unroll=8)


def _raster_rows(gemm: Gemm, spec: DeviceSpec, m: int, n: int) -> int:
    """Rows of tiles that blocks visit together. One row after another, each would read all of B anew, where it does not
    fit into the L2 and a row has more tiles than run at a time."""
    rows, columns = ceil_div(gemm.m, m), ceil_div(gemm.n, n)
    again = columns > spec.sm_count and gemm.k * gemm.n * gemm.dtype.bytes > spec.l2_bytes
    return min(_MOST_ROWS, rows) if again else 1


def _mma(gemm: Gemm) -> Iterator[MmaConfig]:
    for m, n, warp_m, warp_n, stages in (
        (128, 256, 64, 64, 3),
        (128, 128, 64, 64, 3),
        (64, 128, 32, 64, 4),
        (64, 64, 32, 32, 4),
    ):
        config = replace(MMA_BEST, tile=(m, n, 32), warp_tile=(warp_m, warp_n), stages=stages)
        yield at_depth(config, gemm)


def _wgmma(gemm: Gemm) -> Iterator[WgmmaConfig]:
    """Persistent kernels, then kernels with a block for each tile, then those for a skinny C."""
    plain = gemm.epilogue.bias is None and gemm.epilogue.activation is None
    if stages_c(gemm):
        # Ping-pong with wide tiles leaves no registers for an epilogue.
        large = presets.best_for(gemm) if plain else presets.COOPERATIVE
        # Threads that store along rows read one stage at once; a ring that is a stage deeper is worth more than a
        # second one. So it is for the largest tile, whoever stores it: 4096^3 in bf16 on the H200 199 us, with two
        # epilogue stages and a ring of three 209.
        alone = not tma_stores(gemm)
        narrow = [
            presets.persistent(
                m, n, consumers, subtile=presets.subtile_of(m, n), subtile_stages=1 if alone or m == 256 else 2
            )
            for m, n, consumers in presets.NARROW
        ]
    else:  # per-thread stores; narrower tiles hide the many of them
        large = presets.COOPERATIVE
        narrow = [
            presets.persistent(256, 128, 2, subtile=0),
            presets.persistent(128, 128, 2, subtile=0, ping_pong=True),
        ]
    found = [large, *narrow]
    if gemm.m > 64 and any(is_misaligned(gemm, name) for name in ("A", "B")):
        found += [presets.clustered(config) for config in (large, *narrow)]
    for m, n, consumers in ((128, 256, 2), *presets.NARROW):
        for blocks in (1, 2) if m * n <= SMALL_TILE else (1,):
            found.append(presets.one_tile(m, n, consumers, blocks=blocks))
    found += _skinny(gemm)
    for config in found:
        yield presets.at_depth(config, gemm)


def _skinny(gemm: Gemm) -> Iterator[WgmmaConfig]:
    """Tiles as high as a skinny C; a swizzle atom has rows of 32, 64 or 128 bytes."""
    along_m = gemm.a is Order.COL
    whole_atoms = (m for m in presets.SKINNY_ROWS if not along_m or m * gemm.dtype.bytes in (32, 64, 128))
    rows = next((m for m in whole_atoms if m >= gemm.m), None)
    if rows is None:
        return
    for columns in presets.SKINNY_COLUMNS:
        config = presets.skinny(rows, columns)
        yield config
        if along_m:  # of short rows the cluster reads each once, which are many small requests
            yield presets.clustered(config, (1, 2))
