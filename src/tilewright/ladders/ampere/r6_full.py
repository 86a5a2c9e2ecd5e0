"""6: the full Ampere kernel: warps of 64 x 64 in blocks of 128 x 256, copies between the products, a block order.

Its parameters stand in `BEST`; a search may choose others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import F16
from tilewright.ir.program import RasterOrder, Route
from tilewright.ladders.ampere.claims import (
    COPIED_ASYNCHRONOUSLY,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    TENSOR_CORES,
    matrices_of,
)
from tilewright.ladders.ampere.tiles import Tiles, matrices, nest, staged, swizzled
from tilewright.ladders.rung import Choices, Claim, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Pipeline, Prefetch, Raster, Schedule, Snake, Step, Transfer

BEST: Point = {
    "m": 128,
    "n": 256,
    "k_bytes": 64,
    "warp_m": 64,
    "warp_n": 64,
    "stages": 4,
    "ahead": True,
    "spread": True,
    "snake": True,
    "group": 8,
}
"""ahead: fragments are loaded a step ahead. spread: copies are started between the products. snake: fragments of B are
taken forwards and backwards in turn. group: rows of tiles that blocks walk down together."""


def points() -> Iterator[Point]:
    shapes = ((128, 128, 64, 32), (128, 128, 64, 64), (128, 256, 64, 64), (256, 128, 64, 64), (128, 192, 64, 48))
    for (m, n, warp_m, warp_n), k_bytes, stages, ahead, spread in product(
        shapes, (64, 128), (2, 3, 4), (False, True), (False, True)
    ):
        if (m + n) * k_bytes * stages <= 227 * 1024:
            yield {
                **BEST,
                "m": m,
                "n": n,
                "k_bytes": k_bytes,
                "warp_m": warp_m,
                "warp_n": warp_n,
                "stages": stages,
                "ahead": ahead,
                "spread": spread,
            }


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    tiles = Tiles(*(point[name] for name in ("m", "n", "k_bytes", "warp_m", "warp_n")))
    ahead: tuple[Step, ...] = (Prefetch("A_frag"), Prefetch("B_frag")) if point["ahead"] else ()
    return Schedule(
        *nest(gemm, tiles),
        *staged(gemm),
        *matrices(gemm),
        *swizzled(gemm, tiles),
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", point["stages"], spread="k_step" if point["spread"] else ""),
        *ahead,
        *((Snake("n_frag"),) if point["snake"] else ()),
        *((Raster(RasterOrder.GROUPED, group=point["group"]),) if point["group"] > 1 else ()),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


FULL = Rung(
    ladder="ampere",
    number=6,
    slug="full",
    idea="blocks of 128 x 256, warps of 64 x 64, copies started between the products, blocks in groups of 8 rows",
    schedule=schedule,
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
