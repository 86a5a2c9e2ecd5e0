"""Points of the rungs of ladder `worklog` that are searched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from tilewright.ir.program import Level
from tilewright.kernels.simt import SERPENTINE, SimtConfig
from tilewright.ladders.rung import Point, fragments, on_grid, staged
from tilewright.problem.gemm import Gemm
from tilewright.schedule import Accumulate, Bind, Epilogue, Fuse, Reorder, Schedule, Split, Unroll

THREADS = 256
BEST_STRIDED: Point = {"bm": 128, "bn": 128, "bk": 8, "tm": 4, "tn": 4}


def strided() -> Iterator[dict[str, Any]]:
    """Every legal point: copies of 16 bytes come out even, and 16 x 16 threads tile the block's tile."""
    for bm, bn, bk, tm, tn in product((64, 128, 256), (64, 128, 256), (8, 16, 32, 64), (4, 8, 16), (4, 8, 16)):
        copies = THREADS * 4 % bk == 0 and THREADS * 4 % bn == 0
        threads = bn % (16 * tn) == 0 and bm % (16 * tm) == 0
        whole = bm * bk % (4 * THREADS) == 0 and bn * bk % (4 * THREADS) == 0
        # A tile of 256 x 256 would take all 256 registers of a thread for its sums alone.
        fits = bm * bn <= 128 * 256 and (bm + bn) * bk * 4 <= 48 * 1024
        if copies and threads and whole and fits:
            yield {"bm": bm, "bn": bn, "bk": bk, "tm": tm, "tn": tn}


def strided_at(gemm: Gemm, point: Point) -> Schedule:
    tm, tn = point["tm"], point["tn"]
    return Schedule(
        Split("m", point["bm"], into=("m_block", "m_in")),
        Split("n", point["bn"], into=("n_block", "n_in")),
        Split("m_in", 16 * tm, into=("m_iter", "m_lanes")),
        Split("n_in", 16 * tn, into=("n_iter", "n_lanes")),
        Split("m_lanes", tm, into=("m_thread", "m_reg")),
        Split("n_lanes", tn, into=("n_thread", "n_reg")),
        Split("k", point["bk"], into=("k_tile", "k_in")),
        Reorder("m_block", "n_block", "m_thread", "n_thread", "k_tile", "k_in", "m_iter", "n_iter", "m_reg", "n_reg"),
        *on_grid(),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Bind("m_iter", Level.VTHREAD),
        Bind("n_iter", Level.VTHREAD),
        Accumulate(over="k_tile"),
        *staged(vector=4, rows="k"),
        *fragments("k_in", vector=4),
        Unroll("k_in"),
        Epilogue(),
    )


BEST: Point = {
    "bm": 128, "bn": 256, "bk": 16, "wm": 64, "wn": 64, "lanes_m": 4, "stages": 2, "b": "prefetch",
    "unroll": 16, "group": 1, "pad": 4, "order": SERPENTINE, "ahead": False,
}  # fmt: skip
"""order: `SimtConfig.fma_order`."""


def of_best() -> Iterator[dict[str, Any]]:
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


def best_at(gemm: Gemm, point: Point) -> Schedule:
    return config_at(point).schedule(gemm)
