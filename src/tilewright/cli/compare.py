"""`tilewright compare`: two rungs, or files of yours, side by side.

Two kernels side by side as one HTML page that loads nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tilewright.cli import output
from tilewright.cli.arguments import AsJson, FormatName, OwnSize, chosen_problem, formats_of
from tilewright.cli.page_files import check_writable
from tilewright.cli.tables import NOTHING, Column, fitting_table
from tilewright.device.catalog import device as known_device
from tilewright.device.spec import DeviceSpec
from tilewright.errors import CompilerMissing
from tilewright.files import write_whole
from tilewright.ladders.rung import Rung
from tilewright.prediction import Prediction, predict_rung
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import blank_operands
from tilewright.report.templates import rendered
from tilewright.runtime.cubin_cache import CubinCache
from tilewright.schedule.schedule import diff
from tilewright.simulator import Counters, counting
from tilewright.toolchain import Build, build
from tilewright.units import format_seconds


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two kernels: its name, its idea, and its texts."""

    name: str
    idea: str
    schedule: str
    program: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of either text, or of both. kind: `same`, `changed`, `only-a`, `only-b`."""

    kind: str
    a_number: int | None
    a: str
    b_number: int | None
    b: str


def pairs(a: str, b: str) -> list[Pair]:
    """The lines of two texts laid side by side.

    >>> [(pair.kind, pair.a, pair.b) for pair in pairs("x\\ny", "x\\nz\\nw")]
    [('same', 'x', 'x'), ('changed', 'y', 'z'), ('only-b', '', 'w')]
    """
    left, right = a.splitlines(), b.splitlines()
    found: list[Pair] = []
    for change, i1, i2, j1, j2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for i, j in zip_longest(range(i1, i2), range(j1, j2)):
            kind = "only-b" if i is None else "only-a" if j is None else "same" if change == "equal" else "changed"
            of_a, of_b = (None, "") if i is None else (i + 1, left[i]), (None, "") if j is None else (j + 1, right[j])
            found.append(Pair(kind, *of_a, *of_b))
    return found


def page_text(a: Side, b: Side, counts: Sequence[tuple[str, str, str, str]]) -> str:
    """The page. counts: what, of a, of b, and the change in words."""
    texts = [
        ("Schedule", pairs(a.schedule, b.schedule)),
        ("Program", pairs(a.program, b.program)),
        ("CUDA", pairs(a.cuda, b.cuda)),
    ]
    page = files("tilewright.report") / "assets" / "comparison.html"
    return rendered(page, a=a, b=b, counts=counts, texts=texts)


EXAMPLES = (
    "tilewright compare worklog/5 worklog/6",
    "tilewright compare worklog/6 mine.py --size 512 --cuda",
    "tilewright compare hopper/3 hopper/4 --page compared.html",
)

DEFAULT_DEVICE = "H200"


@dataclass(frozen=True)
class Compared:
    """One of the two: built for its problem, simulated, and predicted where a compiler is installed."""

    rung: Rung
    built: Build
    counters: Counters
    predicted: Prediction | None


@dataclass(frozen=True, slots=True)
class Line:
    """A count of both. fewer_is_better: whether a smaller number means less work."""

    what: str
    first: float
    second: float
    text: str = "{:,.0f}"

    @property
    def change(self) -> str:
        """How much larger the second is, in percent."""
        if self.first == self.second:
            return "="
        return f"{100 * (self.second / self.first - 1):+.0f} %" if self.first else "new"


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A rung or FILE.py[:NAME].")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    size: OwnSize = None,
    dtype: FormatName = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="The GPU that is predicted for.")] = DEFAULT_DEVICE,
    cuda: Annotated[bool, typer.Option("--cuda", help="Also how the CUDA texts differ.")] = False,
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write both side by side as a page.")] = None,
    as_json: AsJson = False,
) -> int:
    """Lay two kernels side by side: schedules, simulated counts, predicted times and CUDA.

    Both compute the same size: --size, or that of A's file, or 256.
    """
    if page is not None:
        check_writable(page)
    spec = known_device(device)
    one = chosen_problem(first, size, **formats_of(dtype))
    sizes = f"{one[1].m}x{one[1].n}x{one[1].k}"
    with output.progress("simulating both"):
        a = _compared(*one, spec)
        b = _compared(*chosen_problem(second, sizes, **formats_of(dtype)), spec)
    lines = lines_of(a, b)
    if page is not None:
        counts = [(x.what, x.text.format(x.first), x.text.format(x.second), x.change) for x in lines]
        write_whole(page, page_text(_side(a), _side(b), counts))
    if as_json:
        output.print_json(
            {
                "a": a.rung.name,
                "b": b.rung.name,
                "size": sizes,
                "schedule": diff(a.built.schedule, b.built.schedule).text.splitlines(),
                "counts": [{"what": x.what, "a": x.first, "b": x.second} for x in lines],
            }
        )
        return 0
    _print(a, b, lines, sizes, spec, with_cuda=cuda)
    if page is not None:
        output.note(f"{page} ({page.stat().st_size / 1e3:.0f} kB)")
    return 0


def _compared(rung: Rung, gemm: Gemm, spec: DeviceSpec) -> Compared:
    rung = rung.on(spec)
    built = build(gemm, rung)
    run = built.simulate(blank_operands(built.gemm), detectors=False, arithmetic=counting())
    try:
        predicted = predict_rung(rung, gemm, spec, cache=CubinCache())
    except CompilerMissing:
        predicted = None
    return Compared(rung, built, run.counters, predicted)


def lines_of(a: Compared, b: Compared) -> list[Line]:
    """What is counted of both, and the predicted time in microseconds."""

    def line(what: str, of: str, text: str = "{:,.0f}") -> Line:
        values = []
        for one in (a, b):
            value: object = one.counters
            for name in of.split("."):
                value = getattr(value, name)
            values.append(float(value))  # type: ignore[arg-type]
        return Line(what, values[0], values[1], text)

    found = [
        Line("threads a block", a.built.source.threads_per_block, b.built.source.threads_per_block),
        Line("shared memory a block, bytes", a.built.kernel.shared_bytes, b.built.kernel.shared_bytes),
        line("blocks", "grid_blocks"),
        line("global load requests", "global_loads.requests"),
        line("global load sectors", "global_loads.sectors"),
        line("sectors a global load request", "global_loads.sectors_per_request", "{:.2f}"),
        line("fewest that hold its bytes", "global_loads.fewest_sectors_per_request", "{:.2f}"),
        line("bytes used of those loaded", "global_loads.used_share", "{:.0%}"),
        line("global store sectors", "global_stores.sectors"),
        line("bytes used of those stored", "global_stores.used_share", "{:.0%}"),
        line("shared load wavefronts", "shared_loads.wavefronts"),
        line("bank conflicts of shared loads", "shared_loads.excess_wavefronts"),
        line("shared store wavefronts", "shared_stores.wavefronts"),
        line("bank conflicts of shared stores", "shared_stores.excess_wavefronts"),
        line("TMA load bytes", "bulk_loads.size_bytes"),
        line("barriers a k step", "barriers_per_k_step", "{:.2f}"),
    ]
    if a.predicted is not None and b.predicted is not None:
        found.append(Line("predicted, us", a.predicted.seconds * 1e6, b.predicted.seconds * 1e6, "{:,.2f}"))
    return [line for line in found if line.first or line.second]


def _print(a: Compared, b: Compared, lines: list[Line], sizes: str, spec: DeviceSpec, *, with_cuda: bool) -> None:
    console = output.out()
    output.paragraph(console, f"{a.rung.title} and {b.rung.title} at {sizes}", style="bold")
    console.print()
    changed = diff(a.built.schedule, b.built.schedule).text
    for text in changed.splitlines() or ["the same schedule"]:
        console.print(Text(f"  {text}", "green" if text[0] == "+" else "red" if text[0] == "-" else ""), soft_wrap=True)
    console.print()
    columns: tuple[Column[Line], ...] = (
        Column("simulated", lambda line: line.what, 99, justify_left=True),
        Column(a.rung.name, lambda line: line.text.format(line.first), 98),
        Column(b.rung.name, lambda line: line.text.format(line.second), 97),
        Column("change", lambda line: NOTHING if line.change == "=" else line.change, 96),
    )
    console.print(fitting_table(console, columns, lines))
    if a.predicted is None or b.predicted is None:
        output.note("No times are predicted: that needs the compiler, python -m pip install 'tilewright[cuda]'.")
    else:
        console.print()
        for one in (a, b):
            assert one.predicted is not None
            output.paragraph(
                console,
                f"{one.rung.name} on {spec.name}: {format_seconds(one.predicted.seconds)} predicted, "
                f"limited by {one.predicted.binding.name}.",
            )
    if with_cuda:
        console.print()
        left, right = a.built.cuda.splitlines(), b.built.cuda.splitlines()
        for text in difflib.unified_diff(left, right, a.rung.name, b.rung.name, lineterm="", n=2):
            style = {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")
            console.print(Text(text, style), soft_wrap=True)


def _side(one: Compared) -> Side:
    return Side(one.rung.title, one.rung.idea, one.built.schedule.text, one.built.text, one.built.cuda)
