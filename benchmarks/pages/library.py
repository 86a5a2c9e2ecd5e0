"""The page of the library's speed: every number in it comes from a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from pages.markdown import measured, table, with_part
from tilewright.bench import records
from tilewright.suite.problems import FORMATS, OPTIONAL_FORMATS, ORDERS, SHAPES, Problem, problems
from tilewright.suite.running import (
    COMPILED,
    CUBLAS,
    CUBLASLT,
    NAME,
    PEERS,
    peers_us,
    problem_of,
    shares,
)

FILE_PATTERN = "library_*.jsonl"

HEAD = """\
# The library against what people call today

`tilewright bench` multiplies a suite of shapes with `tilewright.matmul` and, in the same run and in turn, with

* **cuBLAS**: `torch.mm`, which takes cuBLAS's default choice;
* **cuBLASLt**: every algorithm its heuristic offers (up to 32) is timed, and the best taken;
* **torch.compile**: `mode="max-autotune-no-cudagraphs"`, which tunes Triton kernels against cuBLAS.

Operands are random normal and rotated over more than 256 MB; the results of all are checked against float64; then the
calls are captured into CUDA graphs, which are replayed in turn, the card resting 5 ms before each. A time is the median
over the replays. **x** is how many times faster `tilewright` is than a peer: the median of the ratios within a round,
above 1 where it is faster. N: a row-major operand, T: a transposed view. Peers without a record have no columns.

This page is written by `benchmarks/write_page.py library`; no number in it is typed by hand.
"""

OTHERS = """\
### Untuned shapes

What runs for a shape that was never timed: the choice of the performance model.
"""

MARKER = "library"
"""Where a page of another subject has the library's figures in a sentence."""

NOTHING = "\nNo measurement is recorded yet: `tilewright bench` on a machine with a GPU and PyTorch makes one.\n"


def recorded(folder: Path | None = None) -> tuple[records.Record, ...]:
    """What was measured, oldest first."""
    folder = records.recorded_folder() if folder is None else folder
    found = [row for path in sorted(folder.glob(FILE_PATTERN)) for row in records.read(path) if row.rung == NAME]
    return tuple(sorted(found, key=lambda row: row.origin.date))


def page(rows: Iterable[records.Record]) -> str:
    """The whole page of some records; the newest counts."""
    rows = tuple(rows)
    if not rows:
        return HEAD + NOTHING
    parts = [HEAD]
    for device in dict.fromkeys(row.origin.device for row in rows):
        parts += _device(device, [row for row in rows if row.origin.device == device])
    return "\n".join(parts)


def page_or_part(text: str, rows: Iterable[records.Record]) -> str:
    """The whole page, where there is none or an old one; any other text with the figures between its markers.

    Raises TilewrightError where that has no markers.
    """
    if not text or text.startswith(HEAD.partition("\n")[0]):
        return page(rows)
    return with_part(text, MARKER, sentence(tuple(rows)), what="the figures of the library")


def sentence(rows: Sequence[records.Record]) -> str:
    """How many times faster than cuBLAS over the suite, format by format."""
    if not rows:
        return "Nothing is measured yet."
    device = rows[-1].origin.device
    known = {problem_of(row): shares(row) for row in rows if row.origin.device == device and CUBLAS in shares(row)}
    suite = [problem for problem in _suite() if problem in known]
    means = {
        name: geometric_mean([known[problem][CUBLAS] for problem in suite if problem.format == name])
        for name in dict.fromkeys(problem.format for problem in suite)
    }
    told = ", ".join(f"{mean:.3f} ({name})" for name, mean in means.items())
    least = min((known[problem][CUBLAS] for problem in suite), default=0.0)
    return (
        f"On {device}: {told} times as fast as cuBLAS (geometric means of {len(suite)} problems; the lowest of all is "
        f"{least:.3f})."
    )


def _device(device: str, rows: Sequence[records.Record]) -> list[str]:
    newest = {problem_of(row): row for row in rows}
    # A peer that the newest run of a problem left out is told by the newest run that timed it: a share is of one run.
    by_peer = {peer: {problem_of(row): row for row in rows if peer in shares(row)} for peer in PEERS}
    order = [problem for problem in _suite() if problem in newest]
    parts = [f"## {device}\n", _summary(order, by_peer), ""]
    for format_name in dict.fromkeys(problem.format for problem in order):
        for orders in dict.fromkeys(p.orders for p in order if p.format == format_name):
            some = [p for p in order if (p.format, p.orders) == (format_name, orders)]
            parts += [f"### {format_name} {orders}\n", _table(some, newest, by_peer), ""]
    if others := sorted(newest.keys() - order, key=lambda p: (p.format, p.orders, p.m * p.n * p.k)):
        parts += [OTHERS, _table(others, newest, by_peer, of_one_kind=False), ""]
    used = [*newest.values(), *(row for found in by_peer.values() for row in found.values())]
    parts += [measured(sorted((row.origin for row in used), key=lambda origin: origin.date)), ""]
    return parts


def _suite() -> tuple[Problem, ...]:
    return problems(SHAPES, (*FORMATS, *OPTIONAL_FORMATS), ORDERS)


def _summary(order: Sequence[Problem], by_peer: dict[str, dict[Problem, records.Record]]) -> str:
    """Geometric means and the worst shape, for each format and peer."""
    cells = []
    for format_name in dict.fromkeys(problem.format for problem in order):
        for peer in PEERS:
            found = {p: shares(by_peer[peer][p])[peer] for p in order if p.format == format_name and p in by_peer[peer]}
            if found:
                least = min(found, key=lambda problem: found[problem])
                mean = geometric_mean(list(found.values()))
                at = f"{_shape(least)} {least.orders}"
                cells.append((format_name, peer, len(found), f"{mean:.3f}", f"{found[least]:.3f}", at))
    return "\n".join(table(("format", "peer", "problems:", "geometric mean of x:", "least x:", "at"), cells))


def _table(
    some: Sequence[Problem],
    newest: Mapping[Problem, records.Record],
    by_peer: Mapping[str, Mapping[Problem, records.Record]],
    *,
    of_one_kind: bool = True,
) -> str:
    """A row a problem. of_one_kind: the heading tells their format and order."""
    columns = [*([] if of_one_kind else ["format"]), "MxNxK", "us:", "TFLOP/s:"]
    timed = [peer for peer in (CUBLAS, CUBLASLT, COMPILED) if any(problem in by_peer[peer] for problem in some)]
    for peer in timed:
        columns += [f"{peer}, us:", "x:"]
    lines = []
    for problem in some:
        row = newest[problem]
        cells = [] if of_one_kind else [f"{problem.format} {problem.orders}"]
        cells += [_shape(problem), _us(row.median_us), f"{row.tflops:.1f}"]
        for peer in timed:
            theirs = by_peer[peer].get(problem)
            cells += ["", ""] if theirs is None else [_us(peers_us(theirs)[peer]), f"{shares(theirs)[peer]:.3f}"]
        lines.append([*cells, f"`{row.extra['chosen']}`" if row.extra.get("chosen") else ""])
    return "\n".join(table([*columns, "what ran"], lines))


def _shape(problem: Problem) -> str:
    return f"{problem.m}x{problem.n}x{problem.k}"


def _us(value: float) -> str:
    """Three digits or more, and no more behind the point than are worth reading."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
