"""Points of the top rung of ladder `ampere`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.dtypes import F16
from tilewright.kernels.mma import MmaConfig
from tilewright.kernels.mma_presets import BEST, at_depth
from tilewright.ladders.rung import Point
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
