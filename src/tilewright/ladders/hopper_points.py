"""Points of the rungs of ladder `hopper`: the parameters of `kernels.wgmma.WgmmaConfig` that a rung leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tilewright.kernels.wgmma import SMALL_TILE, WgmmaConfig, fits
from tilewright.kernels.wgmma_presets import (
    COOPERATIVE,
    NARROW,
    PING_PONG,
    SKINNY_COLUMNS,
    SKINNY_ROWS,
    at_depth,
    clustered,
    one_tile,
    persistent,
    skinny,
    subtile_of,
)
from tilewright.kernels.wgmma_steps import WgmmaTile
from tilewright.ladders.rung import Choices, Point
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule

SHAPES = ((128, 128), (128, 192), (128, 256), (256, 128))
"""Rows and columns of tiles that the cooperative rungs are searched over."""


def tile_at(point: Point) -> WgmmaTile:
    """The tile of a point."""
    return WgmmaTile(point["m"], point["n"], point["consumers"])


def point_fits(point: Point) -> bool:
    """Whether a block of a point fits on an SM. subtiles: of the epilogue; per-thread stores where it has none."""
    m, n, subtiles = point["m"], point["n"], point.get("subtiles", 0)
    subtile = n // subtiles if subtiles else 0
    whole = subtile % 64 == 0 and (not subtiles or n % subtiles == 0)
    return whole and bool(fits(WgmmaConfig((m, n, 64), point["consumers"], stages=point["stages"], subtile=subtile)))


def point_of(config: WgmmaConfig) -> Point:
    """A kernel as a point of the rung's choices: all but k, which the format decides."""
    return {name: getattr(config, name) for name in config.columns if name not in ("k", "split_k")}


def config_at(gemm: Gemm, point: Point) -> WgmmaConfig:
    """The kernel of a point."""
    rest = {name: value for name, value in point.items() if name not in ("m", "n", "cluster_m", "cluster_n")}
    config = WgmmaConfig((point["m"], point["n"], 0), cluster=(point["cluster_m"], point["cluster_n"]), **rest)
    return at_depth(config, gemm)


def around(
    best: Point, schedule_at: Callable[[Gemm, Point], Schedule], *, shapes: Iterable[tuple[int, int]] = SHAPES,
    **values: Iterable[Any],
) -> Choices:  # fmt: skip
    """The points beside `best`: every shape of tiles with every choice of the values named that fits.

    Where subtiles are not among these, a tile has those of `best`, or as many as are 64 columns wide.
    """
    most_subtiles = best.get("subtiles", 0)

    def points() -> Iterator[Point]:
        for (m, n), *chosen in product(shapes, *values.values()):
            own = {"m": m, "n": n, "subtiles": min(most_subtiles, n // 64)} if most_subtiles else {"m": m, "n": n}
            point = {**best, **own, **dict(zip(values, chosen, strict=True))}
            if point_fits(point):
                yield point

    return Choices(points, schedule_at)


def choices_of(configurations: Callable[[], Iterator[WgmmaConfig]], **options: Any) -> Choices:
    """Whole kernels as points."""
    return Choices(
        lambda: map(point_of, configurations()), lambda gemm, point: config_at(gemm, point).schedule(gemm), **options
    )


TURNS = replace(PING_PONG, raster_rows=16, dependent_launch=False)
"""Two consumers, each with a whole tile of 128 x 192 and its own two epilogue stages."""


def of_ping_pong() -> Iterator[WgmmaConfig]:
    shapes = ((128, 128, 64), (128, 192, 64), (64, 256, 128), (64, 256, 64))
    for (m, n, subtile), stages, rows in product(shapes, (3, 4, 5), (4, 8, 16)):
        config = replace(TURNS, tile=(m, n, 64), stages=stages, raster_rows=rows, subtile=subtile)
        if fits(config):
            yield config


def of_best() -> Iterator[WgmmaConfig]:
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
