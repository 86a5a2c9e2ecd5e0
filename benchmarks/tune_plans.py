"""Given plans beside what `matmul` runs today, for problems of the suite; whatever wins goes to the database.

    python benchmarks/tune_plans.py benchmarks/plans_to_try_h200.json --record suite.jsonl \
        --export src/tilewright/winners/shipped/h200.jsonl

For plans that an experiment found and the ranking of `tilewright tune --suite` does not come to. The file is a list of
{"problems": [texts as `bench` prints them], "plans": [as the record of the suite holds them]}.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from pathlib import Path

from tilewright.cli.tune_suite import told
from tilewright.device.spec import DeviceSpec
from tilewright.errors import TilewrightError
from tilewright.planning.on_paper import version_of
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.runtime.driver import open_gpu
from tilewright.runtime.probe import probe
from tilewright.suite.problems import Problem, problems
from tilewright.tuner.compiling import prepare
from tilewright.tuner.space import make_space
from tilewright.tuner.table import Ready, Table, Task
from tilewright.tuner.table_on_gpu import GpuTable
from tilewright.tuner.today import todays_plan
from tilewright.winners.database import Database
from tilewright.winners.lookup import Lookup
from tilewright.winners.plan_config import PlanConfig


class Given:
    """The plans of a file in the place of a short list."""

    def __init__(self, plans: Mapping[Problem, Sequence[PlanConfig]], spec: DeviceSpec, arch: str) -> None:
        self._plans, self._spec, self._arch = plans, spec, arch
        self._pool = ProcessPoolExecutor(8, multiprocessing.get_context("spawn"))

    def submit(self, task: Task) -> Future[Ready]:
        return self._pool.submit(ready, task, self._plans[task.problem], self._spec, self._arch)


def ready(task: Task, plans: Sequence[PlanConfig], spec: DeviceSpec, arch: str) -> Ready:
    """The plans of one problem, compiled."""
    space, cache = make_space(task.problem.gemm, spec, today=task.today), CubinCache()
    prepared, failures = {}, {}
    for plan in dict.fromkeys((task.today, *plans)):
        try:
            prepared[str(plan)] = prepare(space, plan, arch, cache)
        except TilewrightError as refusal:
            failures[str(plan)] = refusal.headline
    return Ready(prepared, failures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--budget", type=float, default=500.0)
    given = parser.parse_args()
    known = {str(problem): problem for problem in problems()}
    asked: dict[Problem, list[PlanConfig]] = {}
    for entry in json.loads(given.plans.read_text(encoding="utf-8")):
        for text in entry["problems"]:
            asked.setdefault(known[text], []).extend(PlanConfig.from_data(one) for one in entry["plans"])
    gpu = open_gpu()
    spec, database = probe(gpu), Database()
    lookup = Lookup(version_of, database, print)
    today = cache(lambda problem: todays_plan(problem.gemm, spec, lookup))
    table = Table(tuple(asked), spec, database, given.record, today=today, passes=1)
    with GpuTable(gpu) as measurer:
        for row in table.run(Given(asked, spec, gpu.arch), measurer, seconds=given.budget):
            print(told(row), flush=True)
    if given.export is not None:
        given.export.write_text("".join(database.export(device=spec.name)), encoding="utf-8")


if __name__ == "__main__":
    main()
