"""The fastest plans of a sweep over the suite become the winners that the package ships.

    python benchmarks/choice_sweep.py --suite --dtype bf16,f16,f32 --order NN,NT,TN --plans 16 --out sweep.jsonl
    python benchmarks/winners_of_sweep.py sweep.jsonl

A sweep times the shipped plan of a problem beside the others; it stays where none is faster by one per cent. Where the
fastest were timed sustained too (--sustained), the one wins that is the best in both: users call large products again
and again, and then the power limit decides. Each line gets the names of the kernels that this checkout writes, so it
must be the one that was measured. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from math import inf, sqrt
from pathlib import Path
from typing import Any

from named_problems import problem_named

from tilewright.device.catalog import device
from tilewright.errors import TilewrightError
from tilewright.planning.on_paper import alignment_of_rows, order_of_plan, version_of
from tilewright.suite.stacks import Batched
from tilewright.winners.database import shipped_winners
from tilewright.winners.keys import Key, row_alignment, sources_version
from tilewright.winners.plan_config import PlanConfig
from tilewright.winners.winner import Winner

SHIPPED = Path(__file__).parents[1] / "src" / "tilewright" / "winners" / "shipped"

_CLEARLY = 1.01
"""Times as fast as the shipped plan, from which another takes its place."""


def both_times(row: Mapping[str, Any]) -> dict[PlanConfig, float]:
    """Geometric means of burst and sustained microseconds, of the plans of a row that were timed sustained."""
    held = {key: us for key, (us, *_) in row.get("sustained", {}).items() if key != "cuBLAS"}
    plans = [(PlanConfig.from_data(told), us) for told, _, us in row["plans"]]
    return {plan: sqrt(us * held[plan.key]) for plan, us in plans if plan.key in held}


def winners_of(path: Path, spec_name: str) -> Iterator[Winner]:
    """A winner for each problem of a sweep."""
    spec = device(spec_name)
    shipped = {one.key: one.config for one in reversed(shipped_winners())}
    origin: Mapping[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "origin" in row:
            origin = row["origin"]
        if not row.get("plans") or isinstance(problem_named(row["p"]), Batched):  # of which none is shipped
            continue
        gemm = problem_named(row["p"]).gemm
        key = Key.of(spec, gemm, row_alignment(gemm))
        times = {PlanConfig.from_data(told): us for told, _, us in row["plans"]}
        told = both_times(row) or times
        best = min(told, key=told.__getitem__)
        known = shipped.get(key)
        config = known if known is not None and told.get(known, inf) < _CLEARLY * told[best] else best
        us = times[config]
        try:
            order = order_of_plan(gemm, alignment_of_rows(gemm), config).name
            kernel = version_of(key, config)
        except TilewrightError as refusal:
            print(f"{row['p']}: {refusal.headline}")
            continue
        yield Winner(
            *(key, config, order, kernel, sources_version(), us, gemm.flops / us * 1e-6, row["cublas"] / us),
            *(len(times), origin["command"], origin["commit"], origin["date"]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--device", default="H200")
    asked = parser.parse_args()
    found = list(winners_of(asked.sweep, asked.device))
    file = SHIPPED / f"{asked.device.lower()}.jsonl"
    new = {one.key for one in found}
    kept = [] if not file.is_file() else [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    lines = [line for line in kept if Winner.from_json(line).key not in new] + [one.to_json() for one in found]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(found)} winners of {asked.sweep}, {len(lines)} lines in {file.name}")


if __name__ == "__main__":
    main()
