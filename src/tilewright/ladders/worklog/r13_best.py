"""The top rung: what all the ideas together reach.

128 results a thread, so that shared memory keeps up with the FMA pipes; warps of 8 x 4 or 4 x 8 lanes in Z order, whose
fragment loads merge in pairs; the next tile fetched while this one is used, one barrier a step; multiply-adds in an
order that the register file's reuse cache likes; all 16 steps of a tile written out. `tilewright search worklog/best`
measures the points.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level, RasterOrder, Route
from tilewright.ladders.rung import Choices, Claim, Point, Rung
from tilewright.problem.gemm import Gemm, Order
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Pipeline,
    Prefetch,
    Raster,
    Relayout,
    Reorder,
    Schedule,
    Snake,
    Split,
    Stage,
    Step,
    Transfer,
    Unroll,
    Vectorize,
)

BEST: Point = {
    "bm": 128, "bn": 256, "bk": 16, "wm": 64, "wn": 64, "lanes_m": 4, "stages": 2, "b": "prefetch",
    "unroll": 16, "group": 1, "pad": 4, "order": "m3 m2 ~n2 m1 m0 ~n1 ~n0", "ahead": False,
}  # fmt: skip
"""order: how a thread walks over its results: the bits of their two numbers, slowest first; m0 and n0 tell neighbours
apart, ~ marks bits that turn at their ends."""


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
    """Orders of the results of a thread that are worth a measurement.

    Piece by piece; or one operand's values outermost, each for a whole row (or column) of multiply-adds that turns at
    its ends. Which bits are fast decides which registers follow each other, and so how their banks collide.

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


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
    lanes_m = point["lanes_m"]
    lanes_n = 32 // lanes_m
    # Z order: the bits of the two lane coordinates alternate, so that lanes t and t^1 or t^2 share a row or a column.
    if lanes_m == 4:
        zs = [Split("m_lane", 2, into=("m_z1", "m_z0")), Split("n_lane", 2, into=("n_z21", "n_z0"))]
        zs.append(Split("n_z21", 2, into=("n_z2", "n_z1")))
        lanes = ("n_z2", "m_z1", "n_z1", "m_z0", "n_z0")
    else:
        zs = [Split("n_lane", 2, into=("n_z1", "n_z0")), Split("m_lane", 2, into=("m_z21", "m_z0"))]
        zs.append(Split("m_z21", 2, into=("m_z2", "m_z1")))
        lanes = ("m_z2", "n_z1", "m_z1", "n_z0", "m_z0")
    copies: list[Step] = []
    for tile, way in (("A_tile", "prefetch"), ("B_tile", point["b"])):
        copies.append(Prefetch(tile) if way == "prefetch" else Transfer(tile, Route.ASYNC))
    rolled = point["unroll"] < point["bk"]
    walk = digits(point["order"])
    turning = tuple(digit.name for digit in walk if digit.turning)
    inner = "k_unrolled" if rolled else "k_in"
    raster = (Raster(RasterOrder.GROUPED, group=point["group"]),) if point["group"] > 1 else ()
    return Schedule(
        Split("m", point["bm"], into=("m_block", "m_in")),
        Split("n", point["bn"], into=("n_block", "n_in")),
        Split("m_in", point["wm"], into=("m_warp", "m_sub")),
        Split("n_in", point["wn"], into=("n_warp", "n_sub")),
        *_pieces("m", lanes_m, walk),
        *_pieces("n", lanes_n, walk),
        *zs,
        Split("k", point["bk"], into=("k_tile", "k_in")),
        *((Split("k_in", point["unroll"], into=("k_step", "k_unrolled")),) if rolled else ()),
        Reorder(
            *("m_block", "n_block", "n_warp", "m_warp"),
            *lanes,
            *(("k_tile", "k_step", "k_unrolled") if rolled else ("k_tile", "k_in")),
            *(digit.name for digit in walk),
        ),
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        *raster,
        # Neighbouring warps share columns of B, which is the wider tile: 0.4 % at 4096^3 on an H200.
        Fuse("n_warp", "m_warp", into="warp"),
        Bind("warp", Level.WARP),
        Fuse(*lanes, into="lane"),
        Bind("lane", Level.LANE),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", rows="k", pad=point["pad"]),
        # B needs a pad only where it is turned on its way in, as A is where its rows run along k.
        Relayout("B_tile", rows="k", pad=point["pad"] if gemm.b is Order.COL else 0),
        *copies,
        Pipeline("k_tile", point["stages"]),
        Stage("A", Space.REGISTER, under=inner),
        Stage("B", Space.REGISTER, under=inner),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        *((Prefetch("A_frag"), Prefetch("B_frag")) if point["ahead"] else ()),
        Unroll(inner),
        *((Snake(*turning),) if turning else ()),
        Epilogue(),
    )


@dataclass(frozen=True, slots=True)
class Digit:
    """Bits of the number of a thread's row or column that one loop counts, from `low` on; `turning` at its ends."""

    dim: str
    low: int
    bits: int
    turning: bool

    @property
    def name(self) -> str:
        return self.dim + "".join(str(self.low + bit) for bit in reversed(range(self.bits)))


def digits(order: str) -> tuple[Digit, ...]:
    """The loops of an order. Bits that follow each other in number and in order are one, except across the lanes.

    >>> [digit.name for digit in digits("m3 m2 ~n2 m1 m0 ~n1 ~n0")]
    ['m32', 'n2', 'm10', 'n10']
    """
    found: list[Digit] = []
    for word in order.split():
        dim, low, turning = word[-2], int(word[-1]), word.startswith("~")
        last = found[-1] if found else None
        follows = last is not None and (last.dim, last.low, last.turning) == (dim, low + 1, turning)
        if last is not None and follows and last.low != LANES:
            found[-1] = Digit(dim, low, last.bits + 1, turning)
        else:
            found.append(Digit(dim, low, 1, turning))
    return tuple(found)


LANES = 2
"""Bits below this one count a lane's neighbours. The lanes lie between them and the bits that count its pieces."""


def _pieces(dim: str, lanes: int, walk: tuple[Digit, ...]) -> tuple[Step, ...]:
    """What a lane has of a warp tile: pieces of 4 neighbours, a loop for each digit."""
    high, low = ([d for d in walk if d.dim == dim and (d.low >= LANES) is above] for above in (True, False))
    rest = f"{dim}_sub"
    steps: list[Step] = []
    for digit in sorted(high, key=lambda d: -d.low):
        steps.append(Split(rest, lanes << digit.low, into=(digit.name, f"{dim}_below_{digit.low}")))
        rest = f"{dim}_below_{digit.low}"
    if len(low) == 1:
        return (*steps, Split(rest, 4, into=(f"{dim}_lane", low[0].name)))
    return (*steps, Split(rest, 4, into=(f"{dim}_lane", f"{dim}10")), Split(f"{dim}10", 2, into=(f"{dim}1", f"{dim}0")))


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
        Claim("no bank conflicts on shared loads", lambda c, g: c.shared_loads.excess_wavefronts == 0),
        Claim("one barrier a step over k", lambda c, g: c.barriers_per_k_step == 1),
    ),
    builds_on="12",
    choices=Choices(points, schedule_at),
)
