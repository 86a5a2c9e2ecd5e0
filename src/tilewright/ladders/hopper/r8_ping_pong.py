"""8: ping-pong. Each consumer warpgroup has tiles of C of its own; while one stores, the other multiplies."""

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

BEST: Point = {"m": 128, "n": 192, "groups": 1, "stages": 4, "rows": 16, "parts": 3, "turns": 2}
"""turns: ping-pong warpgroups, each with a tile and two epilogue stages of its own."""


def points() -> Iterator[Point]:
    shapes = ((128, 128, 2), (128, 192, 3), (64, 256, 2), (64, 256, 4))
    for (m, n, parts), stages, rows in product(shapes, (3, 4, 5), (4, 8, 16)):
        point = {**BEST, "m": m, "n": n, "stages": stages, "rows": rows, "parts": parts}
        if fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return Schedule(
        *nest(gemm, tiles_at(point)),
        *staged(gemm),
        *by_engine(),
        Pipeline("k_tile", point["stages"]),
        Specialize(turns=point["turns"]),
        Raster(RasterOrder.GROUPED, group=point["rows"]),
        Persist(),
        *stored_by_engine(gemm, point["parts"], tiles=tiles_at(point)),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


PING_PONG = Rung(
    ladder="hopper",
    number=8,
    slug="ping_pong",
    idea="two warpgroups in ping-pong: while one stores its tile, the tensor cores work for the other",
    schedule=schedule,
    claims=(tensor_cores(tiles_at(BEST)), brought(tiles_at(BEST)), BY_TMA, NO_STORE_CONFLICTS),
    builds_on="6",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
