"""6: TMA stores C, too: stmatrix fills one epilogue subtile, a quarter of a tile, while the last one is stored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.ir.program import RasterOrder
from tilewright.ladders.hopper.claims import BY_TMA, NO_STORE_CONFLICTS, brought, tensor_cores
from tilewright.ladders.hopper.tiles import by_engine, fits, nest, staged, stored_by_engine, tiles_at
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Persist, Pipeline, Raster, Schedule, Specialize

BEST: Point = {"m": 128, "n": 256, "groups": 2, "stages": 4, "rows": 8, "parts": 4}
"""rows: tile rows of a raster group. parts: epilogue subtiles of a tile of C, in two stages in shared memory."""


def points() -> Iterator[Point]:
    shapes = ((128, 128), (128, 192), (128, 256), (256, 128))
    for (m, n), stages, rows, parts in product(shapes, (3, 4, 5, 6), (8, 16), (1, 2, 3, 4)):
        point = {**BEST, "m": m, "n": n, "stages": stages, "rows": rows, "parts": parts}
        if fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return Schedule(
        *nest(gemm, tiles_at(point)),
        *staged(gemm),
        *by_engine(),
        Pipeline("k_tile", point["stages"]),
        Specialize(),
        Raster(RasterOrder.GROUPED, group=point["rows"]),
        Persist(),
        *stored_by_engine(gemm, point["parts"], tiles=tiles_at(point)),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


TMA_STORE = Rung(
    ladder="hopper",
    number=6,
    slug="tma_store",
    idea="C by stmatrix and TMA store, in four epilogue subtiles and two stages, under the next tile's loads",
    schedule=schedule,
    claims=(tensor_cores(tiles_at(BEST)), brought(tiles_at(BEST)), BY_TMA, NO_STORE_CONFLICTS),
    builds_on="5",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
