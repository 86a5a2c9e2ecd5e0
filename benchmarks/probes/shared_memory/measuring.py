"""All measurements, within a budget of seconds; what there was no time for is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ncu

from shared_memory.counters import (
    HARDWARE,
    PATCHED,
    SCRIPT,
    SOURCE,
    WELL_KNOWN,
    WIDE,
    WIDE_MOST,
    Counts,
    Journal,
    count_group,
)
from shared_memory.machine_code import check_sass, compile_cubin, cuda_text
from shared_memory.verdicts import records, summary, write_result
from tilewright.errors import LaunchError


def measure(budget_s: float, out: Path) -> None:
    """Everything, within about `budget_s` seconds; what there was no time for is missing from the result."""
    journal = Journal()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "probe.cubin"
        cubin.write_bytes(compile_cubin(cuda_text()))
        journal.note("compile", cubin_bytes=cubin.stat().st_size, wrong_sass=_checked(cubin.read_bytes()))
        clocks = _time_in_child(cubin, journal)
        result = {"clocks": clocks, "records": records(clocks, {}, {}), "journal": journal.queries}
        write_result(result, out)
        if not ncu.available():
            journal.note("ncu", failed="not installed")
            hardware, source = Counts(), Counts()
        else:
            hardware, source = _count_all(cubin, budget_s, journal, out)
    result = {"clocks": clocks, "records": records(clocks, hardware, source), "journal": journal.queries}
    write_result(result, out)
    print(summary(result))


def _checked(cubin: bytes) -> list[str]:
    try:
        return check_sass(cubin)
    except (OSError, KeyError, RuntimeError, subprocess.SubprocessError) as failed:
        return [f"could not be checked: {failed!r}"]


def _count_all(cubin: Path, budget_s: float, journal: Journal, out: Path) -> tuple[Counts, Counts]:
    try:
        listing = ncu.metric_listing()
    except LaunchError as failed:
        journal.note("metric listing", failed=str(failed))
        listing = ""
    (out / "ncu_metrics_gh100.txt").write_text(listing)
    hardware, source = Counts(), Counts()
    for group, share in (("shared", 0.24), ("global", 0.12)):  # of the budget, for each of a group's two queries
        known = ncu.existing_metrics(HARDWARE[group], listing=listing) or HARDWARE[group]
        instrumented = [*SOURCE[group], *ncu.existing_metrics(PATCHED[group], listing=listing)]
        for title, counts, choices in (
            (f"hardware {group}", hardware, (known, HARDWARE[group][:WELL_KNOWN])),
            (f"source {group}", source, (instrumented, SOURCE[group], SOURCE[group][:1])),
        ):
            for metrics in choices:  # a longer list first: one refused name refuses them all
                left_s = budget_s - journal.spent_s()
                if left_s < 5:
                    journal.note(title, failed="no time left")
                    break
                found = count_group(cubin, group, metrics, min(share * budget_s, left_s - 4), journal, title, out)
                if found:
                    # A baseline that both groups have is the same; what only one has is kept.
                    counts |= {key: counts.get(key, {}) | row for key, row in found.items()}
                    break
    wide = ncu.matching_counters(WIDE, listing=listing)
    journal.note("counters of the wide run", found=len(wide))
    if wide and (left_s := budget_s - journal.spent_s()) > 6:
        metrics = [f"{name}.sum" for name in wide[:WIDE_MOST]]
        counts = count_group(cubin, "wide", metrics, min(10, left_s - 4), journal, "wide", out)
        readable = {" | ".join(key): {n: v for n, v in row.items() if v} for key, row in counts.items()}
        (out / "wide_counters.json").write_text(json.dumps(readable, indent=1))
    return hardware, source


def _time_in_child(cubin: Path, journal: Journal) -> dict[str, Any]:
    """The clocks, from a process of its own: a launch that fails there takes nothing else with it."""
    output = cubin.with_name("clocks.json")
    command = [sys.executable, str(SCRIPT), "--time", "--cubin", str(cubin), "--order", str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
        said = (done.stdout + done.stderr)[-1500:]
    except subprocess.TimeoutExpired:
        said = "timed out"
    clocks: dict[str, Any] = json.loads(output.read_text()) if output.is_file() else {}
    seconds = {key: value for key, value in clocks.items() if key.endswith("_seconds")}
    journal.note("clocks", device=clocks.get("device"), said=said, errors=clocks.get("errors", []), **seconds)
    return clocks
