"""`tilewright bench --shapes ...`: matmul beside cuBLAS over drawn problems, summed up by class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from tilewright.bench import records
from tilewright.cli import output
from tilewright.errors import TilewrightError
from tilewright.problem.formats import FP8
from tilewright.suite.drawing import Drawn, drawn, layers_of, random_shapes, shapes_of_layers, tokens_of
from tilewright.suite.outcomes import BUDGET_SPENT, Outcome
from tilewright.suite.problems import with_scales
from tilewright.suite.stacks import GROUPED, DrawnStack, drawn_batched, random_grouped
from tilewright.suite.sweep import SHORT, Summary, SweepBench, SweepRow, Target, classes, sweep, worst
from tilewright.winners.keys import short_name

WORST = 20


def targets_of(
    *,
    shapes: Path | None,
    tokens: Path | None,
    random: int,
    batched: bool,
    grouped: bool,
    formats: Sequence[str],
    orders: Sequence[str],
    seed: int,
    sample: int | None,
) -> tuple[Drawn | DrawnStack, ...]:
    """The problems that the options ask for. Raises TilewrightError."""
    if (shapes is None) != (tokens is None):
        raise TilewrightError(
            "--shapes and --tokens belong together: a layer at a token count is one problem.",
            hint="tilewright bench --shapes layers.csv --tokens tokens.txt",
        )
    found: list[Drawn | DrawnStack] = []
    if shapes is not None and tokens is not None:
        layers = shapes_of_layers(layers_of(shapes), tokens_of(tokens))
        found += _with_scales(drawn(layers, formats, orders, seed=seed, sample=sample))
    found += _with_scales(drawn(random_shapes(random, seed), formats, orders, seed=seed))
    if batched:
        found += drawn_batched(sample or 0, seed, formats)
    if grouped:
        found += [DrawnStack(one, "fixed") for one in GROUPED]
        found += [DrawnStack(one, "random") for one in random_grouped(sample or 0, seed)]
    return tuple(found)


def _with_scales(targets: Sequence[Drawn]) -> Iterator[Drawn]:
    """Those of FP8 with scales of rows and columns, with fast sums and promoted ones; the others as they are."""
    for one in targets:
        if one.problem.format in FP8:
            yield from (replace(one, problem=made) for made in with_scales(one.problem, ("row",), (True, False)))
        else:
            yield one


def default_place(kind: str, device: str) -> Path:
    """Of rows of a kind: beside the other records in a source tree; here, for an installed package."""
    name = f"{kind}_{short_name(device).lower().replace(' ', '_')}.jsonl"
    folder = records.recorded_folder()
    return folder / name if folder.name == "results" and folder.is_dir() else Path(name)


def run_drawn(
    targets: Sequence[Drawn | DrawnStack],
    bench: SweepBench,
    path: Path | None,
    *,
    budget: float | None,
    again: bool,
    progress: output.Progress,
) -> int:
    """Measure, print every row, then the summary; 1 if a result was wrong or a problem failed."""
    path = path or default_place("sweep", bench.device)
    rows: list[SweepRow] = []
    failed = left = 0
    for outcome in sweep(targets, bench, path, budget_s=budget, again=again, progress=progress):
        left = outcome.left
        if outcome.made is None:
            failed += outcome.failure != BUDGET_SPENT
            output.out().print(f"{outcome.item.problem!s:32} {outcome.failure}", soft_wrap=True)
        else:
            rows.append(outcome.made)
            _print_row(outcome)
    if rows:
        print_summary(rows)
    if left:
        output.note(f"{left} problems are left: the same command goes on with them.")
    output.note(f"{len(rows)} rows are in {path}.")
    return 1 if failed else 0


def _print_row(outcome: Outcome[Target, SweepRow]) -> None:
    row = outcome.made
    assert row is not None
    output.out().print(f"{row.problem:32} {row.us:10.2f} us  {row.share:.3f} x cuBLAS  {row.ran}", soft_wrap=True)


def print_summary(rows: Sequence[SweepRow]) -> None:
    """A table of the classes, and the slowest problems."""
    table = Table("format", "class", "problems", "geometric mean", "tenth percentile", "least", box=None)
    for limit in SHORT:
        table.add_column(f"below {limit}", justify="right")
    for (name, kind), some in classes(rows).items():
        told = Summary.of([row.share for row in some])
        below = (f"{100 * share:.1f} %" for share in told.below)
        cells = (str(told.problems), f"{told.mean:.3f}", f"{told.tenth:.3f}", f"{told.least:.3f}")
        table.add_row(name, kind, *cells, *below)
    output.out().print(table)
    slow = Table("share", "problem", "us", "what ran", "the peer's kernel", box=None, title=f"the slowest {WORST}")
    for row in worst(rows, WORST):
        slow.add_row(f"{row.share:.3f}", row.problem, f"{row.us:.1f}", row.ran, row.peer_ran)
    output.out().print(slow)
