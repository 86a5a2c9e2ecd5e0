"""Large products by the library beside torch.mm: in bursts, and sustained, where power decides.

    python benchmarks/sustained.py --out benchmarks/results/sustained_h200.jsonl
    python benchmarks/sustained.py --write docs/sustained.md

`tilewright.matmul` and `torch.mm` have the same operands, rotated over more than the L2 holds, or the same ones again
and again (--still). The first results are compared. Sustained: stretches of a quarter of a second of both, interleaved,
on a card that has multiplied for a second; an error is that of the mean of the ratios of pairs of stretches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

from pages.markdown import kept_up_to_date, table, with_part
from recording import Budget, Row, origin_of, recorded, runs_in, where
from stretches import WARM_S, stretches_of

import tilewright
from tilewright import extras
from tilewright.errors import TilewrightError
from tilewright.frontend.compute import words_of
from tilewright.runtime.driver import open_gpu
from tilewright.suite.gpu import TorchTimer
from tilewright.suite.peers import over
from tilewright.suite.timing import interleaved

SHAPES = (
    *("2048x2048x2048", "4096x4096x4096", "8192x8192x8192"),
    *("4096x14336x4096", "5120x5120x13824", "8192x8192x512"),
)
RECORDS = Path(__file__).parent / "results" / "sustained_h200.jsonl"
ROTATED_BYTES = 240_000_000
MOST_COPIES = 12
MOST_DISTANCE = 1e-2
"""Of results in bf16 and f16, as norms: rounding the result alone is 2e-3 in bf16."""
MARKER, OURS, PEER = "sustained", "ours", "cuBLAS"
_TORCH = {"bf16": "bfloat16", "f16": "float16"}


def rows(torch: Any, shapes: list[str], dtype: str, *, rounds: int, still: bool, seconds: float) -> Iterator[Row]:
    """A row for each size, both operands contiguous along k."""
    timer, gpu, budget = TorchTimer(torch), open_gpu(torch.cuda.current_device()), Budget(seconds)
    generator = torch.Generator(device="cuda").manual_seed(0)
    warm_s = WARM_S
    for shape in filter(budget.allows, shapes):
        m, n, k = (int(part) for part in shape.split("x"))

        def drawn(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, generator=generator, device="cuda", dtype=getattr(torch, _TORCH[dtype]))

        copies = 1 if still else max(1, min(MOST_COPIES, -(-ROTATED_BYTES // (2 * (m + n) * k))))
        pairs = [(drawn(m, k), drawn(n, k).T) for _ in range(copies)]
        ours, theirs = tilewright.matmul(*pairs[0]).double(), torch.mm(*pairs[0]).double()
        apart = float((ours - theirs).norm() / theirs.norm())
        del ours, theirs
        calls = {OURS: over(tilewright.matmul, pairs), PEER: over(torch.mm, pairs)}
        times = interleaved(timer, calls, copies=copies)
        held = stretches_of(timer, calls, times, PEER, gpu.uuid, rounds=rounds, warm_s=warm_s)
        warm_s = WARM_S / 4
        ratios = [theirs / own for own, theirs in zip(held[OURS].each_us, held[PEER].each_us, strict=True)]
        yield {
            "problem": f"{shape} {dtype} NT",
            "apart": float(f"{apart:.2g}"),
            "us": round(times[OURS].median_us, 2),
            "share": round(times[OURS].share_of(times[PEER]), 3),
            "sustained": round(statistics.fmean(ratios), 3),
            "error": round(statistics.stdev(ratios) / sqrt(rounds), 3) if rounds > 1 else None,
            "watts": [held[name].power_w for name in (OURS, PEER)],
            "mhz": [held[name].clock_mhz for name in (OURS, PEER)],
            "ran": words_of(*pairs[0]),
        }


def section(records: Path) -> str:
    """A table for each run of a record."""
    return "\n\n".join(_table(origin, found) for origin, found in runs_in(records))


def _table(origin: Row, found: list[Row]) -> str:
    columns = ("problem", "us:", "TFLOP/s:", "of cuBLAS, burst:", "sustained:", "error:", "W:", "MHz:", "what ran")
    cells = []
    for row in found:
        m, n, k = (int(part) for part in row["problem"].split()[0].split("x"))
        rate = round(2 * m * n * k / row["us"] / 1e6)
        power, clock = (
            " / ".join("-" if one is None else f"{one:.0f}" for one in row[key]) for key in ("watts", "mhz")
        )
        cells.append(
            (
                row["problem"],
                row["us"],
                rate,
                row["share"],
                row["sustained"],
                row["error"],
                power,
                clock,
                f"`{row['ran']}`",
            )
        )
    return "\n".join([*table(columns, cells), "", where(origin)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="MxNxK")
    parser.add_argument("--dtype", choices=list(_TORCH), default="bf16")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of stretches of a size")
    parser.add_argument("--still", action="store_true", help="the same operands in each call")
    parser.add_argument("--seconds", type=float, default=120.0, help="no size is begun after this")
    parser.add_argument("--out", type=Path)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", type=Path, metavar="PAGE")
    how.add_argument("--check", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    try:
        if asked.out:
            torch: Any = extras.require("torch", "Timing torch.mm")
            measured = rows(
                torch, asked.shapes, asked.dtype, rounds=asked.rounds, still=asked.still, seconds=asked.seconds
            )
            gpu = open_gpu(torch.cuda.current_device())
            found = recorded(origin_of(torch, gpu.name), measured, asked.out)
            return int(max((row["apart"] for row in found), default=0.0) > MOST_DISTANCE)
        kept_up_to_date(
            asked.write,
            asked.check,
            lambda text: with_part(text, MARKER, section(RECORDS), what="the record of large products"),
            "python benchmarks/sustained.py --write",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
