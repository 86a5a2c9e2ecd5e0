"""The records of against_cublas.py as a table in a Markdown page, between markers, never by hand.

python benchmarks/shapes_table.py --write docs/hopper.md
python benchmarks/shapes_table.py --check docs/hopper.md
python benchmarks/shapes_table.py --write docs/tensor_cores.md --records benchmarks/results/ampere_h200.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pages.markdown import kept_up_to_date, table, with_part

from tilewright.errors import TilewrightError

RECORDS = Path(__file__).parent / "results" / "hopper_h200.jsonl"
COMMANDS = "Each row's command, commit and time are in its record."
MARKER = "shapes"


Key = tuple[str, str, str, str]


def latest(path: Path) -> dict[Key, dict[str, Any]]:
    """The newest figures of each (dtype, orders, shape, candidate), in bursts and sustained."""
    found: dict[Key, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        shape = " x ".join(map(str, record["shape"]))
        if record.get("gap"):
            shape += f", rows {record['gap']} longer"
        key = (record["dtype"], record.get("orders", "NN"), shape, record["candidate"])
        older, newer = sorted((found.get(key, record), record), key=lambda one: str(one["date"]))
        found[key] = {**older, **newer}
    return found


def section(records: dict[Key, dict[str, Any]]) -> str:
    """A row for each dtype, shape and rung, cuBLAS's figure beside it."""
    columns = ("dtype", "M x N x K", "rung", "TFLOP/s, burst:", "of cuBLAS:")
    columns += ("TFLOP/s, sustained:", "of cuBLAS:", "clock, power")
    lines = []
    for (dtype, orders, shape, candidate), record in records.items():
        if candidate == "cuBLAS":
            continue
        burst, sustained = record["burst"], record.get("sustained")
        cells = [
            dtype if orders == "NN" else f"{dtype}, {orders}",
            shape,
            candidate,
            *_figures(burst),
        ]
        cells += _figures(sustained) if sustained else ["", ""]
        state = f"{sustained['clock_mhz']:.0f} MHz, {sustained['power_w']:.0f} W" if sustained else ""
        lines.append([*cells, state])
    machines = sorted({f"{record['device']}, {record['peer']}" for record in records.values()})
    days = sorted({record["date"][:10] for record in records.values()})
    return "\n".join([*table(columns, lines), "", f"Recorded on {'; '.join(machines)}; {', '.join(days)}. {COMMANDS}"])


def _figures(found: dict[str, float]) -> list[str]:
    return [f"{found['tflops']:.0f}", f"{found['share_of_cublas']:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", type=Path)
    how.add_argument("--check", type=Path)
    parser.add_argument("--records", type=Path, default=RECORDS)
    given = parser.parse_args()
    try:
        kept_up_to_date(
            given.write,
            given.check,
            lambda text: with_part(text, MARKER, section(latest(given.records)), what="the records of shapes"),
            "python benchmarks/shapes_table.py --write",
        )
    except TilewrightError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main()
