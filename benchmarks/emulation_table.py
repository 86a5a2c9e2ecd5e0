"""The records of emulation.py as a section of docs/accuracy.md, between markers, never by hand.

python benchmarks/emulation_table.py --records emulation_h200.jsonl --write docs/accuracy.md
python benchmarks/emulation_table.py --records emulation_h200.jsonl --check docs/accuracy.md
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tilewright.cli.page_files import kept_up_to_date
from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.assembly import Request
from tilewright.planning.estimates import pieces_us
from tilewright.planning.packing import Alignment
from tilewright.problem.emulation import ALGORITHMS, Algorithm
from tilewright.problem.gemm import Gemm, Order
from tilewright.report.markdown import with_part

MARKER = "emulation"
PEER = "cublas f32"
ERRORS = ("normal", "uniform")

Row = dict[str, Any]


def section(records: Path) -> str:
    """Speed against error, a row for each precision, and the times of each problem."""
    origin, *rows = (json.loads(line) for line in records.read_text(encoding="utf-8").splitlines())
    times = [row for row in rows if "problem" in row]
    errors = [row for row in rows if "operands" in row]
    names = list(dict.fromkeys(row["precision"] for row in errors))
    lines = [
        "## Speed against error",
        "",
        *_summary(names, times, errors),
        "",
        *_problems(times, device(origin["device"])),
        "",
    ]
    where = f"Recorded on {origin['device']}, torch {origin['torch']}, {origin['date'][:10]}: `{origin['command']}`."
    return "\n".join([*lines, where])


def _summary(names: list[str], times: list[Row], errors: list[Row]) -> list[str]:
    largest = max({row["problem"] for row in times}, key=lambda text: _elements(text), default="")
    sums = {(row["operands"], row["precision"]): row for row in errors}
    k = errors[0]["k"] if errors else 0
    lines = [
        f"Errors at k = {k}: relative to float64 in the norm of Frobenius, and the largest share of the bound over "
        f"{len({row['operands'] for row in errors})} kinds of operands. Speed at {largest}, NT, splitting included.",
        "",
        f"| precision | TFLOP/s | {' | '.join(f'error, {kind}' for kind in ERRORS)} | largest share of the bound |",
        f"|---|---:|{'---:|' * len(ERRORS)}---:|",
    ]
    for name in names:
        found = [row for row in times if (row["problem"], row["orders"], row["precision"]) == (largest, "NT", name)]
        shares = [row["share_of_bound"] for row in errors if row["precision"] == name and "share_of_bound" in row]
        cells = [name, f"{found[0]['tflops']:.0f}" if found else ""]
        cells += [f"{sums[kind, name]['relative']:.1e}" if (kind, name) in sums else "" for kind in ERRORS]
        lines.append(f"| {' | '.join([*cells, f'{max(shares):.2f}' if shares else ''])} |")
    return lines


def _problems(times: list[Row], spec: DeviceSpec) -> list[str]:
    estimates = {
        (row["problem"], row["orders"], row["precision"]): _estimated_tflops(
            row["problem"], row["orders"], ALGORITHMS[row["precision"]], spec
        )
        for row in times
        if row["precision"] in ALGORITHMS
    }
    measured = {(row["problem"], row["orders"], row["precision"]): row["tflops"] for row in times}
    ratios = [found / measured[of] for of, found in estimates.items()]
    columns = ("M x N x K", "orders", "precision", "TFLOP/s, burst", "estimated", "of cuBLAS f32")
    columns += ("TFLOP/s, sustained", "of cuBLAS f32")
    lines = [
        "Estimated: for a burst, by the model, of the kernels that this version takes (`tilewright plan`): "
        f"{statistics.geometric_mean(ratios):.2f} of what was measured (geometric mean; {min(ratios):.2f} to "
        f"{max(ratios):.2f}).",
        "",
        f"| {' | '.join(columns)} |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in times:
        if row["precision"] == PEER:
            continue
        found = estimates.get((row["problem"], row["orders"], row["precision"]))
        estimated = "" if found is None else f"{found:.0f}"
        burst = [f"{row['tflops']:.0f}", estimated, f"{row['of_cublas']:.2f}"]
        held = row.get("sustained")
        sustained = [f"{held['tflops']:.0f}", f"{held['of_cublas']:.2f}"] if held else ["", ""]
        shape = row["problem"].replace("x", " x ")
        lines.append(f"| {' | '.join([shape, row['orders'], row['precision'], *burst, *sustained])} |")
    return lines


def _estimated_tflops(problem: str, orders: str, how: Algorithm, spec: DeviceSpec) -> float:
    """Of the product asked for, by pieces, splitting included."""
    m, n, k = (int(part) for part in problem.split("x"))
    a, b = (Order.ROW if letter == "N" else Order.COL for letter in orders)
    gemm = Gemm(m, n, k, a=a, b=b)
    return gemm.flops / pieces_us(Request(gemm, Alignment(16, 16, 16), algorithm=how), spec) / 1e6


def _elements(problem: str) -> int:
    m, n, k = (int(part) for part in problem.split("x"))
    return m * n * k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", type=Path)
    how.add_argument("--check", type=Path)
    parser.add_argument("--records", type=Path, required=True)
    given = parser.parse_args()
    try:
        kept_up_to_date(
            given.write,
            given.check,
            lambda text: with_part(text, MARKER, section(given.records), what="the records of products by pieces"),
            "python benchmarks/emulation_table.py",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main()
