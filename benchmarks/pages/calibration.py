"""docs/calibration.md: what hardware counted beside what is simulated, from the records and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibration.counting import recounted, simulated, source_digest
from calibration.differences import DIFFERENCES, OfRung, by_rung, explanation, is_unexplained
from calibration.records import EXACT, METRICS, Calibration, Comparison, read

from pages.markdown import table
from tilewright.bench.records import recorded_folder
from tilewright.errors import TilewrightError
from tilewright.ladders import LADDERS, find_rung
from tilewright.toolchain import build
from tilewright.units import counted

_FROM_ADDRESSES = (
    ("global_load_requests", "global load requests"),
    ("global_load_sectors", "global load sectors"),
    ("global_store_requests", "global store requests"),
    ("global_store_sectors", "global store sectors"),
    ("shared_load_requests", "shared load requests"),
    ("shared_store_requests", "shared store requests"),
    ("ldmatrix_requests", "ldmatrix"),
    ("async_copy_requests", "cp.async"),
    ("shared_wavefronts", "shared wavefronts"),
    (CONFLICTS := "conflicts", "bank conflicts"),
)
_FROM_HARDWARE = (
    ("hardware_shared_load_wavefronts", "load wavefronts"),
    ("hardware_shared_store_wavefronts", "store wavefronts"),
    ("fma_instructions", "FFMA, by thread"),
    ("lsu_pipe_instructions", "load/store pipe"),
    ("fma_pipe_instructions", "FMA pipe"),
    ("tensor_pipe_instructions", "tensor pipe"),
    ("all_instructions", "all pipes"),
)
_ESTIMATED = (
    ("l2_hit_rate_percent", "L2 hit rate, %"),
    ("achieved_occupancy_percent", "occupancy, %"),
)
_INTRODUCTION = """\
# Simulated counts against hardware counters

Written by `benchmarks/write_page.py calibration` from `benchmarks/results/calibration_*.json`; no number
here is typed by hand. `python benchmarks/calibrate.py --record FILE` takes a new record on a machine with an NVIDIA GPU
and Nsight Compute, which it runs with `--clock-control none`.

