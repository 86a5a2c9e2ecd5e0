"""9: the best of all: cooperative or ping-pong, whichever leaves fewer SMs idle; dependent launch of short kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.dtypes import BF16
from tilewright.kernels.wgmma import SMALL_TILE, WgmmaConfig, fits
from tilewright.kernels.wgmma_presets import (
    COOPERATIVE,
    NARROW,
    PING_PONG,
    SKINNY_COLUMNS,
    SKINNY_ROWS,
    best_for,
    clustered,
    one_tile,
    persistent,
    skinny,
    subtile_of,
)
from tilewright.ladders.hopper.claims import BY_TMA, NO_STORE_CONFLICTS
from tilewright.ladders.hopper.points import config_at, point_of
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule


def configurations() -> Iterator[WgmmaConfig]:
    """What a search of the rung measures, at the depth of 2-byte formats."""
    for start, stages, rows in product((COOPERATIVE, PING_PONG), (3, 4), (4, 8, 12, 16)):
        config = replace(start, stages=stages, raster_rows=rows)
        if fits(config):
            yield config
    late = (COOPERATIVE, replace(COOPERATIVE, raster_rows=8), PING_PONG, *(one_tile(*tile) for tile in NARROW))
    for config in late:
        yield replace(config, dependent_launch=False)
    for m, n, consumers in NARROW:
        subtile = subtile_of(m, n)
        for blocks in (1, 2) if m * n <= SMALL_TILE else (1,):
            yield persistent(m, n, consumers, subtile=subtile, blocks=blocks)
            yield one_tile(m, n, consumers, subtile=subtile, blocks=blocks)
            yield one_tile(m, n, consumers, blocks=blocks)
            yield clustered(persistent(m, n, consumers, subtile=subtile, blocks=blocks))
            yield clustered(one_tile(m, n, consumers, blocks=blocks))
    yield persistent(256, 128, 2, subtile=0)
    for rows in (4, 16):
        yield replace(persistent(256, 128, 2, subtile=64, subtile_stages=1), raster_rows=rows)
    yield persistent(128, 128, 2, subtile=64, ping_pong=True)
    yield persistent(128, 128, 2, subtile=0, ping_pong=True)
    for m, n, blocks in product(SKINNY_ROWS, SKINNY_COLUMNS, (1, 2)):
        yield skinny(m, n, blocks=blocks)


def points() -> Iterator[Point]:
    for config in configurations():
        yield point_of(config)


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return config_at(gemm, point).schedule(gemm)


def schedule(gemm: Gemm) -> Schedule:
    return best_for(gemm).schedule(gemm)


BEST = Rung(
    ladder="hopper",
    number=9,
    slug="best",
    label="best",
    idea="cooperative or ping-pong, whichever keeps the tensor cores busier; short kernels overlap by dependent launch",
    schedule=schedule,
    claims=(BY_TMA, NO_STORE_CONFLICTS),
    builds_on="8",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at, shares_k=lambda point: not point["persistent"] and not point["subtile"]),
)
