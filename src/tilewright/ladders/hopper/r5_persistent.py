"""5: persistent blocks. One on each SM computes several tiles, rasterised in groups of rows; the next is loaded while
one is stored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.ir.program import RasterOrder
from tilewright.ladders.hopper import r4_shared_b
from tilewright.ladders.hopper.claims import NO_BARRIER, brought, tensor_cores
from tilewright.ladders.hopper.points import point_fits, tile_at
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Persist, Raster, Schedule, Specialize

BEST: Point = {"m": 128, "n": 256, "consumers": 2, "stages": 4, "raster_rows": 8}
"""raster_rows: tile rows of a raster group."""


def points() -> Iterator[Point]:
    shapes = ((128, 128), (128, 192), (128, 256), (256, 128))
    for (m, n), stages, rows in product(shapes, (3, 4, 5, 6), (4, 8, 12, 16)):
        point = {**BEST, "m": m, "n": n, "stages": stages, "raster_rows": rows}
        if point_fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return r4_shared_b.schedule_at(gemm, point).insert(
        Raster(RasterOrder.GROUPED, group=point["raster_rows"]),
        Persist(),
        after=Specialize(),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


PERSISTENT = Rung(
    ladder="hopper",
    number=5,
    slug="persistent",
    idea="one persistent block on each SM; tiles are rasterised in groups of 8 rows",
    schedule=schedule,
    claims=(tensor_cores(tile_at(BEST)), brought(tile_at(BEST)), NO_BARRIER),
    builds_on="4",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
