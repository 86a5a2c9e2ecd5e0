"""6: the full Ampere kernel: warps of 64 x 64 in blocks of 128 x 256, copies interleaved with the MMAs, a raster order.

Where each block has several tiles, blocks are persistent, and the ring of copies runs on into the next tile. It is a
preset of the family `kernels.mma`, whose `best_for` says which parameters are best for a problem and fit on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.dtypes import F16
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.mma_presets import BEST, at_depth, best_for
from tilewright.ladders.ampere.claims import (
    COPIED_ASYNCHRONOUSLY,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    TENSOR_CORES,
    matrices_of,
)
from tilewright.ladders.rung import Choices, Claim, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule


def configurations() -> Iterator[MmaConfig]:
    """What a search of the rung measures, at the depth of 2-byte formats."""
    shapes = (
        *((128, 128, 64, 32), (128, 128, 64, 64), (128, 256, 64, 64), (256, 128, 64, 64), (128, 192, 64, 48)),
        (256, 128, 64, 32),
    )
    stores: tuple[dict[str, Any], ...] = (
        {},
        {"store": "shared"},
        {"store": "quad_shuffle", "n_outer": True, "raster_rows": 16},
    )
    searched = Gemm(512, 512, 512, F16, out=F16)
    for (m, n, warp_m, warp_n), k, stages, buffered, interleaved, store in product(
        shapes, (32, 64), (2, 3, 4), (False, True), (False, True), stores
    ):
        config = replace(
            BEST,
            tile=(m, n, k),
            warp_tile=(warp_m, warp_n),
            stages=stages,
            double_buffered_fragments=buffered,
            interleaved_copies=interleaved,
            **store,
        )
        if not config.reasons_against(searched):
            yield config


def point_of(config: MmaConfig) -> Point:
    """A kernel as a point of the rung's choices, its k in bytes."""
    values = {name: getattr(config, name) for name in config.columns if name not in ("k", "split_k")}
    return {**values, "k_bytes": 2 * config.k}


def config_at(gemm: Gemm, point: Point) -> MmaConfig:
    """The kernel of a point."""
    own = ("m", "n", "warp_m", "warp_n", "k_bytes")
    rest = {name: value for name, value in point.items() if name not in own}
    tile = (point["m"], point["n"], point["k_bytes"] // 2)
    return at_depth(MmaConfig(tile, (point["warp_m"], point["warp_n"]), **rest), gemm)


def points() -> Iterator[Point]:
    for config in configurations():
        yield point_of(config)


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return config_at(gemm, point).schedule(gemm)


def schedule(gemm: Gemm) -> Schedule:
    return best_for(gemm).schedule(gemm)


def schedule_within(gemm: Gemm, most_bytes: int) -> Schedule:
    return best_for(gemm, most_bytes).schedule(gemm)


FULL = Rung(
    ladder="ampere",
    number=6,
    slug="full",
    idea="warps of 64 x 64, copies interleaved with the MMAs, persistent blocks of 128 x 256",
    schedule=schedule,
    schedule_within=schedule_within,
    claims=(
        TENSOR_CORES,
        ONE_BARRIER,
        NO_LOAD_CONFLICTS,
        COPIED_ASYNCHRONOUSLY,
        Claim("8 ldmatrix for 32 mma, a step ahead", lambda c, g: matrices_of(c, g, 8, 32, ahead=True)),
    ),
    builds_on="5",
    problem={"dtype": F16, "out": F16},
    choices=Choices(points, schedule_at),
)
