"""Predictions beside measurements: docs/predictions.md, written and checked.

python benchmarks/predictions.py --write            # from the recorded inputs of the model
python benchmarks/predictions.py --write --inputs   # simulate and compile every rung anew (a minute)
python benchmarks/predictions.py --check            # the page, and the counts of one rung of each ladder
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tilewright.prediction.counting import work_of
from tilewright.report.validation import built_for, cases, collect, inputs_file, measured_rows, plain
from tilewright.report.validation_page import page
from tilewright.runtime.cubin_cache import CubinCache

PAGE = Path(__file__).parents[1] / "docs" / "predictions.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--inputs", action="store_true", help="collect the inputs of the model anew")
    asked = parser.parse_args()
    if asked.inputs:
        inputs = collect(measured_rows(), CubinCache())
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in inputs.items())
        inputs_file().write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    if asked.check:
        return _check()
    text = page(cases())
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def _check() -> int:
    """1 where the page is not what the model says of the recorded inputs, or a rung counts otherwise than recorded."""
    problems = []
    missing = {one.key for one in measured_rows()} - {case.measured.key for case in cases()}
    if missing:
        problems.append(f"no inputs are recorded for {', '.join(sorted(missing))}")
    if PAGE.read_text(encoding="utf-8") != page(cases()):
        problems.append(f"{PAGE.name} is not what the model says")
    last = {case.measured.ladder: case for case in cases()}
    for case in last.values():
        if plain(work_of(built_for(case.measured))) != plain(case.work):
            problems.append(f"{case.measured.key} counts otherwise than recorded")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("  Hint: python benchmarks/predictions.py --write --inputs", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
