"""`tilewright simulate`: one rung on the CPU, with counters and detectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from tilewright.cli import output
from tilewright.cli.arguments import AsJson, FormatName, OwnSize, RungName, chosen_problem, formats_of
from tilewright.cli.tables import Column, fitting_table
from tilewright.errors import UnknownName
from tilewright.problem.formats import format_name
from tilewright.problem.gemm import Gemm
from tilewright.problem.reference import Operands, make_operands
from tilewright.problem.tolerance import Verdict, check
from tilewright.simulator import Counters, Finding, Kind, OrderSearch
from tilewright.simulator.machine import ORDERS
from tilewright.simulator.search.orders import MOST_ORDERS
from tilewright.toolchain import Build, build, run_on_simulator

EXAMPLES = (
    "tilewright simulate worklog/6 --size 257x129x33",
    "tilewright simulate worklog/5 --size 128 --lda 140 --beta 0.5",
    "tilewright simulate worklog/3 --schedule warps --seed 7 --detectors races",
    "tilewright simulate hopper/best --size 256x384x128 --schedule search --most-orders 100",
    "tilewright simulate worklog/6 --json | jq '.counters.shared_loads'",
)

SEARCH = "search"
"""Asks for all orders, beside those of `simulate`."""

DETECTORS: dict[str, tuple[Kind, ...]] = {
    "races": (Kind.RACE, Kind.SAME_VALUE),
    "bounds": (Kind.OUT_OF_BOUNDS, Kind.MISALIGNED, Kind.OVERFLOW, Kind.COPY_SIZE),
    "unwritten": (Kind.UNWRITTEN,),
}
"""What each detector reports. Deadlock and broken barriers are always reported."""


_SEARCHED = ("blocks", "orders", "steps", "complete", "same_bits", "bound")


def simulate(
    rung: RungName,
    size: OwnSize = None,
    dtype: FormatName = None,
    lda: Annotated[int | None, typer.Option(help="Elements between rows of A; 0: as few as can be.")] = None,
    ldb: Annotated[int | None, typer.Option(help="Elements between rows of B.")] = None,
    ldc: Annotated[int | None, typer.Option(help="Elements between rows of C.")] = None,
    alpha: Annotated[float | None, typer.Option(help="C = alpha * A @ B + beta * C. Default: 1.")] = None,
    beta: Annotated[float | None, typer.Option(help="With 0, the default, C is not read.")] = None,
    detectors: Annotated[
        str, typer.Option(metavar="NAMES", help="What to look for: all, none, or some of races,bounds,unwritten.")
    ] = "all",
    schedule: Annotated[
        str,
        typer.Option(
            metavar="ORDER",
            help="How warps are scheduled. lockstep: together; warps: each in a drawn order; moments: with stops at "
            "drawn moments, too; search: every order that can matter, one after the other.",
        ),
    ] = "lockstep",
    most_orders: Annotated[
        int | None, typer.Option(min=1, help=f"Of a search: orders of one block, at most. Default: {MOST_ORDERS}.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the operands, and of the order of warps.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Run a rung on the CPU at any size, with counters and detectors.

    The result is held against float64. Fails if it is wrong, or if a detector finds that a rule is broken.
    """
    looked_for = _kinds(detectors)
    if schedule not in (*ORDERS, SEARCH):
        raise UnknownName("schedule", schedule, [*ORDERS, SEARCH])
    if most_orders is not None and schedule != SEARCH:
        raise typer.BadParameter(f"--most-orders is of a search: add --schedule {SEARCH}, or leave it out.")
    given = {"lda": lda, "ldb": ldb, "ldc": ldc, "alpha": alpha, "beta": beta}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    found, gemm = chosen_problem(rung, size, **asked, **formats_of(dtype))
    built = build(gemm, found)
    with output.progress(f"simulating {found.name}") as step:
        operands = make_operands(gemm, seed=seed)
        computed, run = run_on_simulator(
            built,
            operands,
            detectors=not looked_for.isdisjoint({Kind.RACE, Kind.UNWRITTEN}),
            on_finding="collect",
            schedule="lockstep" if schedule == SEARCH else schedule,
            seed=seed,
            progress=lambda done, total: step("", done, total),
        )
        step(f"checking {found.name} against float64", 0, 0)
        verdict = check(operands, computed)
    searched = _searched(built, operands, most_orders or MOST_ORDERS) if schedule == SEARCH and not run.errors else None
    every = (*run.findings, *(searched.errors if searched else ()))
    findings = [finding for finding in every if finding.kind in looked_for]
    ok = verdict.ok and run.completed and not any(finding.kind.is_error for finding in findings)
    ok = ok and (searched is None or searched.same_bits)
    if as_json:
        found_in_orders = {} if searched is None else {"search": output.picked(searched, *_SEARCHED)}
        output.print_json(_as_dict(found.name, gemm, verdict, ok, run.counters, findings) | found_in_orders)
    else:
        _print(found.title, gemm, verdict, run.counters, findings, is_looking=detectors != "none")
        if searched is not None:
            style = "green" if searched.ok and searched.complete else "yellow" if searched.ok else "bold red"
            output.paragraph(output.out(), f"All orders: {searched}.", hanging=2, style=style)
    return 0 if ok else 1


