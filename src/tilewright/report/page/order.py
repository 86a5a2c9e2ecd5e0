"""Picture: the order of the blocks. Which tiles of C run at the same time, and what of A and B they share in L2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.device.spec import DeviceSpec
from tilewright.model.l2 import tiles_in_order
from tilewright.toolchain import Build, grid_of
from tilewright.units import ceil_div


def block_order(built: Build, spec: DeviceSpec, blocks_per_sm: int) -> dict[str, Any] | None:
    """The tiles of C in the order in which they start, and how many of them run together: a wave.

    None where the kernel does not say which tile a block computes.
    """
    gemm, tile = built.gemm, built.kernel.tile
    tiles = tiles_in_order(built.program, built.kernel, grid_of(built.kernel, gemm))
    if not tiles or not blocks_per_sm:
        return None
    wave = min(spec.sm_count * blocks_per_sm, len(tiles))
    columns = ceil_div(gemm.n, tile["n"])
    a, b, _ = gemm.operands
    return {
        "rows": ceil_div(gemm.m, tile["m"]),
        "columns": columns,
        "blocks": len(tiles),
        "wave": wave,
        "runs": _runs([row * columns + column for row, column in tiles]),
        "aBytes": tile["m"] * gemm.k * a.dtype.bytes,
        "bBytes": tile["n"] * gemm.k * b.dtype.bytes,
        "l2Bytes": spec.l2_bytes,
    }


def _runs(numbers: Sequence[int]) -> list[int]:
    """Numbers as (first, step, count) of runs with equal steps, one after the other.

    >>> _runs([0, 1, 2, 3, 8, 6, 4])
    [0, 1, 4, 8, -2, 3]
    """
    runs, at = [], 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 0
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        runs += [numbers[at], step, end - at]
        at = end
    return runs
