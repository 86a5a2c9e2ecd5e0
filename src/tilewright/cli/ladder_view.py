"""The ladder on a terminal: what each rung changed and claims, then a table of numbers that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from rich.console import Console
from rich.text import Text

from tilewright.cli.output import out, paragraph
from tilewright.cli.tables import NOTHING, Column, fitting_table
from tilewright.ir.buffer import Space
from tilewright.model.occupancy import Limit
from tilewright.problem.formats import format_name
from tilewright.report.collect import Checked, Row, Target
from tilewright.report.figures import Figure
from tilewright.simulator import Counters
from tilewright.simulator.counters import SharedCounts
from tilewright.units import KIB

_SHORT_LIMIT = {
    Limit.REGISTERS: "regs",
    Limit.SHARED: "shared",
    Limit.WARPS: "warps",
    Limit.BLOCKS: "blocks",
    Limit.BARRIERS: "barriers",
}


def ratio(value: float) -> str:
    """A count a request, three digits.

    >>> ratio(2.0), ratio(16.5), ratio(10 / 3)
    ('2', '16.5', '3.33')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def fraction(value: float) -> str:
    """Loads for a multiply-add as textbooks write them, where they are such a fraction.

    >>> fraction(2.0), fraction(1 / 16), fraction(1.125), fraction(0.3)
    ('2', '1/16', '9/8', '0.3')
    """
    near = Fraction(value).limit_denominator(4096)
    return str(near) if near == value and near.numerator <= 9 else ratio(value)


_WIDEST_TITLE = 18


def _rung(row: Row) -> str:
    """`6 vectorised`; the label alone where it says as much."""
    rung = row.rung
    title = rung.slug if rung.slug == rung.label else f"{rung.label} {rung.slug}"
    return title if len(title) <= _WIDEST_TITLE or rung.label.isdigit() else rung.label


def _error(row: Row) -> Text:
    if row.checked is None or row.problem:
        return Text("FAILS", "bold red")
    if not row.checked.ok:
        return Text("WRONG", "bold red")
    return Text(f"{row.checked.verdict.relative_error:.0e}", "green")


def _counted(cell: Callable[[Counters], Text | str]) -> Callable[[Row], Text | str]:
    """A cell of the counters; nothing where the rung could not be simulated."""
    return lambda row: NOTHING if row.checked is None else cell(row.checked.counters)


def _wavefronts(counters: Counters) -> Text | str:
    loads = counters.shared_loads
    return ratio(loads.wavefronts_per_request) if loads.requests else NOTHING


def _used(counters: Counters) -> Text | str:
    loads = counters.global_loads
    if not loads.requests:
        return NOTHING
    return Text(f"{loads.used_share:.0%}", "yellow" if loads.sectors > loads.fewest_sectors else "green")


def _conflicts(of: Callable[[Counters], SharedCounts]) -> Callable[[Counters], Text | str]:
    def cell(counters: Counters) -> Text | str:
        kept = of(counters)
        if not kept.wavefronts:
            return NOTHING
        return Text(f"{kept.conflict_share:.0%}", "yellow" if kept.excess_wavefronts else "green")

    return cell


def _barriers(counters: Counters) -> Text | str:
    return ratio(counters.barriers_per_k_step) if counters.barriers_per_block else NOTHING


def _per_fma(space: Space) -> Callable[[Row], Text | str]:
    """Loads by lanes for each multiply-add of the sum; that of the epilogue is left out, as textbooks do."""

    def cell(row: Row) -> Text | str:
        if row.checked is None:
            return NOTHING
        counters, accumulation = row.checked.counters, row.built.program.accumulation
        summed = counters if accumulation is None else counters.of_origin(accumulation.name)
        return fraction(counters.total("lanes", "load", space) / summed.fmas) if summed.fmas else NOTHING

    return cell


def _registers(row: Row) -> Text | str:
    if row.cubin is None:
        return NOTHING
    resources = row.cubin.resources
    spilled = resources.spill_store_bytes
    return Text(f"{resources.registers}+{spilled}B", "red") if spilled else str(resources.registers)


def _shared(row: Row) -> Text | str:
    if row.cubin is None:
        return NOTHING
    shared_bytes = row.cubin.resources.shared_bytes + row.built.source.dynamic_shared_bytes
    return f"{shared_bytes / KIB:.3g}" if shared_bytes else NOTHING


def _occupancy(row: Row) -> Text | str:
    found = row.occupancy
    if found is None:
        return NOTHING
    if Limit.WARPS in found.limited_by and found.fraction == 1:
        return "100%"
    first, *others = (_SHORT_LIMIT[limit] for limit in found.limited_by)
    return f"{found.fraction:.0%} {first}{'+' if others else ''}"


def _tflops(row: Row) -> Text | str:
    if row.figure is None:
        return NOTHING
    if row.figure.kind == "predicted":
        return Text(f"~{row.figure.tflops:.3g}", "italic")
    return Text(f"{row.figure.tflops:.3g}", "bold" if row.figure.kind == "measured" else "")


def _share(row: Row) -> Text | str:
    share = None if row.figure is None else row.figure.share_of_cublas
    return NOTHING if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


