"""Hardware counters of kernel launches, read by Nsight Compute (`ncu`).

    record(command, metrics, report)  ->  the report's path; then
    read_counters(report)             ->  the counters of each kernel launch of the command, in launch order
    read_source(report)               ->  its machine code, with the counters of single instructions

The command is run once under `ncu` into a report, whose *raw* and *source* pages are then printed as CSV. The
clocks are left alone.

A counter name that the chip does not have makes `ncu` refuse the whole run, so pass names through
`existing_metrics` first. The metrics named `memory_*` are counted by instrumented code and may be missing from
that list; `is_instrumented` tells them.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.errors import LaunchError

HOPPER = "gh100"
_CHIPS = {  # by compute capability, as `ncu --list-chips` names the largest of each
    (7, 5): "tu102",
    (8, 0): "ga100",
    (8, 6): "ga102",
    (8, 9): "ad102",
    (9, 0): HOPPER,
    (10, 0): "gb100",
    (12, 0): "gb202",
}
_READ_TIMEOUT_S = 120
_INSTALL_FOLDERS = ("/opt/nvidia/nsight-compute", "/usr/local")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

# What the source page calls a metric, and the metric's name. [Nsight Compute, Profiling Guide, source metrics]
SOURCE_LABELS: Mapping[str, str] = {
    "Instructions Executed": "inst_executed",
    "Thread Instructions Executed": "thread_inst_executed",
    "L1 Tag Requests Global": "memory_l1_tag_requests_global",
    "L1 Wavefronts Shared": "memory_l1_wavefronts_shared",
    "L1 Wavefronts Shared Ideal": "memory_l1_wavefronts_shared_ideal",
    "L2 Theoretical Sectors Global": "memory_l2_theoretical_sectors_global",
    "L2 Theoretical Sectors Global Ideal": "memory_l2_theoretical_sectors_global_ideal",
}


@dataclass(frozen=True, slots=True)
class LaunchCounters:
    """The counters of one kernel launch: metric name -> number, in base units (bytes, not kilobytes)."""

    kernel: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class InstructionCounters:
    """One line of machine code and its counters, by metric name."""

    sass: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LaunchSource:
    """The machine code of one kernel launch with the counters of each instruction."""

    kernel: str
    instructions: tuple[InstructionCounters, ...]

    def total(self, metric: str) -> float | None:
        """The sum of `metric` over the instructions; None if no instruction has it."""
        found = [line.values[metric] for line in self.instructions if metric in line.values]
        return sum(found) if found else None


# ---------------------------------------------------------------------------------------------- running ncu


def available() -> bool:
    """Whether `ncu` is installed. That it may read the counters is another matter: only a run tells."""
    return _find_ncu() is not None


def is_instrumented(metric: str) -> bool:
    """Whether the metric is counted by instrumented code, in a run of its own, and not by hardware."""
    return metric.startswith(("memory_", "inst_executed", "thread_inst_executed"))


def chip_of(compute_capability: tuple[int, int]) -> str:
    """The name under which `ncu` lists the metrics of a GPU. Raises LaunchError where we know none."""
    chip = _CHIPS.get(compute_capability)
    if chip is None:
        major, minor = compute_capability
        raise LaunchError(f"No chip of Nsight Compute is known for compute capability {major}.{minor}.")
    return chip


@cache
def metric_listing(chip: str = HOPPER) -> str:
    """What `ncu` knows about the chip: a line for each metric, name first, without its suffix."""
    return _ncu("--query-metrics", "--chips", chip, timeout_s=60)


def existing_metrics(names: Iterable[str], chip: str = HOPPER, *, listing: str | None = None) -> list[str]:
    """Those of `names` whose metric the chip has, in their order. Suffixes (`.sum`) are kept, and not checked."""
    text = metric_listing(chip) if listing is None else listing
    known = {name for name, _ in _listed(text)}
    return [name for name in names if name.split(".")[0] in known]


def matching_counters(pattern: str, chip: str = HOPPER, *, listing: str | None = None) -> list[str]:
    """The chip's plain counters whose whole name matches a regular expression: `.sum` is a suffix of each."""
    text = metric_listing(chip) if listing is None else listing
    return sorted({name for name, kind in _listed(text) if kind == "Counter" and re.fullmatch(pattern, name)})


def record(
    command: list[str],
    metrics: Sequence[str],
    report: Path,
    *,
    flush_caches: bool = True,
    timeout_s: float = 300,
) -> Path:
    """Profile `command` into a report file, whose path is returned: `read_counters` and `read_source` print it.

    flush_caches: before each pass over a launch. Raises LaunchError, with what `ncu` said, if it is missing,
    refuses a metric or cannot read the counters.
    """
    options = ["--config-file", "off", "--clock-control", "none", "--target-processes", "all"]
    options += ["--cache-control", "all" if flush_caches else "none", "--apply-rules", "no"]
    options += ["--metrics", ",".join(metrics), "--force-overwrite", "--export", str(report)]
    said = _ncu(*options, *command, timeout_s=timeout_s)
    written = report if report.suffix == ".ncu-rep" else report.with_name(report.name + ".ncu-rep")
    if not written.is_file():
        raise LaunchError("Nsight Compute wrote no report.", place=said[-2000:])
    return written


