"""6: the full Ampere kernel: warps of 64 x 64 in blocks of 128 x 256, copies between the products, a block order.

`point_for` says which parameters are best for a problem; a search may choose others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import F16, TF32
from tilewright.ir.buffer import Space
from tilewright.ir.program import RasterOrder, Route
from tilewright.ladders.ampere.claims import (
    COPIED_ASYNCHRONOUSLY,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    TENSOR_CORES,
    matrices_of,
)
from tilewright.ladders.ampere.tiles import CHUNK_BYTES, Tiles, in_pairs, inner_of, matrices, nest, staged, swizzled
from tilewright.ladders.rung import Choices, Claim, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Distribute, Pipeline, Prefetch, Raster, Relayout, Schedule, Snake, Stage, Step, Transfer, Vectorize
from tilewright.units import ceil_div

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
    "outer": "m_frag",
    "group": 8,
}
"""ahead: fragments are loaded a step ahead. spread: copies are started between the products. snake: fragments of B are
taken forwards and backwards in turn. group: rows of tiles that blocks walk down together. in_parts, where it is said:
C leaves through shared memory, a row of fragments at a time, in whole lines."""

IN_PARTS: Point = {**BEST, "in_parts": True}
"""Results of 2 bytes: 5 % faster. Measured: H200, bf16 and f16, 4096^3; those of 4 bytes do not gain."""

ODD_WIDE: Point = {**IN_PARTS, "spread": False}
"""Rows that begin at any 2 bytes are cut out of aligned vectors, which come through a ring of their own. Copies between
the products would take registers that are not there; where all rows run along k they pay all the same."""

ODD_TALL: Point = {**ODD_WIDE, "m": 256, "n": 128}

_ODD_TIMES = {
    ("m", "n"): (470, 477),
    ("k", "n"): (471, 558),
    ("m", "k"): (574, 520),
    ("k", "k"): (546, 580),
}
"""By what rows of A and of B run along: how long tiles of 128 x 256 and of 256 x 128 take for as many products. Rows
along k cost more: a piece of each in every step. Measured: H200, f16, 4096^3 with leading dimensions of 4097, in us
(benchmarks/results/odd_rows_h200.json)."""

SMS = 132
"""Of an H200; on a GPU with fewer the choice is a little off, and the result as right."""


def _at_odd_rows(gemm: Gemm) -> Point:
    """The tile that is through sooner: rounds of tiles, times how long one takes."""
    rows = gemm.operand("A").contiguous, gemm.operand("B").contiguous

    def time(point: Point, each: int) -> int:
        return ceil_div(ceil_div(gemm.m, int(point["m"])) * ceil_div(gemm.n, int(point["n"])), SMS) * each

    wide, tall = (time(point, each) for point, each in zip((ODD_WIDE, ODD_TALL), _ODD_TIMES[rows], strict=True))
    point = ODD_WIDE if wide <= tall else ODD_TALL
    all_along_k = rows == ("k", "k")
    # With four stages the last order would spill, and rows of A along m gain nothing from them. Tall tiles of rows that
    # are all along k have no registers for fragments a step ahead: 580 us at 4095 x 4097 x 4093, with them 633.
    return {
        **point,
        "stages": 4 if rows[0] == "k" else 3,
        "spread": all_along_k,
        "ahead": not (all_along_k and point is ODD_TALL),
    }


SHARED_BYTES = 227 * 1024
"""What a block may have at most on an H200; where there is less, a point that asks for more is refused."""


def point_for(gemm: Gemm) -> Point:
    """The best parameters for a format and the alignment of its rows."""
    if gemm.dtype.bytes == 2 and (gemm.lda % 2 or gemm.ldb % 2):
        return _at_odd_rows(gemm)
    if gemm.out.bytes == 2:
        return IN_PARTS
    # Rounding fills the places between the products.
    return {**BEST, "spread": gemm.multiplied is not TF32}


def shared_bytes(point: Point) -> int:
    """Shared memory of a block: the ring, and a part of C in f32."""
    ring = (point["m"] + point["n"]) * point["k_bytes"] * point["stages"]
    rows = point["m"] // point["warp_m"] * 16
    return int(ring + (rows * (point["n"] + 8) * 4 if point.get("in_parts") else 0))


def points() -> Iterator[Point]:
    shapes = (
        *((128, 128, 64, 32), (128, 128, 64, 64), (128, 256, 64, 64), (256, 128, 64, 64), (128, 192, 64, 48)),
        (256, 128, 64, 32),
    )
    for (m, n, warp_m, warp_n), k_bytes, stages, ahead, spread, in_parts in product(
        shapes, (64, 128), (2, 3, 4), (False, True), (False, True), (False, True)
    ):
        point = {
            **BEST,
            "m": m,
            "n": n,
            "k_bytes": k_bytes,
            "warp_m": warp_m,
            "warp_n": warp_n,
            "stages": stages,
            "ahead": ahead,
            "spread": spread,
            "in_parts": in_parts,
        }
        if shared_bytes(point) <= SHARED_BYTES:
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    tiles = Tiles(*(point[name] for name in ("m", "n", "k_bytes", "warp_m", "warp_n")))
    ahead: tuple[Step, ...] = (Prefetch("A_frag"), Prefetch("B_frag")) if point["ahead"] else ()
    return Schedule(
        *nest(gemm, tiles, paired=True, outer=point["outer"]),
        *staged(gemm),
        *matrices(gemm),
        *in_pairs(gemm),
        *swizzled(gemm, tiles),
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", point["stages"], spread="k_step" if point["spread"] else ""),
        *ahead,
        *((Snake(inner_of(point["outer"])),) if point["snake"] else ()),
        *((Raster(RasterOrder.GROUPED, group=point["group"]),) if point["group"] > 1 else ()),
        *(_stored_in_parts() if point.get("in_parts") else ()),
        *((Vectorize("C", CHUNK_BYTES // gemm.out.bytes),) if point.get("traded") else ()),
    )


def _stored_in_parts() -> tuple[Step, ...]:
    """C by rows of fragments, through a tile whose rows are kept apart by 8 words: neither side has bank conflicts."""
    return Stage("C", Space.SHARED, under="m_frag"), Distribute("C_tile", vector=4), Relayout("C_tile", pad=8)


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, point_for(gemm))


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
