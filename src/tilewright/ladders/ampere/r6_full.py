"""6: the full Ampere kernel: warps of 64 x 64 in blocks of 128 x 256, copies interleaved with the MMAs, a raster order.

Where each block has several tiles it is persistent, and its ring of copies runs on into the next tile. `point_for` says
which parameters are best for a problem; a search may choose others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import F16, TF32
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import MAX_SHARED_BYTES
from tilewright.ir.program import RasterOrder, Route
from tilewright.ladders.ampere.claims import (
    COPIED_ASYNCHRONOUSLY,
    NO_LOAD_CONFLICTS,
    ONE_BARRIER,
    TENSOR_CORES,
    matrices_of,
)
from tilewright.ladders.ampere.tiles import (
    CHUNK_BYTES,
    Tiles,
    by_lanes,
    in_pairs,
    inner_of,
    matrices,
    nest,
    paired_operand,
    staged,
    swizzled,
)
from tilewright.ladders.rung import Choices, Claim, Point, Rung
from tilewright.layout.fragment import QUAD_LANES
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Distribute,
    Persist,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Schedule,
    Snake,
    Stage,
    Step,
    Transfer,
    Vectorize,
)
from tilewright.units import ceil_div

COLUMNS = 8
"""Of C that one instruction covers. Lanes trade rows of four."""

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
"""ahead: fragments are loaded a step ahead. spread: copies are started between the products. snake: the inner fragments
are taken forwards and backwards in turn. group: rows of tiles that blocks walk down together.

Where it is said: outer: the fragments that are counted around the others. traded: lanes trade results, and store 16
bytes each. in_parts: C leaves through shared memory, a row of fragments at a time, in whole lines. in_place: outer
fragments take the registers of those whose products are done. behind: turns of the outer fragments before copies start.
row_threads: threads side by side along a row of a copy. stays: blocks stay, and the ring runs on into the next tile."""

DEEP: Point = {**BEST, "k_bytes": 128, "stages": 3, "outer": "n_frag", "group": 16, "traded": True}
"""Of 2-byte formats. The first products need all fragments of A and one of B, as they are loaded. Measured: H200, bf16
at 4096^3, NN: 264.5 us; with in_parts, 64 bytes of k and m_frag outside, 271.5."""

LINE_THREADS = 8
"""Threads that copy a line of 128 bytes."""

FLOWING: Point = {**DEEP, "in_place": True, "behind": 6, "row_threads": LINE_THREADS, "stays": True}
"""Fewer instructions between the products, spread evenly, and no pause between tiles. Measured: H200, 4096^3, NN: bf16
258.4 us beside 263.9 of `DEEP`, f16 265.5 beside 270.2 (benchmarks/results/ampere_loop_h200.json)."""

DEEP_TF32: Point = {**BEST, "k_bytes": 128, "stages": 3, "group": 16}
"""Of aligned operands of 4 bytes, with what `_at_tf32` adds. Measured: H200, 4096^3, beside 64 bytes of k and, rounded,
single loads: rounded 620 us of 658 in NN, 653 of 704 in TN, 613 of 656 in TT; truncated 578 of 653 in TN, 542 of 570 in
TT, as long in NN (benchmarks/results/ampere_loop_h200.json). Rows that are copied in pieces of 4 bytes: 824 us with 64
bytes of k, 899 with 128 (NN)."""

IN_PARTS: Point = {**BEST, "in_parts": True}
"""Results of 2 bytes whose rows lanes cannot store 16 bytes of: 5 % faster than each lane's own."""

UNALIGNED: Point = {**BEST, "spread": False, "group": 16}
"""Rows at any 2 bytes come through registers, beside which deeper tiles do not fit."""

SMS = 132
"""Of an H200; on a GPU with fewer the choice is a little off, and the result as right."""


def _tiles_of(gemm: Gemm, point: Point) -> int:
    """Tiles of C."""
    return ceil_div(gemm.m, int(point["m"])) * ceil_div(gemm.n, int(point["n"]))


def _flows(gemm: Gemm) -> bool:
    """Whether blocks have several tiles each, of several turns, and rows of A and B along m and n are whole in each.

    Else there is no pause between tiles to save, or more turns are copied early than a tile has, or each chunk of a
    row has a length of its own to be found.
    """
    sizes = {"m": gemm.m, "n": gemm.n}
    along = {gemm.operand(name).contiguous for name in ("A", "B")} & {"m", "n"}
    one_turn = int(FLOWING["k_bytes"]) // gemm.dtype.bytes
    whole = all(sizes[dim] % int(FLOWING[dim]) == 0 for dim in along)
    return _tiles_of(gemm, FLOWING) > SMS and gemm.k > one_turn and whole


