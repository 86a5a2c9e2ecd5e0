"""Hardware counters as a witness: runs under ncu, and counts of one access."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ncu

from shared_memory.accesses import COPY_WAVEFRONTS, LOAD_WAVEFRONTS, REPEAT, STORE_WAVEFRONTS, Access
from shared_memory.launches import NO_LANE
from tilewright.errors import LaunchError

SCRIPT = Path(__file__).resolve().parents[1] / "shared_memory_rules.py"
"""What is started again, under ncu or for the clocks."""

_BANK = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_TAG = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"

WELL_KNOWN = 5  # the first so many of each group are on every chip since Volta
HARDWARE: Mapping[str, Sequence[str]] = {
    "shared": (
        LOAD_WAVEFRONTS,
        STORE_WAVEFRONTS,
        COPY_WAVEFRONTS,
        f"{_BANK}_op_ld.sum",
        f"{_BANK}_op_st.sum",
        f"{_BANK}.sum",
    ),
    "global": (
        COPY_WAVEFRONTS,
        *(_TAG.format(what, op) for op in ("ld", "st") for what in ("requests", "sectors")),
        *(_TAG.format("output_wavefronts", op) for op in ("ld", "st")),
        "l1tex__data_pipe_lsu_wavefronts.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_lg.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_lgds.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_cmd_read.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_cmd_write.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
        f"{_BANK}.sum",
        f"{_BANK}_op_ldgsts.sum",
    ),
}
SOURCE: Mapping[str, Sequence[str]] = {
    "shared": ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"),
    "global": (
        "memory_l1_wavefronts_shared",
        "memory_l1_wavefronts_shared_ideal",
        "memory_l1_tag_requests_global",
        "memory_l2_theoretical_sectors_global",
        "memory_l2_theoretical_sectors_global_ideal",
    ),
}
PATCHED: Mapping[str, Sequence[str]] = {
    "shared": ("smsp__sass_inst_executed_op_shared_ld.sum", "smsp__sass_inst_executed_op_shared_st.sum"),
    "global": (
        "smsp__inst_executed_op_ldgsts.sum",
        "smsp__sass_inst_executed_op_ldgsts_cache_access.sum",
        "smsp__sass_inst_executed_op_ldgsts_cache_bypass.sum",
        "sm__sass_inst_executed_op_ldgsts_cache_access.sum",
        "sm__sass_inst_executed_op_ldgsts_cache_bypass.sum",
    ),
}
WIDE = (
    r"l1tex__data_(pipe_lsu_wavefronts|bank_conflicts_pipe_lsu|bank_reads|bank_writes)\w*"
    r"|\w+__(sass_)?inst_executed_op_(ldsm|stsm|ldgsts|shared)\w*"
    r"|\w+__sass_l1tex_\w*(shared|ldgsts|ldsm)\w*"
    r"|l1tex__t_\w*pipe_lsu_mem_global_op_ldgsts\w*"
)
WIDE_MOST = 80
KEEP_AT_MOST_BYTES = 15 << 20  # a file that comes back from the device may have 16 MiB

Counts = dict[tuple[str, str], dict[str, float]]  # (access, pattern) -> metric -> count of the launch


@dataclass
class Journal:
    """What went on: each query with its time, and each failure with what was said."""

    queries: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def spent_s(self) -> float:
        return time.monotonic() - self.started

    def note(self, query: str, **facts: Any) -> None:
        self.queries.append({"query": query, "at_s": round(self.spent_s(), 1), **facts})
        print(f"[{self.spent_s():5.1f} s] {query}: {json.dumps(facts)[:600]}", flush=True)


def count_group(
    cubin: Path, group: str, metrics: Sequence[str], deadline_s: float, journal: Journal, title: str, out: Path
) -> Counts:
    """One run under ncu. A failure is noted and gives no counts; a report that cannot be read is kept in `out`."""
    with tempfile.TemporaryDirectory() as folder:
        order = Path(folder) / "order.json"
        command = [sys.executable, str(SCRIPT), "--run", "--group", group]
        command += ["--cubin", str(cubin), "--order", str(order), "--deadline-s", str(deadline_s)]
        target = Path(folder) / "report"
        report = None
        try:
            report = ncu.record(command, metrics, target, flush_caches=False, timeout_s=deadline_s + 25)
            made = json.loads(order.read_text())
            recorded_s = round(journal.spent_s(), 1)
            counts, how = _read_counts(report, made["made"], metrics)
        except (LaunchError, OSError, ValueError, KeyError) as failed:
            journal.note(title, failed=str(failed), metrics=list(metrics))
            if report is not None and report.stat().st_size < KEEP_AT_MOST_BYTES:
                shutil.copy(report, out / f"{title.replace(' ', '_')}.ncu-rep")
                shutil.copy(order, out / f"{title.replace(' ', '_')}.order.json")
            return {}
        facts = {"launches": len(made["made"]), "planned": made["planned"], "run_s": made["seconds"]}
        journal.note(title, **facts, recorded_at_s=recorded_s, read_from=how)
        return counts


def _read_counts(report: Path, made: list[dict[str, str]], metrics: Sequence[str]) -> tuple[Counts, str]:
    """The counts of each launch made, from the raw page; metrics that it lacks, from the source page."""
    found = ncu.read_counters(report)
    if [each.kernel.split("(")[0] for each in found] != [each["kernel"] for each in made]:
        raise ValueError(f"ncu saw {len(found)} launches, in another order than the {len(made)} that were made")
    rows = [{name: each.values[name] for name in metrics if name in each.values} for each in found]
    lacking = [name for name in metrics if not any(name in row for row in rows)]
    how = "raw page"
    if lacking:
        how = f"raw page without {lacking}"
        try:
            for row, source in zip(rows, ncu.read_source(report), strict=True):
                row.update({name: total for name in lacking if (total := source.total(name)) is not None})
            how = f"raw page, and source page for {lacking}"
        except (LaunchError, ValueError) as failed:
            how += f"; source page: {failed}"
    return {(each["access"], each["pattern"]): row for each, row in zip(made, rows, strict=True)}, how


def per_access(counts: Counts, access: Access, pattern: str) -> dict[str, float]:
    """Counts of one access: those of the launch, less those of its baseline, over REPEAT."""
    baseline = counts.get((access.name, NO_LANE) if access.is_copy else ("baseline", ""), {})
    of_launch = counts.get((access.name, pattern), {})
    return {name: (value - baseline.get(name, 0)) / REPEAT for name, value in of_launch.items()}
