"""The ladder on a terminal: a table of numbers that fits, then what each rung changed and claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.output import out, paragraph
from tilewright.ir.buffer import Space
from tilewright.model.occupancy import Limit
from tilewright.report.collect import Row, Target
from tilewright.report.figures import Figure
from tilewright.units import KIB


@dataclass(frozen=True, slots=True)
class Column:
    """One column. title: two lines. keep: columns with the lowest number go first where the terminal is narrow."""

    title: str
    cell: Callable[[Row], Text | str]
    keep: int
    justify_left: bool = False


_SHORT_LIMIT = {
    Limit.REGISTERS: "regs",
    Limit.SHARED: "shared",
    Limit.WARPS: "warps",
    Limit.BLOCKS: "blocks",
    Limit.BARRIERS: "barriers",
}


def ratio(value: float) -> str:
    """A count per something: a short fraction where it is one, else three digits.

    >>> ratio(2.0), ratio(0.0625), ratio(1.125), ratio(0.3), ratio(1234.5678)
    ('2', '1/16', '9/8', '0.3', '1235')
    """
    near = Fraction(value).limit_denominator(1024)
    if near == value and (near.denominator == 1 or near.numerator in (1, 9)):
        return str(near)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _rung(row: Row) -> str:
    return f"{row.rung.number} {row.rung.slug}"


def _error(row: Row) -> Text:
    if not row.verdict.ok or row.findings:
        return Text("WRONG", "bold red")
    return Text(f"{row.verdict.relative_error:.0e}", "green")


def _sectors(row: Row) -> str:
    return ratio(row.counters.global_loads.sectors_per_request)


def _wavefronts(row: Row) -> Text | str:
    loads = row.counters.shared_loads
    return ratio(loads.wavefronts_per_request) if loads.requests else Text("-", "dim")


def _conflicts(row: Row) -> Text | str:
    loads, stores = row.counters.shared_loads, row.counters.shared_stores
    requests = loads.requests + stores.requests
    if not requests:
        return Text("-", "dim")
    excess = (loads.excess_wavefronts + stores.excess_wavefronts) / (loads.wavefronts + stores.wavefronts)
    return Text(f"{excess:.0%}", "yellow" if excess else "green")


def _barriers(row: Row) -> Text | str:
    return ratio(row.counters.barriers_per_k_step) if row.built.kernel.shared else Text("-", "dim")


def _registers(row: Row) -> Text | str:
    resources = row.cubin.resources
    spilled = resources.spill_store_bytes
    return Text(f"{resources.registers}+{spilled}B", "red") if spilled else str(resources.registers)


def _shared(row: Row) -> Text | str:
    shared_bytes = row.cubin.resources.shared_bytes + row.built.source.dynamic_shared_bytes
    return f"{shared_bytes / KIB:g}" if shared_bytes else Text("-", "dim")


def _occupancy(row: Row) -> Text | str:
    found = row.occupancy
    if found is None:
        return Text("-", "dim")
    if Limit.WARPS in found.limited_by and found.fraction == 1:
        return "100%"
    first, *others = (_SHORT_LIMIT[limit] for limit in found.limited_by)
    return f"{found.fraction:.0%} {first}{'+' if others else ''}"


def _tflops(row: Row) -> Text | str:
    if row.figure is None:
        return Text("-", "dim")
    return Text(f"{row.figure.tflops:.3g}", "bold" if row.figure.kind == "measured" else "")


def _share(row: Row) -> Text | str:
    share = None if row.figure is None else row.figure.share_of_cublas
    return Text("-", "dim") if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _per_fma(space: Space) -> Callable[[Row], str]:
    """Loads by lanes for each multiply-add of the sum; that of the epilogue is left out, as textbooks do."""

    def cell(row: Row) -> str:
        accumulation = row.built.program.accumulation
        summed = row.counters if accumulation is None else row.counters.of_origin(accumulation.name)
        fmas = summed.fmas
        return ratio(row.counters.total("lanes", "load", space) / fmas) if fmas else "-"

    return cell


COLUMNS = (
    Column("\nrung", _rung, 99, justify_left=True),
    Column("\nerror", _error, 90),
    Column("\nsectors", _sectors, 60),
    Column("wave-\nfronts", _wavefronts, 55),
    Column("con-\nflicts", _conflicts, 70),
    Column("global\n/FMA", _per_fma(Space.GLOBAL), 50),
    Column("shared\n/FMA", _per_fma(Space.SHARED), 45),
    Column("bar./\nstep", _barriers, 20),
    Column("\nregs", _registers, 40),
    Column("smem\nKiB", _shared, 10),
    Column("\noccupancy", _occupancy, 30),
    Column("\nTFLOP/s", _tflops, 95),
    Column("of\ncuBLAS", _share, 80),
)
LEGEND = (
    "error: norm against float64. sectors, wavefronts: for each load request of global, of shared memory. conflicts: "
    "share of shared wavefronts lost to bank conflicts. /FMA: loads for each multiply-add. bar.: barriers a k step."
)


def print_ladder(rows: Sequence[Row], target: Target) -> None:
    """The whole answer to `tilewright ladder`."""
    console = out()
    paragraph(console, _headline(rows, target), style="bold")
    console.print()
    console.print(_table(rows, console))
    console.print()
    paragraph(console, LEGEND, style="dim")
    for source in _sources(rows):
        paragraph(console, source, style="dim")
    for row in rows:
        console.print()
        _print_rung(console, row)


def _headline(rows: Sequence[Row], target: Target) -> str:
    row = rows[0]
    gemm, counted = row.built.gemm, row.counted
    where = "the simulator" if target.gpu is None else row.verified_on
    also = "" if counted == gemm else f", counted at {_size(counted.m, counted.n, counted.k)}"
    size = _size(gemm.m, gemm.n, gemm.k)
    return f"{row.rung.ladder}: {gemm.dtype.name}, {size}, checked against float64 on {where}{also}"


def _size(m: int, n: int, k: int) -> str:
    return f"{m} x {n} x {k}"


def _table(rows: Sequence[Row], console: Console) -> Table:
    """As many columns as fit; the least telling go first."""
    columns = list(COLUMNS)
    while True:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0, header_style="dim")
        for column in columns:
            table.add_column(column.title, justify="left" if column.justify_left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(column.cell(row) for column in columns))
        roomy = console.options.update(width=1000)
        if len(columns) <= 2 or console.measure(table, options=roomy).maximum <= console.width:
            return table
        columns.remove(min(columns, key=lambda column: column.keep))


def _sources(rows: Sequence[Row]) -> list[str]:
    """Where the figures and the resources come from."""
    first = rows[0]
    compiled = f"Registers: {first.cubin.compiler} for {first.cubin.arch}."
    if first.occupancy is not None:
        compiled += f" Occupancy: {first.occupancy.spec.name}, with what limits it."
    return [*dict.fromkeys(_source(row.figure) for row in rows), compiled]


def _source(figure: Figure | None) -> str:
    if figure is None:
        return "TFLOP/s: not known; nothing was measured here, and there is no record."
    when = "in this run" if figure.kind == "measured" else figure.date[:10]
    return f"TFLOP/s: {figure.kind} on {figure.device} at {_size(*figure.size)}, {when}."


def _print_rung(console: Console, row: Row) -> None:
    """What is new in a rung, and whether it is what it claims."""
    paragraph(console, f"{_rung(row)}: {row.rung.idea}", style="bold", hanging=2)
    for line in row.new.text.splitlines():
        paragraph(console, line, style="green" if line.startswith("+") else "red", indent=2, hanging=4)
    if not row.verdict.ok:
        paragraph(console, f"WRONG: {row.verdict.message}", style="bold red", indent=2, hanging=2)
    for finding in row.findings:
        for line in str(finding).splitlines():
            paragraph(console, line, style="red", indent=2 + len(line) - len(line.lstrip()))
    for word, asked, style in (("holds", True, "dim"), ("BROKEN", False, "bold red"), ("not asked here", None, "dim")):
        sentences = [claim.sentence for claim in row.claims if claim.holds is asked]
        if sentences:
            paragraph(console, f"{word}: {'; '.join(sentences)}", style=style, indent=2, hanging=2)
