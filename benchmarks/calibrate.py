"""Simulated counts held against the hardware counters that Nsight Compute (ncu) reads; needs an NVIDIA GPU.

    python benchmarks/calibrate.py worklog --record benchmarks/results/calibration_h200.json
    python benchmarks/calibrate.py worklog/6 ampere/3 --size 256

Sectors, requests and wavefronts must be equal; other counts may differ for reasons that are known. The exit code is 1
where a difference has none. No estimate reads these counts: they say whether the simulator counts as a GPU does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from calibration.counting import calibrate, launch
from calibration.differences import by_rung, explanation, is_unexplained
from calibration.records import EXACT, Calibration, read, write

from tilewright.cli import output
from tilewright.errors import TilewrightError
from tilewright.ladders import LADDERS, find_rung
from tilewright.ladders.rung import Rung


def rungs_of(names: list[str]) -> list[Rung]:
    """The rungs of ladders and single ones, each once."""
    found = [rung for name in names for rung in (LADDERS.get(name) or (find_rung(name),))]
    return list({rung.name: rung for rung in found}.values())


def told(found: Calibration) -> int:
    """A line for each rung; the exit code."""
    console = output.out()
    output.paragraph(console, f"{found.device}, {found.size} x {found.size} x {found.size}", style="bold")
    bad = 0
    for name, rung in by_rung(found.rows).items():
        strange = [row for row in rung.values() if is_unexplained(row, rung)]
        exact = [row for row in rung.values() if row.count in EXACT]
        known = sum(explanation(row, rung) is not None for row in rung.values())
        bad += bool(strange)
        equal = f"{sum(row.is_equal for row in exact)} of {len(exact)} exact counts equal"
        output.paragraph(
            console, f"{name}: {equal}, {known} differences explained", style="red" if strange else "green"
        )
        for row in strange:
            output.paragraph(
                console, f"{row.count}: {row.simulated} simulated, {row.measured} counted", style="bold red", indent=4
            )
    for name, why in found.failed.items():
        output.paragraph(console, f"{name}: {why}", style="bold red", hanging=4)
    return 1 if bad or found.failed else 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="LADDER|RUNG", help="default: every rung of every ladder")
    parser.add_argument("--size", type=int, default=512, help="M, N and K")
    parser.add_argument("--record", type=Path, help="write what was counted; go on where a file stops")
    parser.add_argument("--launch", action="store_true", help="only launch the rungs, once each: what ncu watches")
    given = parser.parse_args(words)
    try:
        rungs = rungs_of(given.names or list(LADDERS))
        if given.launch:
            for rung in rungs:
                launch(rung, given.size)
            return 0
        earlier = read(given.record) if given.record is not None and given.record.exists() else None

        def keep(so_far: Calibration) -> None:
            if given.record is not None:
                write(given.record, so_far)

        with output.progress("counting") as step:
            return told(calibrate(rungs, given.size, step, keep, earlier))
    except TilewrightError as wrong:
        print(wrong, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
