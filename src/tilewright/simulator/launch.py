"""A launch: the arguments and the grid of a kernel at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import Array
from tilewright.errors import SimulationError
from tilewright.ir.expr import Const, Expr
from tilewright.ir.kernel import BATCH, C_ODD, Kernel
from tilewright.problem.gemm import Gemm
from tilewright.simulator.index import Scope, resolve, uniform
from tilewright.units import ceil_div
from tilewright.units import resident_blocks as started

Block = tuple[int, int, int]
"""Coordinates of a block, or extents of a grid: x, y, z."""


def arguments(kernel: Kernel, values: Mapping[str, float]) -> dict[str, Expr]:
    """The scalar arguments of a launch as typed constants; of a strided batched one, the single problem by default."""
    kernel.check_beta(values.get("beta", 0.0))
    values = {**{p.name: 0 for p in kernel.batching}, BATCH.name: 1, **values}
    scalar = (p for p in (*kernel.arguments, *kernel.batching) if not p.is_pointer)
    kinds = {parameter.name: parameter.dtype for parameter in scalar}
    return {name: Const(values[name], dtype) for name, dtype in kinds.items()}


def odd(kernel: Kernel, base_of: Callable[[str], int]) -> dict[str, Expr]:
    """Where C begins inside aligned pairs of its elements, as a constant. base_of: the address of an operand."""
    if not isinstance(kernel.problem, Gemm):
        return {}
    return {C_ODD.name: Const(base_of("C") // kernel.problem.out.bytes % 2)}


def grid_of(kernel: Kernel, constants: Mapping[str, Expr]) -> Block:
    """Blocks along x, y, z."""
    x, y, z = (uniform(resolve(extent, Scope(constants)))([]) for extent in kernel.grid)
    return x, y, z


LARGE_GPU_BLOCKS = 132
"""Multiprocessors of an H200. Source: NVIDIA H200 data sheet."""


def launched_grid(kernel: Kernel, constants: Mapping[str, Expr], resident_blocks: int | None = None) -> Block:
    """Blocks that are launched: of a resident kernel no more than run at once, in whole clusters (`units`)."""
    x, y, z = grid_of(kernel, constants)
    if not kernel.resident:
        return x, y, z
    room = LARGE_GPU_BLOCKS if resident_blocks is None else resident_blocks
    return started(x, room, kernel.cluster, equal=kernel.equal_items), y, z


def warps_per_block(kernel: Kernel) -> int:
    return ceil_div(kernel.threads_per_block, WARP_THREADS)


def all_blocks(grid: Block) -> Array:
    """blockIdx of every block in launch order, x fastest: (blocks, 3)."""
    x, y, z = grid
    numbers = np.arange(x * y * z, dtype=np.int64)
    x, y = max(x, 1), max(y, 1)
    return np.stack([numbers % x, numbers // x % y, numbers // (x * y)], axis=1)


def some_blocks(grid: Block, blocks: Iterable[Block], cluster: int = 1) -> Array:
    """These blocks as an array, (blocks, 3), with the other blocks of their clusters.

    Raises SimulationError for one that is not in the grid.
    """
    try:
        chosen = np.array([tuple(block) for block in blocks], np.int64).reshape(-1, 3)
    except (TypeError, ValueError):
        raise SimulationError(f"{blocks!r} are not blocks of a grid.", hint="each is (x, y, z).") from None
    outside = ((chosen < 0) | (chosen >= np.array(grid))).any(axis=1)
    if outside.any():
        raise SimulationError(
            f"Block {tuple(chosen[int(np.argmax(outside))].tolist())} is not in the grid {grid}.",
            hint="a block is (x, y, z), each from 0 and below the extent of the grid.",
        )
    if cluster == 1:
        return chosen
    first = np.unique(chosen // (cluster, 1, 1) * (cluster, 1, 1), axis=0)
    return np.concatenate([block + np.stack([np.arange(cluster), *np.zeros((2, cluster), int)], 1) for block in first])
