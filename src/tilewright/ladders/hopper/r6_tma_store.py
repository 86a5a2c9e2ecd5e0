"""6: TMA stores C, too: stmatrix fills one epilogue subtile, a quarter of a tile, while the last one is stored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.ir.program import RasterOrder
from tilewright.kernels.wgmma_steps import loaded_by_tma, nest, staged, stored_through_shared
from tilewright.ladders.hopper.claims import BY_TMA, NO_STORE_CONFLICTS, brought, tensor_cores
from tilewright.ladders.hopper.points import point_fits, tile_at
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Persist, Pipeline, Raster, Schedule, Specialize

BEST: Point = {"m": 128, "n": 256, "consumers": 2, "stages": 4, "raster_rows": 8, "subtiles": 4}
"""raster_rows: tile rows of a raster group. subtiles: of a tile of C, in two stages in shared memory."""


def points() -> Iterator[Point]:
    shapes = ((128, 128), (128, 192), (128, 256), (256, 128))
    for (m, n), stages, rows, parts in product(shapes, (3, 4, 5, 6), (8, 16), (1, 2, 3, 4)):
        point = {**BEST, "m": m, "n": n, "stages": stages, "raster_rows": rows, "subtiles": parts}
        if point_fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return Schedule(
        *nest(gemm, tile_at(point)),
        *staged(gemm),
        *loaded_by_tma(gemm),
        Pipeline("k_tile", point["stages"]),
        Specialize(),
        Raster(RasterOrder.GROUPED, group=point["raster_rows"]),
        Persist(),
        *stored_through_shared(gemm, point["subtiles"], tile=tile_at(point)),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


TMA_STORE = Rung(
    ladder="hopper",
    number=6,
    slug="tma_store",
    idea="C by stmatrix and TMA store, in four epilogue subtiles and two stages, under the next tile's loads",
    schedule=schedule,
    claims=(tensor_cores(tile_at(BEST)), brought(tile_at(BEST)), BY_TMA, NO_STORE_CONFLICTS),
    builds_on="5",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