def _searched(built: Build, operands: Operands, most_orders: int) -> OrderSearch:
    """All orders; of a persistent kernel one block, or cluster, computes all tiles one after the other."""
    with output.progress("searching orders") as step:
        return built.search_orders(
            operands,
            most_orders=most_orders,
            resident_blocks=built.kernel.cluster,
            progress=lambda done, total: step("", done, total),
        )


def _kinds(text: str) -> set[Kind]:
    """The kinds of findings that "races,bounds", "all" or "none" asks for."""
    always = set(Kind) - {kind for kinds in DETECTORS.values() for kind in kinds}
    if text == "all":
        return set(Kind)
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in DETECTORS:
            raise UnknownName("detector", name, [*DETECTORS, "all", "none"])
    return always | {kind for name in names for kind in DETECTORS[name]}


def _as_dict(
    name: str, gemm: Gemm, verdict: Verdict, ok: bool, counters: Counters, findings: Sequence[Finding]
) -> dict[str, object]:
    return {
        "rung": name,
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "ok": ok,
        "verified": verdict.ok,
        "error": verdict.relative_error,
        "verdict": verdict.message,
        "findings": [
            {
                "kind": finding.kind.name.lower(),
                "is_error": finding.kind.is_error,
                **output.picked(finding, "headline", "place", "buffer", "occurrences"),
            }
            for finding in findings
        ],
        "counters": counters.as_dict(),
    }


def _print(
    title: str, gemm: Gemm, verdict: Verdict, counters: Counters, findings: Sequence[Finding], *, is_looking: bool
) -> None:
    console = output.out()
    output.paragraph(console, f"{title}: {gemm.m} x {gemm.n} x {gemm.k}, {format_name(gemm)}", style="bold")
    word, style = ("right", "green") if verdict.ok else ("WRONG", "bold red")
    output.paragraph(console, f"{word}: {verdict.message}", style=style)
    if is_looking and not findings:
        output.paragraph(console, "nothing found by the detectors", style="green")
    _print_findings(console, findings)
    console.print()
    console.print(fitting_table(console, COLUMNS, _traffic(counters)))
    console.print()
    instructions = ", ".join(f"{amount:,} {opcode}" for opcode, amount in counters.instructions.items() if amount)
    output.paragraph(console, f"Warp instructions: {instructions or 'none'}.", hanging=2)
    output.paragraph(
        console,
        f"{counters.blocks:,} x {counters.warps_per_block} warps; {counters.barriers_per_block:g} barriers a "
        f"block, {counters.barriers_per_k_step:g} a k step; {counters.divergent_branches:,} divergent branches, "
        f"{counters.guarded_off_lanes:,} lanes predicated off by a guard.",
        hanging=2,
    )


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    for finding in findings:
        times = f" ({finding.occurrences} times)" if finding.occurrences > 1 else ""
        head, *rest = str(finding).splitlines()
        word = finding.kind.value if finding.kind.is_error else f"note, {finding.kind.value}"
        output.paragraph(console, f"{word}: {head}{times}", style="bold red" if finding.kind.is_error else "yellow")
        for line in rest:
            output.paragraph(console, line.strip(), indent=len(line) - len(line.lstrip()), hanging=2)


@dataclass(frozen=True, slots=True)
class _Traffic:
    """One direction of one memory: what its requests take in all, what each does and at least must."""

    name: str
    requests: str
    in_all: str
    each: str
    fewest: str = "-"
    used: str = "-"
    conflicts: str = "-"


COLUMNS: tuple[Column[_Traffic], ...] = (
    Column("memory", lambda row: row.name, 99, justify_left=True),
    Column("  requests", lambda row: row.requests, 95),
    Column("  a request", lambda row: f"  {row.each}", 90),
    Column("  fewest", lambda row: row.fewest, 70),
    Column("  in all", lambda row: f"  {row.in_all}", 60),
    Column("  bytes used", lambda row: row.used, 75),
    Column("  conflicts", lambda row: row.conflicts, 80),
)


def _traffic(counters: Counters) -> list[_Traffic]:
    """A row for each direction of each memory."""
    rows = []
    for name, moved in (("global loads", counters.global_loads), ("global stores", counters.global_stores)):
        each, fewest = f"{moved.sectors_per_request:.3g} sectors", f"{moved.fewest_sectors_per_request:.3g}"
        used = f"{moved.used_share:.0%}" if moved.requests else "-"
        rows.append(_Traffic(name, f"{moved.requests:,}", f"{moved.sectors:,}", each, fewest, used))
    for name, kept in (("shared loads", counters.shared_loads), ("shared stores", counters.shared_stores)):
        each, fewest = f"{kept.wavefronts_per_request:.3g} wavefronts", f"{kept.ideal_wavefronts_per_request:.3g}"
        lost = f"{kept.excess_wavefronts:,}"
        rows.append(_Traffic(name, f"{kept.requests:,}", f"{kept.wavefronts:,}", each, fewest, conflicts=lost))
    for name, boxes in (("TMA loads", counters.bulk_loads), ("TMA stores", counters.bulk_stores)):
        if boxes.boxes:
            each = f"{boxes.sectors / boxes.boxes:.4g} sectors"
            rows.append(_Traffic(name, f"{boxes.boxes:,}", f"{boxes.sectors:,}", each))
    return rows
