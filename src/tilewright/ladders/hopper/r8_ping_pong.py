"""8: ping-pong. Each consumer warpgroup has tiles of C of its own; while one stores, the other multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.dtypes import BF16
from tilewright.kernels import wgmma_presets as presets
from tilewright.kernels.wgmma import WgmmaConfig, fits
from tilewright.ladders.hopper.claims import BY_TMA, NO_STORE_CONFLICTS, brought, tensor_cores
from tilewright.ladders.hopper.points import config_at, point_of
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule

PRESET = replace(presets.PING_PONG, raster_rows=16, dependent_launch=False)
"""Two consumers, each with a whole tile of 128 x 192 and its own two epilogue stages."""


def configurations() -> Iterator[WgmmaConfig]:
    shapes = ((128, 128, 64), (128, 192, 64), (64, 256, 128), (64, 256, 64))
    for (m, n, subtile), stages, rows in product(shapes, (3, 4, 5), (4, 8, 16)):
        config = replace(PRESET, tile=(m, n, 64), stages=stages, raster_rows=rows, subtile=subtile)
        if fits(config):
            yield config


def points() -> Iterator[Point]:
    for config in configurations():
        yield point_of(config)


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return config_at(gemm, point).schedule(gemm)


def schedule(gemm: Gemm) -> Schedule:
    return presets.at_depth(PRESET, gemm).schedule(gemm)


PING_PONG = Rung(
    ladder="hopper",
    number=8,
    slug="ping_pong",
    idea="two warpgroups in ping-pong: while one stores its tile, the tensor cores work for the other",
    schedule=schedule,
    claims=(tensor_cores(PRESET.steps_tile), brought(PRESET.steps_tile), BY_TMA, NO_STORE_CONFLICTS),
    builds_on="6",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
