"""Packs sweeps of plans, so that the next fit of the estimates learns from them, too.

    python benchmarks/sweeps.py sweep.jsonl ... --out benchmarks/sweeps/h200.jsonl.xz

The first line of a packed file tells where and how each sweep was measured, and every plan once. Each other line is a
problem: its name, microseconds of cuBLAS and of the choice, numbers of plans, microseconds of each. Sweeps are made by
`benchmarks/choice_sweep.py`; `benchmarks/fit_choice.py` reads both kinds of file.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

PACKED = ".xz"


def rows_of_sweep(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a sweep, its origins first, as `choice_sweep.py` writes them; of a packed one without estimates."""
    if path.suffix != PACKED:
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return
    first, *others = lzma.decompress(path.read_bytes()).decode().splitlines()
    told = json.loads(first)
    yield from ({"origin": one} for one in told["origins"])
    for name, peer_us, choice_us, numbers, us in map(json.loads, others):
        plans = [[told["plans"][number], None, one] for number, one in zip(numbers, us, strict=True)]
        yield {"p": name, "cublas": peer_us, "choice": choice_us, "plans": plans}


def packed(sweeps: Sequence[Path]) -> bytes:
    """Sweeps of one device in one file. Raises TilewrightError where they are of several."""
    rows = [row for path in sweeps for row in rows_of_sweep(path)]
    origins = [row["origin"] for row in rows if "origin" in row]
    devices = {one["device"] for one in origins}
    if len(devices) > 1:
        raise TilewrightError(
            f"These sweeps are of {len(devices)} devices: {', '.join(sorted(devices))}.", hint="pack each on its own."
        )
    measured = [row for row in rows if row.get("plans")]
    plans = sorted({json.dumps(plan, sort_keys=True) for row in measured for plan, *_ in row["plans"]})
    number = {plan: at for at, plan in enumerate(plans)}
    lines = [{"origins": origins, "plans": [json.loads(plan) for plan in plans]}, *_told(measured, number)]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def _told(measured: Sequence[dict[str, Any]], number: dict[str, int]) -> Iterator[list[Any]]:
    for row in measured:
        times = sorted((number[json.dumps(plan, sort_keys=True)], us) for plan, _, us in row["plans"])
        yield [row["p"], row["cublas"], row.get("choice"), [at for at, _ in times], [us for _, us in times]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    missing = [str(path) for path in asked.sweeps if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    asked.out.write_bytes(packed(asked.sweeps))
    print(f"{asked.out}: {asked.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
