"""Predictions beside measurements: docs/predictions.md, written and checked.

python benchmarks/predictions.py --write            # from the recorded inputs of the model
python benchmarks/predictions.py --write --inputs   # simulate and compile every rung anew (a minute)
python benchmarks/predictions.py --check            # the page, and the counts of one rung of each ladder
python benchmarks/predictions.py --searches         # every recorded point of a search, none of which was fitted
python benchmarks/predictions.py --sizes judging    # rungs at sizes that the model had not seen: the half that judges
python benchmarks/predictions.py --sizes halves     # four sizes: terms of record 0071 are chosen on two
python benchmarks/predictions.py --sizes fresh      # at sizes that were timed when all of its terms were there

What a step waits for is read from machine code, and another compiler moves loads to other places: the records of sizes
of an H200 have what was read from the code that was timed. With NVRTC 13.5 instead of 13.0 errors are 0.4 % larger.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from validation import (
    Case,
    Measured,
    accuracy,
    built_for,
    case_of,
    cases,
    collect,
    measured_rows,
    plain,
    spearman,
    sustained_cases,
    unseen_inputs,
    unseen_rows,
    write_inputs,
)
from validation_page import page

from tilewright.bench.records import recorded_folder
from tilewright.device.catalog import H200
from tilewright.ladders import find_rung
from tilewright.model.occupancy import occupancy
from tilewright.model.time import predict_time
from tilewright.prediction.counting import work_of
from tilewright.prediction.predict import dram_bytes
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.toolchain import build

SEARCHES = {"worklog/9": "search_worklog_9.jsonl", "worklog/best": "search_worklog_best.jsonl"}
SIZES = {"halves": "rung_sizes_h200.json", "fresh": "rung_sizes_fresh_h200.json"}
PAGE = Path(__file__).parents[1] / "docs" / "predictions.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--inputs", action="store_true", help="collect the inputs of the model anew")
    parser.add_argument("--searches", action="store_true")
    parser.add_argument(
        "--sizes",
        choices=("chosen", "judging", *SIZES),
        help="which half of rung_sizes_h100.json; or all of another record of sizes",
    )
    asked = parser.parse_args()
    if asked.searches:
        for name, file in SEARCHES.items():
            print(_searched(name, file))
        return 0
    if asked.sizes:
        record = SIZES.get(asked.sizes, "rung_sizes_h100.json")
        rows = [
            one for one in unseen_rows(record) if asked.sizes in SIZES or one.held_out == (asked.sizes == "judging")
        ]
        print(_unseen(rows, unseen_inputs(record)))
        return 0
    if asked.inputs:
        write_inputs(collect(measured_rows(), CubinCache()))
    if asked.check:
        return _check()
    text = page(cases(), sustained_cases())
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def _unseen(rows: Sequence[Measured], recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """How rungs are predicted at sizes that were timed to judge the model, by ladder and by size. recorded: inputs of
    the machine code that was timed; of other figures the kernel is compiled here."""
    inputs = collect(rows, CubinCache())
    found = [case_of(one, {**inputs[one.key], **recorded.get(one.key, {})}) for one in rows]
    groups: dict[str, list[Case]] = {"in all": found}
    for case in found:
        one = case.measured
        for name in (one.ladder, f"{one.m}x{one.n}x{one.k}"):
            groups.setdefault(name, []).append(case)
    lines = []
    for name, some in groups.items():
        of = accuracy(some)
        lines.append(
            f"{name}: {of.rows} rows, mean error {of.mean_error:.1%}, bias {of.bias:+.1%}, "
            f"{of.within_20:.0%} within 20 %"
        )
    return "\n".join(lines)


def _searched(name: str, file: str) -> str:
    """How the points of a search on the H200 are predicted, with the registers that were recorded."""
    rung = find_rung(name)
    assert rung.choices is not None
    gemm = rung.gemm(4096, 4096, 4096)
    found: list[tuple[float, float]] = []
    for line in (recorded_folder() / file).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["failure"]:
            continue
        built = build(gemm, rung.choices.schedule_at(gemm, record["point"]))
        static_bytes = built.kernel.shared_bytes - built.source.dynamic_shared_bytes
        blocks = occupancy(
            H200,
            threads_per_block=built.source.threads_per_block,
            registers_per_thread=record["registers"],
            static_shared_bytes=static_bytes,
            dynamic_shared_bytes=built.source.dynamic_shared_bytes,
        ).blocks_per_sm
        moved = dram_bytes(built, H200, blocks)
        found.append(
            (record["tflops"], predict_time(work_of(built), H200, blocks_per_sm=blocks, dram_bytes=moved).tflops)
        )
    errors = [abs(predicted / measured - 1) for measured, predicted in found]
    ten = sorted(found, key=lambda pair: -pair[1])[:10]
    return (
        f"{name}: {len(found)} points, mean error {sum(errors) / len(errors):.1%}, "
        f"{sum(error <= 0.2 for error in errors) / len(errors):.0%} within 20 %, "
        f"Spearman {spearman([m for m, _ in found], [p for _, p in found]):.2f}, best {max(found)[0]:.1f}, "
        f"of the ten predicted best {max(ten)[0]:.1f} TFLOP/s"
    )


def _check() -> int:
    """1 where the page is not what the model says of the recorded inputs, or a rung counts otherwise than recorded."""
    problems = []
    missing = {one.key for one in measured_rows()} - {case.measured.key for case in cases()}
    if missing:
        problems.append(f"no inputs are recorded for {', '.join(sorted(missing))}")
    if PAGE.read_text(encoding="utf-8") != page(cases(), sustained_cases()):
        problems.append(f"{PAGE.name} is not what the model says")
    last = {case.measured.ladder: case for case in cases()}
    for case in last.values():
        waits = {"load_groups": case.work.load_groups, "read": case.work.read}
        counted = replace(work_of(built_for(case.measured)), **waits)
        if plain(counted) != plain(case.work):
            problems.append(f"{case.measured.key} counts otherwise than recorded")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("  Hint: python benchmarks/predictions.py --write --inputs", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
