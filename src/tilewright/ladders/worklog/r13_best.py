"""The top rung: all ideas together, as a preset of the family `kernels.simt`.

128 accumulators per thread, so that shared memory keeps up with the FMA pipes; warps of 8 x 4 or 4 x 8 lanes in Z
order, whose fragment loads merge in pairs; the next tile fetched while this one is used, one barrier per k tile; FMAs
in an order that the register file's reuse cache likes; k fully unrolled. `tilewright search worklog/best` measures the
points.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from tilewright.kernels.simt import SERPENTINE, SimtConfig
from tilewright.ladders.claims import NO_LOAD_CONFLICTS, ONE_BARRIER
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Schedule

BEST: Point = {
    "bm": 128, "bn": 256, "bk": 16, "wm": 64, "wn": 64, "lanes_m": 4, "stages": 2, "b": "prefetch",
    "unroll": 16, "group": 1, "pad": 4, "order": SERPENTINE, "ahead": False,
}  # fmt: skip
"""order: `SimtConfig.fma_order`."""


def points() -> Iterator[dict[str, Any]]:
    """Block tile, warp tile, lanes, depth of the ring, how B travels, how far k is unrolled, order of the FMAs."""
    tiles = ((128, 128, 64, 64), (128, 256, 64, 64), (256, 128, 64, 64), (128, 256, 32, 128), (128, 128, 128, 32))
    rings = ((2, "prefetch"), (2, "async"), (3, "async"))
    for (bm, bn, wm, wn), (bk, unroll), lanes_m, (stages, b) in product(
        tiles, ((8, 8), (16, 8), (16, 16), (32, 32)), (4, 8), rings
    ):
        rows, columns = wm // lanes_m, wn * lanes_m // 32
        for group, pad, order, ahead in product((1, 8), (0, 4), orders(rows, columns), (False, True)):
            point = {"bm": bm, "bn": bn, "bk": bk, "wm": wm, "wn": wn, "lanes_m": lanes_m, "stages": stages, "b": b}
            if not (ahead and unroll < bk):
                yield {**point, "unroll": unroll, "group": group, "pad": pad, "order": order, "ahead": ahead}


def orders(rows: int, columns: int) -> Iterator[str]:
    """FMA orders that are worth a measurement.

    Piece by piece; or one operand's values outermost, each for a whole serpentine row (or column) of FMAs. Which bits
    are fast decides which registers follow each other, and so how their banks collide.

    >>> list(orders(8, 8))[0]
    'm2 n2 m1 m0 n1 n0'
    """
    m, n = _bits("m", rows), _bits("n", columns)
    for slow, fast in ((m, n), (n, m)):
        for turn in ("", "~"):
            walk = (*slow[:-2], *(turn + bit for bit in fast[:-2]), *slow[-2:], *(turn + bit for bit in fast[-2:]))
            yield " ".join(walk)
        for outer, inner in product((slow, (slow[-2], *slow[:-2], slow[-1])), (fast, (*fast[:-2], fast[-1], fast[-2]))):
            yield " ".join((*outer, *("~" + bit for bit in inner)))


def _bits(dim: str, count: int) -> tuple[str, ...]:
    return tuple(f"{dim}{bit}" for bit in reversed(range(count.bit_length() - 1)))


def config_at(point: Point) -> SimtConfig:
    """The kernel of a point."""
    return SimtConfig(
        tile=(point["bm"], point["bn"], point["bk"]),
        warp_tile=(point["wm"], point["wn"]),
        lanes_m=point["lanes_m"],
        stages=point["stages"],
        b_transport="cp_async" if point["b"] == "async" else "registers",
        unroll=point["unroll"],
        raster_rows=point["group"],
        pad=point["pad"],
        fma_order=point["order"],
        double_buffered_fragments=point["ahead"],
    )


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    return config_at(point).schedule(gemm)


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


BEST_RUNG = Rung(
    ladder="worklog",
    number=13,
    label="best",
    slug="best",
    idea="128 accumulators per thread, Z-order lanes, two stages, k unrolled, serpentine FMA order; all autotuned",
    schedule=schedule,
    claims=(
        NO_LOAD_CONFLICTS,
        ONE_BARRIER,
    ),
    builds_on="12",
    choices=Choices(points, schedule_at),
)
