"""What the page says of one rung: its texts, its counts beside those of the rung below, its pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, TypeVar

from tilewright.errors import TilewrightError
from tilewright.ladders import below
from tilewright.ladders.rung import Rung
from tilewright.problem.formats import format_name
from tilewright.report.collect import Row
from tilewright.report.costs import costs_of
from tilewright.report.explain import owner, sentence
from tilewright.report.outlook import Outlook
from tilewright.report.page.banks import bank_maps
from tilewright.report.page.loads import loads
from tilewright.report.page.owners import hierarchy
from tilewright.report.page.timeline import timeline
from tilewright.report.page.watch import watch
from tilewright.simulator import Counters
from tilewright.toolchain import Build
from tilewright.units import format_bytes

Made = TypeVar("Made")

_EXPLAINED_STEPS = 4
"""Steps over k that are simulated to say what each line costs: what a step costs, every step costs."""


@dataclass(frozen=True)
class Line:
    """A line of the schedule. mark: "+" if the rung below lacks it, "-" if only that has it, "" for both."""

    mark: str
    text: str
    costs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Count:
    """One count of a rung, and of the rung below, as text. better: whether it improved; None where that cannot be said:
    it is the same, or both are the fewest possible for what they ask. fewest: the fewest possible, "" where unknown."""

    name: str
    value: str
    before: str
    better: bool | None
    fewest: str
    what: str


@dataclass(frozen=True)
class RungView:
    """One rung as the page shows it. pictures: plain values for the scripts; {} where `row.problem` says why.

    outlook: what to try next; None where the rung cannot run on the device, or no compiler is installed.
    """

    row: Row
    lines: tuple[Line, ...]
    counts: tuple[Count, ...]
    resources: tuple[tuple[str, str], ...]
    program: str
    cuda: str
    pictures: dict[str, Any]
    outlook: Outlook | None = None

    @property
    def rung(self) -> Rung:
        return self.row.rung

    @property
    def format(self) -> str:
        return format_name(self.row.built.gemm)


def view_of(row: Row, before: Row | None) -> RungView:
    """before: the row of the rung that this one builds on; None for the lowest, and where it is not shown."""
    built = row.built
    return RungView(
        row=row,
        lines=_lines(row),
        counts=_counts(row, before),
        resources=_resources(row),
        program=_if_possible(lambda: built.text, ""),
        cuda=_if_possible(lambda: built.cuda, ""),
        pictures=_if_possible(lambda: _pictures(built), {}),
    )


def _if_possible(make: Callable[[], Made], otherwise: Made) -> Made:
    """What a kernel that cannot be built or run has none of; its row says why."""
    try:
        return make()
    except TilewrightError:
        return otherwise


def _pictures(built: Build) -> dict[str, Any]:
    watched = watch(built)
    return {
        "tiles": hierarchy(watched),
        "loads": loads(watched),
        "banks": bank_maps(watched),
        "timeline": timeline(watched),
    }


def _lines(row: Row) -> tuple[Line, ...]:
    """The schedule with what each line costs, changes against the rung below marked where they are."""
    nothing: dict[int, list[str]] = {}
    costs = _if_possible(lambda: _costs_by_step(row.built), nothing)
    lower, new = below(row.rung), row.built.schedule.steps
    old = new if lower is None else lower.schedule(row.built.gemm).steps
    lines: list[Line] = []
    for change, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if change != "equal":
            lines += [Line("-", repr(step)) for step in old[i1:i2]]
        mark = "" if change == "equal" else "+"
        lines += [Line(mark, repr(new[at]), tuple(costs.get(at, ()))) for at in range(j1, j2)]
    return tuple(lines)


def _costs_by_step(built: Build) -> dict[int, list[str]]:
    gemm, tile = built.gemm, built.kernel.tile
    corner = replace(
        gemm,
        m=min(gemm.m, tile["m"] * built.kernel.cluster),
        n=min(gemm.n, tile["n"] * built.kernel.cluster),
        k=min(gemm.k, _EXPLAINED_STEPS * tile["k"]),
    )
    _, costs = costs_of(replace(built, gemm=corner))
    found: dict[int, list[str]] = {}
    for cost in costs:
        at = owner(cost, built.schedule.steps)
        if at is not None and not cost.is_predicated_off:
            found.setdefault(at, []).append(sentence(cost))
    return found


# -- counts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Figure:
    """fewest: what the value would be at least for the same requests; None where no such number exists."""

    value: float
    fewest: float | None = None
    is_share: bool = False
    more_is_better: bool = False

    @property
    def text(self) -> str:
        if self.is_share:
            return f"{100 * self.value:.0f} %"
        return "none" if self.value == 0 else _short(self.value)

    def better(self, other: _Figure) -> bool | None:
        """Wide requests take more sectors and wavefronts: beyond the fewest possible is what counts of these."""
        if self.fewest is not None and other.fewest is not None:
            mine, theirs = self.value / (self.fewest or 1.0), other.value / (other.fewest or 1.0)
        else:
            mine, theirs = self.value, other.value
        return None if mine == theirs else (mine > theirs) is self.more_is_better


_COUNTS = (
    ("Sectors per global load", "sectors", "32-byte pieces of memory that one request of a warp touches"),
    ("Bytes used of those loaded", "used", "of the bytes in these sectors; the others are moved for nothing"),
    ("Bytes loaded per result", "bytes", "whole sectors of A, B and C, by lanes and by TMA"),
    ("Sectors per global store", "stored", "the same for requests that write"),
    ("Shared loads per multiply-add", "shared", "load instructions of lanes; fewer where registers are used again"),
    ("Wavefronts per shared load", "waves", "passes of the data pipe that one request of a warp takes"),
    ("Bank conflicts of shared loads", "lost", "share of their wavefronts that is beyond the fewest possible"),
    ("Bank conflicts of shared stores", "stores_lost", "the same for requests that write"),
    ("Barriers per step over k", "barriers", "how often all warps of a block wait for each other"),
)


def _counts(row: Row, before: Row | None) -> tuple[Count, ...]:
    """What neither rung has any of is left out."""
    if row.checked is None:
        return ()
    mine = _figures(row.checked.counters)
    theirs = {} if before is None or before.checked is None else _figures(before.checked.counters)
    found = []
    for name, key, what in _COUNTS:
        value, other = mine.get(key), theirs.get(key)
        if value is None or not (value.value or (other is not None and other.value)):
            continue
        better = None if other is None else value.better(other)
        fewest = "" if value.fewest is None else _short(value.fewest)
        found.append(Count(name, value.text, "" if other is None else other.text, better, fewest, what))
    return tuple(found)


def _figures(counters: Counters) -> dict[str, _Figure]:
    """What the kernel has none of is left out."""
    moved, written = counters.global_loads, counters.global_stores
    loads, stores = counters.shared_loads, counters.shared_stores
    results, fmas = max(counters.results, 1), max(counters.fmas, 1)
    found = {
        "bytes": _Figure((moved.bytes_moved + counters.bulk_loads.bytes_moved) / results),
        "shared": _Figure(loads.lanes / fmas),
        "barriers": _Figure(counters.barriers_per_k_step),
    }
    if moved.requests:
        found["sectors"] = _Figure(moved.sectors_per_request, moved.fewest_sectors_per_request)
        found["used"] = _Figure(moved.used_share, is_share=True, more_is_better=True)
    if written.requests:
        found["stored"] = _Figure(written.sectors_per_request, written.fewest_sectors_per_request)
    if loads.requests:
        found["waves"] = _Figure(loads.wavefronts_per_request, loads.ideal_wavefronts_per_request)
        found["lost"] = _Figure(loads.conflict_share, is_share=True)
    if stores.requests:
        found["stores_lost"] = _Figure(stores.conflict_share, is_share=True)
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# -- resources ---------------------------------------------------------------------------------------------------------


def _resources(row: Row) -> tuple[tuple[str, str], ...]:
    """What the compiler made of it, and what follows for the SM."""
    if row.cubin is None:
        return ()
    used, source = row.cubin.resources, row.built.source
    spilled = used.spill_store_bytes + used.spill_load_bytes
    found = [
        ("Compiled for", f"{row.cubin.arch}, {row.cubin.compiler}"),
        ("Threads in a block", f"{source.threads_per_block}"),
        ("Registers a thread", f"{used.registers}" + (f", {spilled} bytes spilled" if spilled else ", none spilled")),
        ("Shared memory a block", format_bytes(used.shared_bytes + source.dynamic_shared_bytes)),
    ]
    if row.occupancy is not None:
        warps = row.occupancy.blocks_per_sm * row.occupancy.warps_per_block
        share = f"{warps} warps: {row.occupancy.fraction:.0%} of the most"
        found.append(("Blocks on an SM", f"{row.occupancy.blocks_per_sm}, {share}"))
        found.append(("What limits it", row.occupancy.why))
    return tuple(found)
