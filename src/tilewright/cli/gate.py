"""`tilewright gate`: your own schedules against a snapshot in your repository, with no GPU."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.output import AsJson
from tilewright.device.arch import arch as known_arch
from tilewright.errors import TilewrightError
from tilewright.report.gate import (
    SNAPSHOT_NAME,
    TIME_TOLERANCE_PERCENT,
    Change,
    Comparison,
    Facts,
    OwnSchedule,
    compare,
    facts_of,
    read,
    schedules_in,
    update,
)
from tilewright.report.gate.facts import DEFAULT_ARCHS
from tilewright.report.gate.words import causes, value_text
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.units import counted

EXAMPLES = (
    "tilewright gate kernels.py --update --arch sm_80 --arch sm_90a",
    "tilewright gate kernels.py more.py",
    "tilewright gate kernels.py --time-tolerance 5",
    "tilewright gate kernels.py --json | jq '.[] | select(.ok | not)'",
)


def gate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Python files that name schedules.")],
    snapshot: Annotated[Path, typer.Option(metavar="FILE", help="What to compare with.")] = Path(SNAPSHOT_NAME),
    rewrite: Annotated[bool, typer.Option("--update", help="Write the snapshot instead.")] = False,
    arch: Annotated[
        list[str] | None, typer.Option(metavar="sm_XX", help="May be repeated. Default: those of the snapshot.")
    ] = None,
    time_tolerance: Annotated[
        float, typer.Option(metavar="PERCENT", min=0, help="By how much a predicted time may rise.")
    ] = TIME_TOLERANCE_PERCENT,
    as_json: AsJson = False,
) -> int:
    """Fail when schedules of yours got worse than a snapshot; needs no GPU.

    A file names its problem `gemm`, and its schedules as it likes: values of Schedule or Build, or functions that are
    annotated to return one. Bank conflicts, sectors, requests, barriers, races, shared memory, registers, spills and
    the predicted time are compared. Keep the snapshot in your repository, and read its diff in a review.
    """
    gated = {name: one for file in dict.fromkeys(files) for name, one in _gated(file, snapshot)}
    known = {} if rewrite and not snapshot.exists() else read(snapshot)
    archs = [known_arch(name).name for name in arch or ()]
    compared: list[Comparison] = []
    reasons: dict[str, list[str]] = {}
    with output.progress("simulating") as step:
        for at, (name, one) in enumerate(gated.items()):
            step(name, at, len(gated))
            found = _compared(name, one, known, archs, time_tolerance)
            compared.append(found)
            reasons[name] = [] if rewrite else causes(found, one.build())
    forgotten = _forgotten(known, gated, files, snapshot)
    failed = [one for one in compared if one.facts is None or one.facts.wrong or not (rewrite or one.ok)]
    if as_json:
        output.print_json([_as_dict(one, reasons[one.name]) for one in compared])
    else:
        _print(output.out(), compared, reasons, forgotten, rewrite=rewrite)
    if rewrite and not failed:
        update(snapshot, {one.name: one.facts for one in compared if one.facts is not None}, forget=forgotten)
        output.note(f"{counted(len(compared), 'schedule')} written to {snapshot}.")
    elif rewrite:
        output.note("The snapshot was not written.")
    elif failed and not as_json:
        where = [] if snapshot == Path(SNAPSHOT_NAME) else ["--snapshot", str(snapshot)]
        output.note(f"If this is meant: {shlex.join(['tilewright', 'gate', *map(str, files), *where, '--update'])}")
    return 1 if failed else 0


def _gated(file: Path, snapshot: Path) -> list[tuple[str, OwnSchedule]]:
    """The schedules of a file, by name in the snapshot: its path from there, and what it calls them."""
    return [(f"{_prefix(file, snapshot)}{one.name}", one) for one in schedules_in(file)]


def _prefix(file: Path, snapshot: Path) -> str:
    return f"{Path(os.path.relpath(file.resolve(), snapshot.resolve().parent)).as_posix()}::"


def _compared(
    name: str, one: OwnSchedule, known: Mapping[str, Facts], archs: Sequence[str], tolerance_percent: float
) -> Comparison:
    try:
        before = known.get(name)
        wanted = archs or (before and list(before.targets)) or _archs_of(known)
        facts = facts_of(one.build(), wanted, cache=CubinCache())
    except TilewrightError as error:
        return Comparison(name, None, fatal=str(error))
    return compare(name, before, facts, time_tolerance_percent=tolerance_percent)


def _archs_of(known: Mapping[str, Facts]) -> list[str]:
    return sorted({arch for facts in known.values() for arch in facts.targets}) or list(DEFAULT_ARCHS)


def _forgotten(
    known: Mapping[str, Facts], gated: Mapping[str, OwnSchedule], files: Sequence[Path], snapshot: Path
) -> list[str]:
    """Names of the snapshot that the files no longer have."""
    prefixes = tuple(_prefix(file, snapshot) for file in files)
    return [name for name in known if name.startswith(prefixes) and name not in gated]


def _print(
    console: Console,
    compared: Sequence[Comparison],
    reasons: Mapping[str, Sequence[str]],
    forgotten: Sequence[str],
    *,
    rewrite: bool,
) -> None:
    for one in compared:
        same = not one.changes and not one.fatal
        problem = "" if one.facts is None else f"  {one.facts.problem}"
        word = "  as it was" if same else ""
        console.print(Text.assemble((one.name, "bold"), (problem, "dim"), (word, "green")), soft_wrap=True)
        if one.fatal and not (rewrite and one.facts is not None and not one.facts.wrong):
            for line in one.fatal.splitlines():
                output.paragraph(console, line.strip(), style="bold red", indent=2, hanging=2)
        if one.changes:
            console.print(_table((*one.worse, *one.better)))
        for line in reasons[one.name]:
            output.paragraph(console, line, style="yellow", indent=2, hanging=2)
        for line in () if rewrite else one.notes:
            output.paragraph(console, line, style="dim", indent=2, hanging=2)
    for name in forgotten:
        output.paragraph(console, f"{name} is in the snapshot and no longer in the file.", style="yellow")
    if not rewrite:
        bad = sum(not one.ok for one in compared)
        better = sum(one.ok and bool(one.better) for one in compared)
        parts = [f"{counted(bad, 'schedule')} failed" if bad else "", f"{better} got better" if better else ""]
        parts.append(f"{len(compared) - bad - better} as before" if len(compared) - bad - better else "")
        console.print(", ".join(part for part in parts if part) + ".", style="bold red" if bad else "bold green")


def _table(changes: Sequence[Change]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("what")
    for title in ("snapshot", "now"):
        table.add_column(title, justify="right")
    table.add_column("")
    for change in changes:
        style = "bold red" if change.verdict == "worse" else "green"
        numbers = (value_text(change.before), value_text(change.now))
        table.add_row(change.verdict, change.title, *numbers, change.aside, style=style)
    return table


def _as_dict(one: Comparison, reasons: Sequence[str]) -> dict[str, object]:
    changes = [
        {"what": c.what, "arch": c.arch or None, "verdict": c.verdict, "before": c.before, "now": c.now}
        for c in one.changes
    ]
    return {
        "name": one.name,
        "ok": one.ok,
        "fatal": one.fatal or None,
        "changes": changes,
        "why": list(reasons),
        "notes": list(one.notes),
        "facts": one.facts and one.facts.as_data(),
    }
