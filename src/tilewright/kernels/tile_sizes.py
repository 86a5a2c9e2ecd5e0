"""What configurations of tiled kernels have in common: their sizes by name, split-K, and laws of warps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from tilewright.device.spec import WARP_THREADS
from tilewright.dtypes import F32
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.ir.program import RasterOrder
from tilewright.kernels.columns import Column, Law
from tilewright.schedule import Raster, Step

MAX_ACCUMULATORS = 192
"""Of a thread that copies as well: the rest of its registers holds addresses and fragments."""

_MAX_WARPS = 32
"""Of a block. Source: CUDA C++ Programming Guide, compute capabilities."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """tile: m, n, k of a block, elements."""

    tile: tuple[int, int, int]

    @property
    def m(self) -> int:
        return self.tile[0]

    @property
    def n(self) -> int:
        return self.tile[1]

    @property
    def k(self) -> int:
        return self.tile[2]

    def with_split_k(self, parts: int) -> Self:
        """The same for so many blocks that share the sum over k of a tile."""
        return replace(self, split_k=parts)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class WarpTiled(Tiled):
    """warp_tile: m, n of a warp's part, elements."""

    warp_tile: tuple[int, int] = (64, 64)

    @property
    def warp_m(self) -> int:
        return self.warp_tile[0]

    @property
    def warp_n(self) -> int:
        return self.warp_tile[1]


def warps_of(config: Any) -> Column:
    """Warps of a block."""
    return config.m // config.warp_m * (config.n // config.warp_n)


def accumulators_of(config: Any) -> Column:
    """Accumulators of a thread."""
    return config.warp_m * config.warp_n // WARP_THREADS


def order_of_tiles(raster_rows: int, cluster: int) -> tuple[Step, ...]:
    """The raster of a kernel whose blocks visit so many rows of tiles together; clusters need one of any order."""
    if raster_rows > 1:
        return (Raster(RasterOrder.GROUPED, group=raster_rows),)
    return (Raster(RasterOrder.ROW),) if cluster > 1 else ()


def exchanged_bytes(config: Any) -> Column:
    """Shared memory for the sums that the blocks of a cluster send of the slice of a tile that a block owns."""
    accumulators = getattr(config, "accumulators", 1)  # kernels of FMAs have no field for several
    return config.m * config.n * accumulators * F32.bytes * (config.cluster_k > 1)


# -- laws --------------------------------------------------------------------------------------------------------------

ACCUMULATORS_AGREE = Law(
    lambda c, g: c.accumulators != g.accumulators,
    lambda c, g: f"its tiles have {c.accumulators} sums of an element of C, and {g} has {g.accumulators}",
)

WARPS_DIVIDE = Law(
    lambda c, g: (c.m % c.warp_m != 0) | (c.n % c.warp_n != 0),
    lambda c, g: f"warps of {c.warp_m} x {c.warp_n} do not divide tiles of {c.m} x {c.n}",
)

THREADS_FIT: tuple[Law, ...] = (
    Law(
        lambda c, g: accumulators_of(c) > MAX_ACCUMULATORS,
        lambda c, g: f"{accumulators_of(c)} accumulators per thread exceed {MAX_ACCUMULATORS}: use smaller warp tiles",
    ),
    Law(
        lambda c, g: warps_of(c) > _MAX_WARPS,
        lambda c, g: f"{warps_of(c)} warps exceed the {_MAX_WARPS} of a block: use larger warp tiles",
    ),
)

PERSISTENT_IS_RASTERISED = Law(
    lambda c, g: (c.persistent > 0) & (c.raster_rows < 2),
    lambda c, g: "persistent blocks find their next tile by a raster: raster_rows of at least 2",
)


def ring_fits(shared_bytes: Callable[[Any, Any], Column]) -> Law:
    """A ring has two stages, and shared memory has room for it. shared_bytes: of a configuration for a problem."""
    return Law(
        lambda c, g: (c.stages < 2) | (shared_bytes(c, g) > MAX_SHARED_BYTES),
        lambda c, g: (
            f"{c.stages} stages take {shared_bytes(c, g)} bytes of shared memory: use 2 or more, "
            f"of at most {MAX_SHARED_BYTES} bytes"
        ),
    )


CLUSTER_SIZES_ALONG_K = (1, 2, 4, 8)
"""Blocks of a cluster that share the sum over k of a tile."""


def clusters_along_k(accumulators: Callable[[Any], Column]) -> tuple[Law, ...]:
    """Blocks of a cluster have equal slices of a tile, and no other split of k. accumulators: of a thread."""
    return (
        Law(
            lambda c, g: np.logical_not(np.isin(c.cluster_k, CLUSTER_SIZES_ALONG_K)),
            lambda c, g: f"a cluster has 1, 2, 4 or 8 blocks that share the sum over k, not {c.cluster_k}",
        ),
        Law(
            lambda c, g: accumulators(c) % c.cluster_k != 0,
            lambda c, g: f"{accumulators(c)} accumulators of a thread are not {c.cluster_k} equal slices",
        ),
        Law(
            lambda c, g: (c.cluster_k > 1) & (c.split_k > 1),
            lambda c, g: "a cluster along k shares all of the sum of a tile: split_k=1",
        ),
    )


_STREAMS_K = Law(
    lambda c, g: (
        (c.stream_k > 0)
        & ((c.persistent == 0) | (c.split_k * c.cluster_k * c.accumulators * c.pieces > 1) | (c.promote_every > 0))
    ),
    lambda c, g: (
        "blocks that share out the k of several tiles are persistent, without split-K, and have one sum of each, "
        "which is not promoted"
    ),
)

_GOES_BACK = Law(
    lambda c, g: (c.serpentine > 0) & ((c.persistent == 0) | (g.block_scales is not None)),
    lambda c, g: "persistent blocks alone have a tile before, and scales of blocks are read in the order of k",
)

WALKS: tuple[Law, ...] = (_STREAMS_K, _GOES_BACK)
"""Of kernels of wgmma: how blocks come to their tiles, and to their k."""
