"""The records of emulation.py and complex.py as a section of docs/accuracy.md, between markers, never by hand.

python benchmarks/emulation_table.py --records emulation_h200.jsonl --write docs/accuracy.md
python benchmarks/emulation_table.py --records emulation_h200.jsonl --check docs/accuracy.md
python benchmarks/emulation_table.py --records emulation_h200.jsonl new.jsonl complex.jsonl --merge emulation_h200.jsonl

A record holds one run or several, each behind a line with its device, command and date. A row stands in the place of an
earlier one of the same name on the same device. --merge writes what is left of several records as one. The page tells
of the first record's device, and of prepared weights on every device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from pages.markdown import kept_up_to_date, table, with_part
from recording import Row, runs_in, where

from tilewright.device.catalog import device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.assembly import Request
from tilewright.planning.estimates import pieces_us
from tilewright.planning.packing import Alignment
from tilewright.problem.emulation import ALGORITHMS, Algorithm
from tilewright.problem.gemm import Gemm, orders_of

MARKER = "emulation"
PEER = "cublas f32"
ERRORS = ("normal", "uniform")
PRECISIONS = (PEER, "tf32", *ALGORITHMS, "f32_emulated")
"""In the order of the tables."""

NAMES = ("problem", "orders", "weight", "rows", "operands", "precision", "example")
"""What a row is of; the rest was measured."""


def runs_of(records: Sequence[Path]) -> list[tuple[Row, list[Row]]]:
    """The runs of some records, each with its origin and those of its rows that no later run has."""
    runs = [run for path in records for run in runs_in(path)]
    newest = {(origin["device"], *_name(row)): row for origin, rows in runs for row in rows}
    kept = [(origin, [row for row in rows if newest[origin["device"], *_name(row)] is row]) for origin, rows in runs]
    return [(origin, rows) for origin, rows in kept if rows]


def _name(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in NAMES)


def merged(records: Sequence[Path]) -> str:
    """The text of one record in the place of some."""
    lines = (json.dumps(row, separators=(",", ":")) for origin, rows in runs_of(records) for row in (origin, *rows))
    return "".join(f"{line}\n" for line in lines)


def section(records: Sequence[Path]) -> str:
    """Speed against error, a row for each precision, and the times of each problem."""
    runs = runs_of(records)
    first = runs[0][0]["device"]
    rows = [row for origin, found in runs for row in found if origin["device"] == first]
    times = sorted((row for row in rows if "orders" in row), key=lambda row: _place(rows, row, "problem", "orders"))
    errors = [row for row in rows if "operands" in row]
    weights = [{**row, "device": origin["device"]} for origin, found in runs for row in found if "weight" in row]
    complex_numbers = [row for row in rows if "relative_error" in row]
    names = sorted({row["precision"] for row in errors}, key=lambda name: PRECISIONS.index(name))
    lines = ["## Speed against error", "", *_summary(names, times, errors), ""]
    lines += [*_problems(times, device(first)), ""]
    lines += [*_weights(weights), ""] if weights else []
    lines += [*_complex(complex_numbers), ""] if complex_numbers else []
    for row in (row for row in rows if "example" in row):
        lines += [f"### `examples/{row['example']}.py`", "", "```text", *row["lines"], "```", ""]
    return "\n".join([*lines, "\n\n".join(where(origin) for origin, _ in runs)])


def _place(rows: list[Row], row: Row, *names: str) -> tuple[int, int]:
    """Where a row of a table stands: problems in the order in which they were first recorded, then precisions."""
    of = [row.get(name) for name in names]
    first = next(number for number, one in enumerate(rows) if [one.get(name) for name in names] == of)
    return first, PRECISIONS.index(row["precision"])


def _weights(rows: list[Row]) -> list[str]:
    columns = ("GPU", "weight, k x n", "rows:", "precision", "ran", "us:", "GB/s of pieces:")
    columns += ("of reading:", "of a sum:", "of cuBLAS f32:")
    lines = []
    told = [
        "### Prepared weights",
        "",
        "Skinny products with `tw.prepare(weight, precision=...)`, burst, a weight in no cache. GB/s of pieces "
        "count the pieces of the weight, or the weight itself where f32 arithmetic ran; of reading is their share of "
        "the rate at which PyTorch sums 1 GiB; of a sum: the time in which PyTorch sums as many bytes, by ours.",
        "",
    ]
    order = list(dict.fromkeys(row["device"] for row in rows))
    for row in sorted(
        rows,
        key=lambda row: (order.index(row["device"]), row["weight"], row["rows"], PRECISIONS.index(row["precision"])),
    ):
        ran = row["ran"].partition("(")[0]
        cells = [device(row["device"]).name, row["weight"].replace("x", " x "), str(row["rows"]), row["precision"]]
        cells += [ran, f"{row['us']:.1f}"]
        cells += [f"{row['pieces_gb_per_s']:.0f}", f"{row['of_reading']:.2f}"]
        cells += [f"{row['of_summing']:.2f}" if "of_summing" in row else "", f"{row['of_cublas']:.2f}"]
        lines.append(cells)
    return [*told, *table(columns, lines)]


def _complex(rows: list[Row]) -> list[str]:
    lines = []
    told = [
        "### Products of complex64",
        "",
        "Beside cuBLAS's cgemm, burst, B's rewriting included; TFLOP/s count 8 m n k. Errors are relative to "
        "complex128 in the norm of Frobenius.",
        "",
    ]
    for row in rows:
        shape, error = row["problem"].replace("x", " x "), f"{row['relative_error']:.1e}"
        lines.append((shape, row["precision"], f"{row['tflops']:.1f}", f"{row['of_cublas']:.2f}", error))
    return [*told, *table(("M x N x K", "precision", "TFLOP/s:", "of cuBLAS:", "error:"), lines)]


def _summary(names: list[str], times: list[Row], errors: list[Row]) -> list[str]:
    largest = max({row["problem"] for row in times}, key=lambda text: _elements(text), default="")
    sums = {(row["operands"], row["precision"]): row for row in errors}
    k = errors[0]["k"] if errors else 0
    lines = []
    told = [
        f"Errors at k = {k}: relative to float64 in the norm of Frobenius, and the largest share of the bound over "
        f"{len({row['operands'] for row in errors})} kinds of operands. Speed at {largest}, NT, splitting included.",
        "",
    ]
    for name in names:
        found = [row for row in times if (row["problem"], row["orders"], row["precision"]) == (largest, "NT", name)]
        shares = [row["share_of_bound"] for row in errors if row["precision"] == name and "share_of_bound" in row]
        cells = [name, f"{found[0]['tflops']:.0f}" if found else ""]
        cells += [f"{sums[kind, name]['relative']:.1e}" if (kind, name) in sums else "" for kind in ERRORS]
        lines.append([*cells, f"{max(shares):.2f}" if shares else ""])
    columns = ("precision", "TFLOP/s:", *(f"error, {kind}:" for kind in ERRORS), "largest share of the bound:")
    return [*told, *table(columns, lines)]


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
    columns = ("M x N x K", "orders", "precision", "TFLOP/s, burst:", "estimated:", "of cuBLAS f32:")
    columns += ("TFLOP/s, sustained:", "of cuBLAS f32:")
    lines = []
    told = [
        "Estimated: for a burst, by the model, of the kernels that this version takes (`tilewright plan`): "
        f"{statistics.geometric_mean(ratios):.2f} of what was measured (geometric mean; {min(ratios):.2f} to "
        f"{max(ratios):.2f}).",
        "",
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
        lines.append([shape, row["orders"], row["precision"], *burst, *sustained])
    return [*told, *table(columns, lines)]


def _estimated_tflops(problem: str, orders: str, how: Algorithm, spec: DeviceSpec) -> float:
    """Of the product asked for, by pieces, splitting included."""
    m, n, k = (int(part) for part in problem.split("x"))
    a, b = orders_of(orders)
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
    how.add_argument("--merge", type=Path)
    parser.add_argument("--records", type=Path, nargs="+", required=True)
    given = parser.parse_args()
    if given.merge is not None:
        given.merge.write_text(merged(given.records), encoding="utf-8")
        return
    try:
        kept_up_to_date(
            given.write,
            given.check,
            lambda text: with_part(text, MARKER, section(given.records), what="the records of products by pieces"),
            "python benchmarks/emulation_table.py --write",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main()
