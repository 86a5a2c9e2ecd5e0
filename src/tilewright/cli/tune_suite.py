"""`tilewright tune --suite`: every problem of the suite, a few plans of each, in one budget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic

from tilewright.cli import output
from tilewright.device.spec import DeviceSpec
from tilewright.planning.on_paper import version_of
from tilewright.runtime.driver import Gpu
from tilewright.suite.problems import FORMATS, ORDERS, Problem, problems
from tilewright.tuner.short_lists import ShortLists
from tilewright.tuner.table import Row, Table
from tilewright.tuner.table_on_gpu import GpuTable
from tilewright.tuner.today import todays_plan
from tilewright.winners.database import Database
from tilewright.winners.lookup import Lookup
from tilewright.winners.plan_config import PlanConfig

_TOLD = ("best", "median_us", "share_of_cublas", "failure")


@dataclass(frozen=True, slots=True)
class Suite:
    """What is asked for. dtype, order: None for all of the suite. export: where winners are written to at the end."""

    dtype: str | None
    order: str | None
    record: Path
    export: Path | None
    budget_s: float
    workers: int

    @property
    def problems(self) -> tuple[Problem, ...]:
        return problems(
            formats=FORMATS if self.dtype is None else (self.dtype,),
            orders=ORDERS if self.order is None else (self.order.upper(),),
        )


def tune_suite(
    asked: Suite, gpu: Gpu | None, spec: DeviceSpec, *, list_only: bool, as_json: bool, started: float | None = None
) -> int:
    """The exit code. started: of `time.monotonic`, when the budget began."""
    database = Database()
    lookup = Lookup(version_of, database, output.note)

    @cache
    def today(problem: Problem) -> PlanConfig:
        return todays_plan(problem.gemm, spec, lookup)

    table = Table(asked.problems, spec, database, asked.record, today=today)
    if list_only or gpu is None:
        _print_list(table, as_json)
        return 0
    rows = []
    total = len(table.problems)
    with (
        ShortLists(spec, gpu.arch, asked.workers) as preparing,
        GpuTable(gpu) as measurer,
        output.progress("tuning the suite") as advance,
    ):
        for row in table.run(preparing, measurer, seconds=asked.budget_s, started=started or monotonic()):
            rows.append(row)
            advance(told(row), total - row.left, total)
            if not as_json:
                print(told(row))
    written = _export(asked.export, database, spec)
    if as_json:
        output.print_json(
            {
                "device": spec.name,
                "rows": [{"problem": str(row.problem), **output.picked(row, *_TOLD)} for row in rows],
                "left": table.left,
                "record": str(asked.record),
                "exported": written,
            }
        )
        return 0
    if table.left:
        print(f"{table.left} of {total} problems are left; the same command goes on with them.")
    if written is not None:
        print(f"{written} winners written to {asked.export}.")
    for complaint in database.complaints:
        output.note(complaint)
    return 0


def told(row: Row) -> str:
    """One line."""
    if row.failure:
        return f"  {row.problem}: {row.failure}"
    share = "" if row.share_of_cublas is None else f"  {100 * row.share_of_cublas:5.1f} % of cuBLAS"
    return f"  {row.problem!s:28} {row.median_us:10.2f} us{share}  {row.best}"


def _print_list(table: Table, as_json: bool) -> None:
    if as_json:
        listed = [{"problem": str(one), "today": table.today(one).as_data()} for one in table.problems]
        output.print_json({"device": table.spec.name, "problems": listed, "left": table.left})
        return
    print(f"{len(table.problems)} problems on {table.spec.name}, {table.left} of them left. matmul runs today:")
    for problem in table.problems:
        print(f"  {problem!s:28} {table.today(problem)}")


def _export(path: Path | None, database: Database, spec: DeviceSpec) -> int | None:
    """How many winners were written."""
    if path is None:
        return None
    lines = list(database.export(device=spec.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)