def _store(gemm: Gemm) -> Point:
    """How results leave that lanes do not store one by one."""
    lanes_trade = gemm.out.bytes == 2 and gemm.c is Order.ROW and gemm.ldc * gemm.out.bytes % CHUNK_BYTES == 0
    return {"traded": True} if lanes_trade else {"in_parts": True}


def _at_tf32(gemm: Gemm) -> Point:
    """The best parameters where f32 is multiplied as tf32, of some 500 kernels that were timed over all four orders.

    A warp has eight fragments one way and four the other: truncated, the eight are best counted outside, rounded the
    four. What lanes load of one operand comes in place of what is done.
    """
    rounded = gemm.multiplied is TF32
    chunk = CHUNK_BYTES // gemm.dtype.bytes
    if gemm.lda % chunk or gemm.ldb % chunk:
        return {**BEST, "spread": not rounded}
    lanes_load = by_lanes(gemm)
    four = "n_frag" if paired_operand(gemm) == "B" else "m_frag"
    return {
        **DEEP_TF32,
        "outer": four if rounded else inner_of(four),
        "in_place": len(lanes_load) == 1,
        "spread": not rounded or bool(lanes_load),
    }


def point_for(gemm: Gemm) -> Point:
    """The best parameters for a format and the alignment of its rows."""
    if gemm.dtype.bytes == 2 and (gemm.lda % 2 or gemm.ldb % 2):
        return {**UNALIGNED, **_store(gemm)}
    if gemm.out.bytes == 2:
        if "traded" not in _store(gemm):
            return IN_PARTS
        return FLOWING if _flows(gemm) else DEEP
    return _at_tf32(gemm) if gemm.multiplies_tf32 else BEST


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
    ways: tuple[Point, ...] = ({}, {"in_parts": True}, {"traded": True, "outer": "n_frag", "group": 16})
    for (m, n, warp_m, warp_n), k_bytes, stages, ahead, spread, way in product(
        shapes, (64, 128), (2, 3, 4), (False, True), (False, True), ways
    ):
        tile = {"m": m, "n": n, "k_bytes": k_bytes, "warp_m": warp_m, "warp_n": warp_n, "stages": stages}
        point = {**BEST, **tile, "ahead": ahead, "spread": spread, **way}
        fours = warp_n % (QUAD_LANES * COLUMNS) == 0
        if shared_bytes(point) <= MAX_SHARED_BYTES and (fours or "traded" not in way):
            yield point


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    tiles = Tiles(*(point[name] for name in ("m", "n", "k_bytes", "warp_m", "warp_n")))
    outer = point.get("outer", "m_frag")
    return Schedule(
        *nest(gemm, tiles, paired=True, outer=outer),
        *staged(gemm, tiles, row_threads=point.get("row_threads", 0)),
        *matrices(gemm),
        *in_pairs(gemm),
        *swizzled(gemm, tiles),
        Transfer("A_tile", Route.ASYNC),
        Transfer("B_tile", Route.ASYNC),
        Pipeline("k_tile", point["stages"], spread="k_step" if point["spread"] else "", behind=point.get("behind", 0)),
        *(_ahead(outer, in_place=point.get("in_place", False)) if point["ahead"] else ()),
        *((Snake(inner_of(outer)),) if point["snake"] else ()),
        *((Raster(RasterOrder.GROUPED, group=point["group"]),) if point["group"] > 1 else ()),
        *(_stored_in_parts() if point.get("in_parts") else ()),
        *((Vectorize("C", CHUNK_BYTES // gemm.out.bytes),) if point.get("traded") else ()),
        *((Persist(),) if point.get("stays") else ()),
    )


def _ahead(outer: str, *, in_place: bool) -> tuple[Step, ...]:
    """Fragments loaded a step ahead; in_place: the outer ones each as soon as its products are done."""
    replaced = "A_frag" if outer == "m_frag" else "B_frag"
    return tuple(Prefetch(name, in_place=in_place and name == replaced) for name in ("A_frag", "B_frag"))


def _stored_in_parts() -> tuple[Step, ...]:
    """C by rows of fragments, through a tile whose rows are kept apart by 8 words: neither side has bank conflicts."""
    return Stage("C", Space.SHARED, under="m_frag"), Distribute("C_tile", vector=4), Relayout("C_tile", pad=8)


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, point_for(gemm))


FULL = Rung(
    ladder="ampere",
    number=6,
    slug="full",
    idea="warps of 64 x 64, copies interleaved with the MMAs, persistent blocks of 128 x 256",
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