def read_counters(report: Path) -> list[LaunchCounters]:
    """The counters of each launch in a report."""
    return parse_raw_csv(
        _ncu(
            "--import", str(report), "--page", "raw", "--csv", "--print-units", "base",
            "--print-kernel-base", "function", "--print-metric-instances", "values",
            timeout_s=_READ_TIMEOUT_S,
        )
    )  # fmt: skip


def read_source(report: Path) -> list[LaunchSource]:
    """The machine code of each launch in a report, with the counters of each instruction."""
    return parse_source_csv(
        _ncu("--import", str(report), "--page", "source", "--csv", "--print-source", "sass", timeout_s=_READ_TIMEOUT_S)
    )


@cache
def _find_ncu() -> str | None:
    found = shutil.which("ncu")
    if found is not None:
        return found
    candidates = [path for folder in _INSTALL_FOLDERS for path in Path(folder).glob("*/ncu")]
    candidates += Path("/usr/local").glob("cuda*/bin/ncu")
    return str(max(candidates)) if candidates else None


def _ncu(*arguments: str, timeout_s: float) -> str:
    """What `ncu` prints to its standard output. Raises LaunchError with the end of all it said otherwise."""
    ncu = _find_ncu()
    if ncu is None:
        raise LaunchError(
            "Cannot read hardware counters: Nsight Compute (ncu) is not installed.",
            hint="it comes with the CUDA toolkit; put its folder on the PATH.",
        )
    with subprocess.Popen(
        [ncu, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that the profiled program can be ended with it
    ) as running:
        try:
            output, errors = running.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as late:
            os.killpg(running.pid, signal.SIGKILL)
            raise LaunchError(f"Nsight Compute did not end within {timeout_s:.0f} s.") from late
    if running.returncode != 0:
        raise LaunchError(
            f"Nsight Compute failed with exit status {running.returncode}.",
            place=f"{output[-2000:]}\n{errors[-2000:]}".strip(),
        )
    return output


# ---------------------------------------------------------------------------------------- reading its output


def parse_raw_csv(text: str) -> list[LaunchCounters]:
    """The launches in the CSV of a raw page, which has a row a launch.

    Lines that are not CSV, such as `==PROF==` messages and what the program printed, are skipped.
    """
    rows = _csv_rows(text)
    header = next((row for row in rows if row[0] == "ID"), None)
    if header is None:
        raise LaunchError("Nsight Compute printed no table of counters.", place=text[-2000:].strip())
    name = header.index("Kernel Name")
    launches = [row for row in rows if row[0].isdigit()]
    return [LaunchCounters(row[name], _values(zip(header, row, strict=False))) for row in launches]


def parse_source_csv(text: str) -> list[LaunchSource]:
    """The launches in the CSV of a source page, in order. Columns are known by their label or by the metric."""
    launches: list[LaunchSource] = []
    kernel, header, lines = "", list[str](), list[InstructionCounters]()
    for row in _csv_rows(text):
        if row[0] in ("Kernel Name", "Function Name") and len(row) >= 2 and "Source" not in row:
            if lines:
                launches.append(LaunchSource(kernel, tuple(lines)))
            kernel, header, lines = row[1], [], []
        elif "Source" in row:
            if lines:
                launches.append(LaunchSource(kernel, tuple(lines)))
            header, lines = row, []
        elif header:
            lines.append(_instruction(header, row))
    if lines:
        launches.append(LaunchSource(kernel, tuple(lines)))
    return launches


def _instruction(header: list[str], row: list[str]) -> InstructionCounters:
    return InstructionCounters(row[header.index("Source")].strip(), _values(zip(header, row, strict=False)))


def _values(cells: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The numbers of the columns that are metrics, the first of each metric."""
    values: dict[str, float] = {}
    for label, cell in cells:
        name = SOURCE_LABELS.get(label, label)
        number = _number(cell)
        if number is not None and (is_instrumented(name) or "__" in name):
            values.setdefault(name, number)
    return values


def _number(cell: str) -> float | None:
    """A cell's number, before its instances in brackets. Their sum, if they are alone.

    >>> _number("1,024 (1,000; 24)"), _number("(2; 3)"), _number("n/a")
    (1024.0, 5.0, None)
    """
    head, *tail = re.split(r"[(){};]", cell.strip())
    if _NUMBER.fullmatch(head.strip()):
        return float(head.replace(",", ""))
    words = [word for part in tail for word in part.split() if _NUMBER.fullmatch(word)]
    return sum(float(word.replace(",", "")) for word in words) if words else None


def _csv_rows(text: str) -> list[list[str]]:
    lines = "\n".join(line for line in text.splitlines() if line.startswith('"'))
    return [row for row in csv.reader(io.StringIO(lines)) if row]


def _listed(listing: str) -> Iterator[tuple[str, str]]:
    """Name and kind of each metric in a listing; the kind is empty where the listing has none."""
    for line in listing.splitlines():
        name, _, rest = line.strip().partition(" ")
        if re.fullmatch(r"[a-z][a-z0-9]*_[a-z0-9_]+", name):
            yield name, rest.split(maxsplit=1)[0] if rest.strip() else ""
