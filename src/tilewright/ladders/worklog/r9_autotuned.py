"""Rung 9: tile sizes searched, 256 threads.

Threads stand 16 x 16; each holds several tiles of TM x TN, strided over the block's tile (virtual threads). The points
are those that the original's rules allow; `tilewright search worklog/9` measures them, and what stands here as BEST is
the one found fastest on an H200 at 4096^3 (benchmarks/results/search_worklog_9.jsonl).
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

from tilewright.ir.buffer import Space
from tilewright.ir.program import Level
from tilewright.ladders.claims import TWO_BARRIERS
from tilewright.ladders.rung import Choices, Point, Rung
from tilewright.problem.gemm import Gemm
from tilewright.schedule import (
    Accumulate,
    Bind,
    Distribute,
    Epilogue,
    Fuse,
    Relayout,
    Reorder,
    Schedule,
    Split,
    Stage,
    Unroll,
    Vectorize,
)

THREADS = 256
BEST: Point = {"bm": 128, "bn": 128, "bk": 8, "tm": 4, "tn": 4}


def points() -> Iterator[dict[str, Any]]:
    """Every legal point: copies of 16 bytes come out even, and 16 x 16 threads tile the block's tile."""
    for bm, bn, bk, tm, tn in product((64, 128, 256), (64, 128, 256), (8, 16, 32, 64), (4, 8, 16), (4, 8, 16)):
        copies = THREADS * 4 % bk == 0 and THREADS * 4 % bn == 0
        threads = bn % (16 * tn) == 0 and bm % (16 * tm) == 0
        whole = bm * bk % (4 * THREADS) == 0 and bn * bk % (4 * THREADS) == 0
        # A tile of 256 x 256 would take all 256 registers of a thread for its sums alone.
        fits = bm * bn <= 128 * 256 and (bm + bn) * bk * 4 <= 48 * 1024
        if copies and threads and whole and fits:
            yield {"bm": bm, "bn": bn, "bk": bk, "tm": tm, "tn": tn}


def schedule_at(gemm: Gemm, point: Point) -> Schedule:
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
        Bind("m_block", Level.GRID_Y),
        Bind("n_block", Level.GRID_X),
        Fuse("m_thread", "n_thread", into="thread"),
        Bind("thread", Level.BLOCK_X),
        Bind("m_iter", Level.VTHREAD),
        Bind("n_iter", Level.VTHREAD),
        Accumulate(over="k_tile"),
        Stage("A", Space.SHARED, under="k_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("A_tile", vector=4),
        Distribute("B_tile", vector=4),
        Relayout("A_tile", rows="k"),
        Relayout("B_tile", rows="k"),
        Stage("A", Space.REGISTER, under="k_in"),
        Stage("B", Space.REGISTER, under="k_in"),
        Vectorize("A_frag", 4),
        Vectorize("B_frag", 4),
        Vectorize("C", 4),
        Unroll("k_in"),
        Epilogue(),
    )


def schedule(gemm: Gemm) -> Schedule:
    return schedule_at(gemm, BEST)


AUTOTUNED = Rung(
    ladder="worklog",
    number=9,
    slug="autotuned",
    idea="tile sizes are searched under the divisibility rules; several tiles a thread, strided",
    schedule=schedule,
    claims=(TWO_BARRIERS,),
    builds_on="6",
    original_tflops={"NVIDIA H200": 31.175},
    choices=Choices(points, schedule_at),
)
