"""`tilewright tune --shapes FILE`: a list of problems, shared with other machines and by all GPUs of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tilewright.cli import output
from tilewright.device.spec import DeviceSpec
from tilewright.runtime.driver import gpu_count
from tilewright.tuner.claims import LEASE_S
from tilewright.tuner.fleet import Fleet, Listed, Tune
from tilewright.winners.database import Database

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ONE_OF_MANY = "TILEWRIGHT_TUNE_GPU"
"""Set in processes that this command has started, one for each GPU."""

_LEASES = 4
"""Budgets of a problem, after which one that another machine took is taken again."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What is asked for. budget_s: of each problem. export: where the winners of all machines are written to."""

    problems: tuple[Listed, ...]
    storage: str
    budget_s: float
    export: Path | None


def one_for_each_gpu(arguments: list[str]) -> int | None:
    """Run the command once for each of several GPUs of this machine: the worst exit code. None for a machine of one, or
    in a process that was started so."""
    count = gpu_count()
    if count < 2 or _ONE_OF_MANY in os.environ:
        return None
    names = os.environ.get(_VISIBLE, "").split(",") if os.environ.get(_VISIBLE) else [str(i) for i in range(count)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tilewright", *arguments],
            env={**os.environ, _VISIBLE: name, _ONE_OF_MANY: name},
        )
        for name in names[:count]
    ]
    return max(process.wait() for process in running)


def tune_list(asked: Shared, spec: DeviceSpec, tune: Tune, database: Database, *, as_json: bool) -> int:
    """The exit code: 1 where problems could not be tuned."""
    fleet = Fleet(asked.storage, asked.problems, spec, lease_s=max(LEASE_S, _LEASES * asked.budget_s))
    total, reports = len(asked.problems), []
    with closing(fleet), output.progress("tuning a list") as advance:
        for report in fleet.run(tune):
            reports.append(report)
            words = f"{report.gemm}: {report.failure or 'tuned'}"
            advance(words, total - report.left, total)
            if not as_json:
                print(f"  {words}")
        winners = fleet.winners()
    taken = database.import_([f"{line}\n" for line in winners], "the list")
    if asked.export is not None:
        asked.export.parent.mkdir(parents=True, exist_ok=True)
        asked.export.write_text("".join(f"{line}\n" for line in winners), encoding="utf-8")
    failed = [report for report in reports if report.failure]
    if as_json:
        told = [{"problem": str(report.gemm), "failure": report.failure} for report in reports]
        output.print_json({"device": spec.name, "here": told, "problems": total, "winners": len(winners)})
    else:
        own = f"{len(reports)} of them here" if reports else "none of them here"
        print(f"{len(winners)} of {total} problems have a winner, {own}; {taken.added} are new to this machine.")
    return 1 if failed else 0