One number in a cell means that both sides say the same. Two numbers are *simulated / counted*, and the letter names
the reason, below. A dash stands where that side has no figure in the record. Kernels are compiled so that each access
of the text is one that runs (`docs/decisions/0002`).
"""
_BY_WGMMA = (
    "On ladder hopper no thread loads from shared memory: beside the wavefronts of its stores there are those, of 128",
    "bytes each, in which wgmma reads its operands. Nsight Compute adds both up, and so does this page.",
)


def page(found: Sequence[Calibration]) -> str:
    """The page, as Markdown. Of a rung that was counted twice on one device at one size, the newest record counts."""
    lines = [_INTRODUCTION]
    groups = dict.fromkeys((one.device, one.size) for one in found)
    for device, size in groups:
        same = [one for one in found if (one.device, one.size) == (device, size)]
        lines += _section(device, size, same)
    return "\n".join(lines).rstrip() + "\n"


def _section(device: str, size: int, found: Sequence[Calibration]) -> list[str]:
    newest: dict[str, dict[str, Comparison]] = {}
    for one in found:
        newest |= by_rung(one.rows)
    order = [rung.name for ladder in LADDERS.values() for rung in ladder]
    rungs = {name: newest[name] for name in order if name in newest}
    exact = [row for rung in rungs.values() for row in rung.values() if row.count in EXACT]
    equal = sum(row.is_equal for row in exact)
    strange = [row for rung in rungs.values() for row in rung.values() if is_unexplained(row, rung)]
    said = f"{len(exact) - equal} differ for a reason below" if not any(r.count in EXACT for r in strange) else ""
    lines = [f"## {device}, {size} x {size} x {size}", ""]
    lines += [f"* Counted on {one.date[:10]} by `{one.command}`.{one.note and ' '}{one.note}" for one in found]
    lines += [
        "",
        f"{len(rungs)} rungs. Of {len(exact)} counts that follow from addresses alone, {equal} are equal"
        f"{f', and {said}' if said and equal < len(exact) else ''}. "
        + ("Every difference is explained." if not strange else f"{len(strange)} differences are not explained yet."),
        "",
        *_by_ladder(rungs),
        "",
    ]
    lines += ["### From addresses", "", *_table(rungs, _FROM_ADDRESSES), ""]
    lines += ["### From the hardware's own counters", "", *_table(rungs, _FROM_HARDWARE), ""]
    lines += ["### Estimates", "", *_table(rungs, _ESTIMATED), ""]
    lines += ["### Why they differ", "", *_reasons(rungs), ""]
    failed = {name: why for one in found for name, why in one.failed.items() if name not in rungs}
    lines += [f"Not counted: {name}: {why.splitlines()[0]}" for name, why in failed.items()]
    return lines


def _by_ladder(rungs: Mapping[str, OfRung]) -> list[str]:
    """How many counts from addresses are equal on each ladder, of those that were measured."""
    cells = []
    told: list[str] = []
    for ladder in LADDERS:
        of_ladder = [rung for name, rung in rungs.items() if name.partition("/")[0] == ladder]
        exact = [row for rung in of_ladder for row in rung.values() if row.count in EXACT and row.measured is not None]
        equal = sum(row.is_equal for row in exact)
        if of_ladder:
            cells.append((ladder, len(of_ladder), len(exact), equal))
        if ladder == "hopper" and of_ladder:
            all_equal = f"All {equal} counts of its {len(of_ladder)} rungs are equal." if equal == len(exact) else ""
            told = ["", *_BY_WGMMA, *([all_equal] if all_equal else [])]
    return [*table(("ladder", "rungs:", "counts from addresses:", "equal:"), cells), *told]


def _table(rungs: Mapping[str, OfRung], columns: Sequence[tuple[str, str]]) -> list[str]:
    """A row for each rung; columns that no record has are left out."""
    kept = [(count, title) for count, title in columns if any(_has(rung, count) for rung in rungs.values())]
    cells = [(name, *(_cell(rung, count) for count, _ in kept)) for name, rung in rungs.items()]
    return table(("rung", *(f"{title}:" for _, title in kept)), cells)


def _has(rung: OfRung, count: str) -> bool:
    return count == CONFLICTS or count in rung


def _cell(rung: OfRung, count: str) -> str:
    if count == CONFLICTS:
        return _conflicts(rung)
    row = rung.get(count)
    if row is None or (row.simulated is None and row.measured is None):
        return ""
    if row.is_equal:
        return _number(row.simulated)
    why = explanation(row, rung)
    letter = f" {_letter(DIFFERENCES.index(why))}" if why else " **?**" if is_unexplained(row, rung) else ""
    return f"{_number(row.simulated)} / {_number(row.measured)}{letter}"


def _conflicts(rung: OfRung) -> str:
    """Wavefronts beyond those that the accesses would take without conflicts, on both sides."""
    all_of, ideal = rung["shared_wavefronts"], rung["shared_wavefronts_ideal"]
    simulated = (all_of.simulated or 0) - (ideal.simulated or 0)
    measured = (all_of.measured or 0) - (ideal.measured or 0)
    if simulated == measured:
        return _number(simulated)
    why = explanation(all_of, rung)
    return f"{_number(simulated)} / {_number(measured)} {_letter(DIFFERENCES.index(why)) if why else '**?**'}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}".rstrip("0")


def _letter(index: int) -> str:
    """
    >>> _letter(0)
    '(a)'
    """
    return f"({chr(ord('a') + index)})"


def _reasons(rungs: Mapping[str, OfRung]) -> list[str]:
    """Each kind of difference that occurs: what it is, how often, and by how much."""
    lines = []
    for index, one in enumerate(DIFFERENCES):
        rows = [row for rung in rungs.values() for row in rung.values() if explanation(row, rung) is one]
        if rows:
            lines.append(f"* **{_letter(index)} {one.title}** ({counted(len(rows), 'cell')}{_range(rows)}). {one.why}")
    strange = [row for rung in rungs.values() for row in rung.values() if is_unexplained(row, rung)]
    for row in strange:
        numbers = f"{_number(row.simulated)} simulated, {_number(row.measured)} counted"
        lines.append(f"* **? not explained yet**: {row.rung}, {row.count} (`{METRICS[row.count]}`): {numbers}.")
    return lines or ["Nothing differs."]


def _range(rows: Sequence[Comparison]) -> str:
    """The smallest and largest share of counted in simulated."""
    shares = [row.measured / row.simulated for row in rows if row.simulated and row.measured]
    if not shares:
        return ""
    least, most = (f"{share:.4f}" for share in (min(shares), max(shares)))
    return f"; counted / simulated is {least}" if least == most else f"; counted / simulated is {least} to {most}"


def recorded() -> list[Calibration]:
    """The calibrations that are kept, oldest first."""
    found = [read(path) for path in sorted(recorded_folder().glob("calibration_*.json"))]
    return sorted(found, key=lambda one: one.date)


def recount(found: Calibration) -> tuple[Calibration, list[str]]:
    """A record with what today's simulator counts, and the rungs left as they were: of these the kernel is another.

    What was measured stays, and so do the estimates, which follow from a compiled kernel.
    """
    left = []
    names = list(dict.fromkeys(row.rung for row in found.rows))
    for name in names:
        digest = _digest_of_rung(name, found.size)
        if digest is None or found.sources.get(name) != digest:
            left.append(name)
        else:
            rows = recounted(found.of_rung(name), simulated(find_rung(name), found.size))
            found = found.with_rung(name, digest, rows)
    return found, left


def _digest_of_rung(name: str, size: int) -> str | None:
    """None where there is no such rung any more."""
    try:
        rung = find_rung(name)
    except TilewrightError:
        return None
    return source_digest(build(rung.gemm(size, size, size), rung))
