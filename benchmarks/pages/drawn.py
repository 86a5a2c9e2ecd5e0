"""The page of drawn problems: every number in it comes from a recorded sweep."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pages.markdown import measured, table
from tilewright.bench import records
from tilewright.bench.records import Origin
from tilewright.suite.sweep import SHORT, Summary, SweepRow, classes, read, worst

FILE_PATTERN = "sweep_*.jsonl"

HEAD = """\
# Shapes that users bring

Problems that were not tuned for: layers of public models at usual token counts, and random sizes, as
`tilewright bench --shapes LAYERS.csv --tokens TOKENS.txt --random N` draws them.

* How they are timed: each result is checked against float64 within the error bound of its format. Then
  `tilewright.matmul` and its peer are captured into CUDA graphs, which are replayed in turn over rotated operands. The
  host's launch of a graph is not in the time, in rows of 2026-11-23 from commit c83a863 on.
* A share is the peer's time over ours in the same run: above 1, ours is faster. The peer is `torch.mm`, which calls
  cuBLAS; of FP8 `torch._scaled_mm`, of batches `torch.bmm`, of groups `torch._grouped_mm`.
* A row is of the kernels and the choice of its commit; of each class the first twenty or so that were drawn are kept.
  [Decision 0077](decisions/0077-copies-in-short-rows-and-operands-filled-up.md) tells of 1,790 problems of exact f32 on
  an H200.

`benchmarks/write_page.py drawn` writes this page from the records.
"""


def recorded(folder: Path | None = None) -> tuple[tuple[Origin, SweepRow], ...]:
    """The rows of all recorded sweeps, oldest run first."""
    folder = records.recorded_folder() if folder is None else folder
    found = [pair for path in sorted(folder.glob(FILE_PATTERN)) for pair in read(path)]
    return tuple(sorted(found, key=lambda pair: pair[0].date))


def page(rows: Iterable[tuple[Origin, SweepRow]]) -> str:
    """The whole page; of several measurements of a problem on a device the newest counts."""
    newest: dict[str, dict[str, tuple[Origin, SweepRow]]] = {}
    for origin, row in rows:
        newest.setdefault(origin.device, {})[row.problem] = (origin, row)
    parts = [HEAD]
    for device, found in newest.items():
        parts += [f"## {device}\n", _summary([row for _, row in found.values()]), ""]
        parts += ["### The slowest twenty of each format\n", _slowest([row for _, row in found.values()]), ""]
        parts += [measured(origin for origin, _ in found.values()), ""]
    if len(parts) == 1:
        parts.append("No sweep is recorded yet.\n")
    return "\n".join(parts)


def _summary(rows: list[SweepRow]) -> str:
    columns = ["format", "class", "problems:", "geometric mean:", "tenth percentile:", "least:"]
    cells = []
    for (name, kind), some in sorted(classes(rows).items()):
        told = Summary.of([row.share for row in some])
        shares = (f"{share:.3f}" for share in (told.mean, told.tenth, told.least))
        cells.append([name, kind, told.problems, *shares, *(f"{100 * share:.1f} %" for share in told.below)])
    return "\n".join(table([*columns, *(f"below {limit}:" for limit in SHORT)], cells))


def _kernels(ran: str) -> str:
    """Names of kernels as a table has room for: without `void`, and without arguments of templates."""
    names = (name.strip().removeprefix("void ").removeprefix("cutlass::Kernel2<") for name in ran.split("; "))
    return "; ".join(name.split("<")[0].removesuffix(">") for name in names)


def _slowest(rows: list[SweepRow]) -> str:
    cells = [
        (f"{row.share:.3f}", row.problem, f"{row.us:.1f}", f"`{row.ran or '-'}`", f"`{_kernels(row.peer_ran) or '-'}`")
        for name in sorted({row.format for row in rows})
        for row in worst(row for row in rows if row.format == name)
    ]
    return "\n".join(table(("share:", "problem", "us:", "what ran", "cuBLAS's kernel"), cells))
