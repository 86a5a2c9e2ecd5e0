"""9: the best of all: cooperative or ping-pong, whichever wastes less at this size, and dependent launch of short
kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.dtypes import BF16
from tilewright.ir.program import RasterOrder
from tilewright.ladders.hopper.claims import BY_TMA, NO_STORE_CONFLICTS
from tilewright.ladders.hopper.tiles import (
    by_engine,
    engine_stores,
    fits,
    goes_in_parts,
    nest,
    staged,
    stored,
    stored_by_engine,
    tiles_at,
)
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Cluster, DependentLaunch, Persist, Pipeline, Raster, Schedule, Specialize, Step
from tilewright.units import ceil_div

SHARED: Point = {"m": 128, "n": 256, "groups": 2, "stages": 4, "rows": 16, "parts": 4, "turns": 1}
TURNS: Point = {"m": 128, "n": 192, "groups": 1, "stages": 4, "rows": 8, "parts": 3, "turns": 2}

NARROW = ((64, 64, 1), (64, 128, 1), (64, 256, 1), (128, 128, 2), (128, 192, 2), (256, 128, 2))
"""Other tiles (m, n, groups), for sizes at which those two leave SMs idle."""

PAIRED = 64 * 128
"""Elements of C up to which an SM has registers for two blocks: the next kernel's then start beside this one's."""

FEW_ROWS = (8, 16, 32, 48)
"""Rows of tiles for a C of so few: the rows of the instruction run along n, and none is computed in vain."""

FEW_COLUMNS = (64, 128)
"""Columns of those tiles."""

MOST_STAGES = 8
"""Deeper rings were no faster (H200, 64 x 4096 x 14336 in 2 parts of k: 32.1 us with 8 stages, 32.9 with 14)."""

PAIRED_STAGES, PAIRED_ROWS = 6, 2
"""Of blocks that walk in pairs: see `paired`."""

_MOST_ROWS = 16
"""Of tiles that walk together."""

_STRIP_BYTES = 40 << 20
"""Of A, that rows of tiles which walk together read again and again: no more than the L2 holds beside B. Measured on
the H200 in bf16: 16384^3 in groups of 8 rows of tiles 12.85 ms, of 16 12.94; 4096 x 14336 x 4096 732 us and 719. In
turns, groups of 8 are better as soon as there are two: 8192^3 1567 us, of 16 1595; but 2048 x 151936 x 2048, which has
16 rows of tiles in all, 1571 us in two groups and 1557 in one."""

FEW_STAGES = 16
"""Of tiles of few rows, whose slots are small: as many bytes must be on their way."""

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


def _strip_bytes(gemm: Gemm, point: Point) -> int:
    """Of A, that the rows of tiles which walk together share."""
    return int(point["rows"]) * int(point["m"]) * gemm.k * gemm.dtype.bytes


_LONG = 200_000
"""Clocks from which on a kernel does not start under the one before. Blocks that start where others have just ended lie
on the SMs in any order, and neighbours no longer ask for the same lines at the same time: more requests reach the L2.
Measured on the H200 in bf16 at 4096 x 14336 x 4096, sustained: 0.990 of cuBLAS where it starts early, else 1.000; at
2048^3, 24 us in a burst, 1.000 where it starts early, else 0.973 (benchmarks/results/early_start_h200.jsonl)."""


def point_for(gemm: Gemm) -> Point:
    """The better of the two ways to share out work."""
    by_lanes = goes_in_parts(gemm) and not engine_stores(gemm)
    point = min((SHARED,) if by_lanes else (SHARED, TURNS), key=lambda one: clocks(gemm, one))
    if ceil_div(gemm.m, point["m"]) <= _MOST_ROWS:  # all of them: each column of tiles reads its part of B once
        point = {**point, "rows": _MOST_ROWS}
    elif _strip_bytes(gemm, point) > _STRIP_BYTES:
        point = {**point, "rows": _MOST_ROWS // 2}
    return point if clocks(gemm, point) < _LONG else {**point, "early": 0}


def walking(m: int, n: int, groups: int, *, parts: int, per_sm: int = 1, turns: int = 1, places: int = 2) -> Point:
    """A point whose blocks walk over the tiles of C, with the deepest ring of which an SM holds so many blocks. C goes
    out in so many parts through so many places in shared memory; parts=0 for from registers."""
    point = {"m": m, "n": n, "groups": groups, "stages": 0, "rows": 16, "parts": parts, "turns": turns}
    if places < min(parts, 2):
        point["places"] = places
    return {**point, "stages": deepest(point, per_sm)}


def standing(m: int, n: int, groups: int, *, parts: int = 0, per_sm: int = 1) -> Point:
    """A point whose blocks have one tile each. They can share out k or have a problem of a stack each, but only where C
    goes out from registers (parts=0)."""
    point = {"m": m, "n": n, "groups": groups, "stages": 0, "parts": parts, "turns": 1, "walks": 0}
    return {**point, "stages": deepest(point, per_sm)}


def turned(m: int, n: int, *, per_sm: int = 1) -> Point:
    """A point for a C of at most m rows, or not many more, whose blocks have one tile each."""
    point = {**standing(m, n, 1), "turned": 1}
    return {**point, "stages": deepest(point, per_sm)}


def paired(point: Point, along: str = "") -> Point:
    """The same in clusters of two blocks that share a tile, by default the larger of A's and B's: an SM asks for less
    of what it needs. That pays where rows begin inside sectors of the L2: a box of them asks for two lines a row.

    Blocks that walk have a ring of 6 slots, and neighbours lie along n: as fast as deeper rings, and a little sooner
    there. Measured on the H200 at 1000^3 in f16: 7.26 us; with 5 slots 7.35, with 8 7.73; in groups of 16 rows 7.39;
    9.6 without pairs.
    """
    along = along or ("m_block" if point["n"] >= point["m"] else "n_block")
    walk = {"stages": min(point["stages"], PAIRED_STAGES), "rows": PAIRED_ROWS} if walks(point) else {}
    return {**point, **walk, "along": along, "blocks": 2}


def walks(point: Point) -> bool:
    """Whether blocks stay, and go from tile to tile."""
    return bool(point.get("walks", 1))


def deepest(point: Point, per_sm: int = 1) -> int:
    """The most stages with which so many blocks fit on an SM; 0 if not even one does."""
    most = FEW_STAGES if "turned" in point else MOST_STAGES
    return next((s for s in range(most, 0, -1) if fits({**point, "stages": s}, per_sm)), 0)


def parts_of(m: int, n: int) -> int:
    """The parts in which C of a narrow tile goes out: as small as may be where the ring needs the room."""
    return n // 64 if m * n > PAIRED else 1


def points() -> Iterator[Point]:
    for start, stages, rows in product((SHARED, TURNS), (3, 4), (4, 8, 12, 16)):
        point = {**start, "stages": stages, "rows": rows}
        if fits(point):
            yield point
    for late in (SHARED, {**SHARED, "rows": 8}, TURNS, *(standing(*tile) for tile in NARROW)):
        yield {**late, "early": 0}
    for m, n, groups in NARROW:
        parts = parts_of(m, n)
        for per_sm in (1, 2) if m * n <= PAIRED else (1,):
            yield walking(m, n, groups, parts=parts, per_sm=per_sm)
            yield standing(m, n, groups, parts=parts, per_sm=per_sm)
            yield standing(m, n, groups, per_sm=per_sm)
            yield paired(walking(m, n, groups, parts=parts, per_sm=per_sm))
            yield paired(standing(m, n, groups, per_sm=per_sm))
    yield walking(256, 128, 2, parts=0)
    for rows in (4, 16):
        yield {**walking(256, 128, 2, parts=2, places=1), "rows": rows}
    yield walking(128, 128, 1, parts=2, turns=2)
    yield walking(128, 128, 1, parts=0, turns=2)
    for m, n, per_sm in product(FEW_ROWS, FEW_COLUMNS, (1, 2)):
        yield turned(m, n, per_sm=per_sm)


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    tiles = tiles_at(point)
    registers = (24, 232 if point["m"] * point["n"] <= PAIRED else 240)
    return Schedule(
        *nest(gemm, tiles),
        *staged(gemm, tiles),
        *by_engine(),
        Pipeline("k_tile", point["stages"]),
        Specialize(registers=registers, turns=point["turns"]),
        *_walk(point),
        *((DependentLaunch(),) if point.get("early", 1) else ()),
        *_out(gemm, point),
    )


def _walk(point: Point) -> tuple[Step, ...]:
    """The order of the tiles of C, whose blocks stay and which in pairs."""
    pairs = (Cluster(point["along"], point["blocks"]),) if "blocks" in point else ()
    if walks(point):
        return Raster(RasterOrder.GROUPED, group=point["rows"]), Persist(), *pairs
    return (Raster(RasterOrder.ROW), *pairs) if pairs else ()


def _out(gemm: Gemm, point: Point) -> tuple[Step, ...]:
    """How C leaves."""
    tiles = tiles_at(point)
    if not point["parts"]:
        return stored(gemm, tiles)
    return stored_by_engine(gemm, point["parts"], point.get("places", 2), tiles=tiles)


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, point_for(gemm))


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
    choices=Choices(points, schedule_at, shares_k=lambda point: not walks(point) and not point["parts"]),
)
