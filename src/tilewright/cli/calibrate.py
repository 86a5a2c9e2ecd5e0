"""`tilewright calibrate`: simulated counts against the hardware's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.bench import calibration
from tilewright.bench.calibration_records import EXACT, Calibration, read
from tilewright.bench.calibration_records import write as write_record
from tilewright.bench.differences import by_rung, explanation, is_unexplained
from tilewright.cli import output
from tilewright.ladders import LADDERS, find_rung
from tilewright.ladders.rung import Rung

EXAMPLES = (
    "tilewright calibrate worklog --record benchmarks/results/calibration_h200.json",
    "tilewright calibrate worklog/6 ampere/3 --size 256",
)


def calibrate(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="LADDER|RUNG", help="Default: every rung of every ladder.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="M, N and K.")] = 512,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write what was counted; go on where a file stops."),
    ] = None,
) -> int:
    """Hold simulated counts against hardware counters.

    Needs an NVIDIA GPU and Nsight Compute (ncu). Sectors, requests and wavefronts must be equal; other counts may
    differ for reasons that are known. Fails where a difference has none.
    """

    def keep(so_far: Calibration) -> None:
        if record is not None:
            write_record(record, so_far)

    earlier = read(record) if record is not None and record.exists() else None
    with output.progress("counting") as step:
        found = calibration.calibrate(_rungs(names or list(LADDERS)), size, step, keep, earlier)
    return told(found)


def _rungs(names: list[str]) -> list[Rung]:
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
