"""9: the best of all: shared tiles or turns, whichever wastes less at this size, and no gap between two kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.ir.program import RasterOrder
from tilewright.ladders.hopper.claims import BY_ENGINE, NO_STORE_CONFLICTS
from tilewright.ladders.hopper.tiles import by_engine, fits, nest, staged, stored_by_engine, tiles_at
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Overlap, Persist, Pipeline, Raster, Schedule, Specialize
from tilewright.units import ceil_div

SHARED: Point = {"m": 128, "n": 256, "groups": 2, "stages": 4, "rows": 16, "parts": 4, "turns": 1}
TURNS: Point = {"m": 128, "n": 192, "groups": 1, "stages": 4, "rows": 16, "parts": 3, "turns": 2}

SMS = 132
"""Of an H200; on a GPU with fewer the choice is a little off, and the result as right."""

_BETWEEN_TILES = {1: 2260, 2: 1060}
"""Clocks in which the tensor cores wait between two tiles of C, by turns. Measured: H200, bf16, k from 512 to 16384."""

_PRODUCTS = {1: 1.0, 2: 1.01}
"""How much longer products take that read narrower tiles from shared memory. Measured: H200, bf16, 16384^3."""


def clocks(gemm: Gemm, point: Point) -> float:
    """About how long an SM is busy: its rounds of tiles, each its products and the wait between tiles.

    An instruction m64nNk16 takes N / 2 clocks, so a step of 64 in k of 128 x N takes 4 N.
    """
    m, n = int(point["m"]), int(point["n"])
    rounds = ceil_div(ceil_div(gemm.m, m) * ceil_div(gemm.n, n), SMS)
    products = ceil_div(gemm.k, 64) * 4 * n * m // 128 * _PRODUCTS[point["turns"]]
    return rounds * (products + _BETWEEN_TILES[point["turns"]])


def point_for(gemm: Gemm) -> Point:
    """The better of the two ways to share out work."""
    return min((SHARED, TURNS), key=lambda point: clocks(gemm, point))


def points() -> Iterator[Point]:
    for start, stages, rows in product((SHARED, TURNS), (3, 4), (4, 8, 12, 16)):
        point = {**start, "stages": stages, "rows": rows}
        if fits(point):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return Schedule(
        *nest(gemm, tiles_at(point)),
        *staged(gemm),
        *by_engine(),
        Pipeline("k_tile", point["stages"]),
        Specialize(registers=(24, 240), turns=point["turns"]),
        Raster(RasterOrder.GROUPED, group=point["rows"]),
        Persist(),
        Overlap(),
        *stored_by_engine(gemm, point["parts"]),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, point_for(gemm))


BEST = Rung(
    ladder="hopper",
    number=9,
    slug="best",
    label="best",
    idea="shared tiles or turns, whichever keeps the tensor cores busier, and each kernel starts under the last",
    schedule=schedule,
    claims=(BY_ENGINE, NO_STORE_CONFLICTS),
    builds_on="8",
    problem={"dtype": BF16, "out": BF16},
    choices=Choices(points, schedule_at),
)