BARRIERS, OCCUPANCY = "bar./\nstep", "\noccupancy"
COLUMNS: tuple[Column[Row], ...] = (
    Column("\nrung", _rung, 99, justify_left=True),
    Column("\nerror", _error, 90),
    Column("\nsectors", _counted(lambda counters: ratio(counters.global_loads.sectors_per_request)), 60),
    Column("bytes\nused", _counted(_used), 58),
    Column("wave-\nfronts", _counted(_wavefronts), 55),
    Column("load\nconfl.", _counted(_conflicts(lambda counters: counters.shared_loads)), 70),
    Column("store\nconfl.", _counted(_conflicts(lambda counters: counters.shared_stores)), 68),
    Column("global\n/FMA", _per_fma(Space.GLOBAL), 50),
    Column("shared\n/FMA", _per_fma(Space.SHARED), 45),
    Column(BARRIERS, _counted(_barriers), 20),
    Column("\nregs", _registers, 40),
    Column("smem\nKiB", _shared, 10),
    Column(OCCUPANCY, _occupancy, 30),
    Column("\nTFLOP/s", _tflops, 95),
    Column("of\ncuBLAS", _share, 80),
)
LEGEND = {
    "\nerror": "error: norm against float64.",
    "\nsectors": "sectors: for each load request of global memory.",
    "wave-\nfronts": "wavefronts: for each load request of shared memory.",
    "bytes\nused": "bytes used: of those that global loads move, in whole sectors.",
    "store\nconfl.": "load, store conflicts: share of the wavefronts of shared loads, of shared stores, that are bank "
    "conflicts.",
    "global\n/FMA": "/FMA: loads for each multiply-add.",
    BARRIERS: "bar.: barriers a k step.",
}
"""What a column means, by its title."""


def print_ladder(rows: Sequence[Row], target: Target, *, brief: bool = False) -> None:
    """The whole answer to `tilewright ladder`: what each rung changed, then the table, which so stays on the screen."""
    console = out()
    for row in rows:
        if not brief or not row.ok:
            _print_rung(console, row)
            console.print()
    paragraph(console, _headline(rows, target), style="bold")
    console.print()
    table = fitting_table(console, COLUMNS, rows)
    console.print(table)
    console.print()
    shown = {column.header for column in table.columns}
    paragraph(console, " ".join(meaning for title, meaning in LEGEND.items() if title in shown), style="dim")
    for source in _sources(rows, occupancy=OCCUPANCY in shown):
        paragraph(console, source, style="dim")


def _headline(rows: Sequence[Row], target: Target) -> str:
    row = rows[0]
    gemm = row.built.gemm
    formats = " and ".join(dict.fromkeys(format_name(row.built.gemm) for row in rows))
    where = "the simulator" if target.gpu is None else target.gpu.name
    return f"{row.rung.ladder}: {formats}, {_size(gemm.m, gemm.n, gemm.k)}, checked against float64 on {where}"


def _size(m: int, n: int, k: int) -> str:
    return f"{m} x {n} x {k}"


def _sources(rows: Sequence[Row], *, occupancy: bool) -> list[str]:
    """Where the figures and the resources come from. occupancy: whether the table has that column."""
    known = any(row.figure is not None for row in rows)
    sources = list(dict.fromkeys(_source(row.figure) for row in rows if row.figure is not None or not known))
    compiled = next((row for row in rows if row.cubin is not None), None)
    if compiled is not None and compiled.cubin is not None:
        sources.append(f"Registers: {compiled.cubin.compiler} for {compiled.cubin.arch}.")
        if occupancy and compiled.occupancy is not None:
            sources[-1] += f" Occupancy: {compiled.occupancy.spec.name}, with what limits it."
    return sources


def _source(figure: Figure | None) -> str:
    if figure is None:
        return "TFLOP/s: not known; nothing was measured here, and there is no record."
    if figure.kind == "predicted":
        return f"~TFLOP/s: predicted for {figure.device} at {_size(*figure.size)}, not measured (tilewright predict)."
    when = "in this run" if figure.kind == "measured" else figure.date[:10]
    return f"TFLOP/s: {figure.kind} on {figure.device} at {_size(*figure.size)}, {when}."


def _print_rung(console: Console, row: Row) -> None:
    """What is new in a rung, and whether it is what it claims."""
    paragraph(console, f"{_rung(row)}: {row.rung.idea}", style="bold", hanging=2)
    for line in row.new.text.splitlines():
        paragraph(console, line, style="green" if line.startswith("+") else "red", indent=2, hanging=4)
    for line in row.problem.splitlines():
        paragraph(console, line.strip(), style="bold red", indent=2 + len(line) - len(line.lstrip()), hanging=2)
    if row.checked is not None:
        _print_check(console, row.checked)
    if row.figure is not None and not row.figure.verified:
        size = _size(*row.figure.size)
        paragraph(console, f"WRONG at {size}, where it was timed", style="bold red", indent=2, hanging=2)
    for word, asked, style in (("holds", True, "dim"), ("BROKEN", False, "bold red"), ("not asked here", None, "dim")):
        sentences = [claim.sentence for claim in row.claims if claim.holds is asked]
        if sentences:
            paragraph(console, f"{word}: {'; '.join(sentences)}", style=style, indent=2, hanging=2)


def _print_check(console: Console, checked: Checked) -> None:
    """What was wrong with the result, if anything was."""
    if not checked.verdict.ok:
        paragraph(console, f"WRONG: {checked.verdict.message}", style="bold red", indent=2, hanging=2)
    for finding in checked.findings:
        for line in str(finding).splitlines():
            paragraph(console, line.strip(), style="red", indent=2 + len(line) - len(line.lstrip()), hanging=2)
