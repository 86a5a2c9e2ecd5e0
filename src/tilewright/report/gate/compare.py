"""What got worse against a snapshot, and what got better.

Less is better of everything that is compared. Registers and spills are those of one compiler, and a predicted time is
that of one version of the model: where the snapshot names another, they are left out, and a note says so. Sectors are
compared in all, not by request: a kernel that loads 16 bytes where it loaded 4 has four times the sectors a request,
and is no worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.report.gate.facts import CANNOT, Facts

TIME_TOLERANCE_PERCENT = 2.0
"""A predicted time that rises by less is not a change."""

TITLES: Mapping[str, str] = {
    "races": "races",
    "other_findings": "other broken rules",
    "shared_load_conflicts": "bank conflicts of shared loads",
    "shared_store_conflicts": "bank conflicts of shared stores",
    "shared_load_wavefronts": "wavefronts of shared loads",
    "shared_store_wavefronts": "wavefronts of shared stores",
    "shared_load_requests": "requests of shared loads",
    "shared_store_requests": "requests of shared stores",
    "global_load_sectors": "sectors of global loads",
    "global_store_sectors": "sectors of global stores",
    "global_load_requests": "requests of global loads",
    "global_store_requests": "requests of global stores",
    "bulk_load_sectors": "sectors of bulk loads",
    "bulk_store_sectors": "sectors of bulk stores",
    "barriers": "barriers, by warp",
    "shared_bytes": "shared memory, bytes a block",
    "registers": "registers a thread",
    "spilled_bytes": "spilled bytes a thread",
    "predicted_us": "predicted time, us",
}
"""What is compared, in the order of a table."""

_PER_REQUEST = {
    "global_load_sectors": "global_load_requests",
    "global_store_sectors": "global_store_requests",
    "shared_load_wavefronts": "shared_load_requests",
    "shared_store_wavefronts": "shared_store_requests",
}
_OF_ONE_ORIGIN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("compiler", ("registers", "spilled_bytes", "predicted_us"), "registers, spills and the predicted time are"),
    ("model", ("predicted_us",), "the predicted time is"),
    ("predicted_on", ("predicted_us",), "the predicted time is"),
)
"""What must be the same on both sides, and what is left out of the comparison where it is not."""

Verdict = Literal["worse", "better"]


@dataclass(frozen=True, slots=True)
class Change:
    """One number that changed. arch: "" for counts, which are those of every architecture. aside: in words."""

    what: str
    before: float | None
    now: float | None
    verdict: Verdict
    arch: str = ""
    aside: str = ""

    @property
    def title(self) -> str:
        return f"{TITLES.get(self.what, self.what)}{f', {self.arch}' if self.arch else ''}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One schedule against the snapshot. fatal: why it fails whatever the numbers say, "" if it does not.

    facts: None where the schedule could not be built.
    """

    name: str
    facts: Facts | None
    changes: tuple[Change, ...] = ()
    fatal: str = ""
    notes: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verdict == "worse")

    @property
    def better(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.verdict == "better")

    @property
    def ok(self) -> bool:
        return not self.fatal and not self.worse


def compare(
    name: str, before: Facts | None, now: Facts, *, time_tolerance_percent: float = TIME_TOLERANCE_PERCENT
) -> Comparison:
    """Facts against those of the snapshot (None: it has none of this name)."""
    if now.wrong:
        return Comparison(name, now, fatal=f"The result is wrong: {now.wrong}.")
    if before is None:
        return Comparison(name, now, fatal="It is not in the snapshot.")
    if before.problem != now.problem:
        return Comparison(name, now, fatal=f"The snapshot is of another problem: {before.problem}; now {now.problem}.")
    changes = [
        change
        for what in TITLES
        if what in now.counts
        and (change := _change(what, before.counts.get(what), now.counts[what], aside=_aside(what, before, now)))
    ]
    notes: list[str] = []
    for arch, target in now.targets.items():
        if arch not in before.targets:
            notes.append(f"The snapshot has nothing of {arch}.")
            continue
        found, told = _of_target(arch, before.targets[arch], target, time_tolerance_percent)
        changes += found
        notes += told
    return Comparison(name, now, tuple(changes), notes=(*notes, *now.remarks))


def _of_target(
    arch: str, before: Mapping[str, Any], now: Mapping[str, Any], tolerance_percent: float
) -> tuple[list[Change], list[str]]:
    if CANNOT in now or CANNOT in before:
        if CANNOT in now and CANNOT in before:
            return [], []
        if CANNOT in now:
            return [Change("compiles", None, None, "worse", arch, str(now[CANNOT]))], []
        return [Change("compiles", None, None, "better", arch, "it did not before")], []
    skipped: tuple[str, ...] = ()
    notes = []
    for origin, bound, words in _OF_ONE_ORIGIN:
        if before.get(origin) != now.get(origin) and any(what in before for what in bound):
            skipped += bound
            told = f"the snapshot is of {before.get(origin)}, this is {now.get(origin)}"
            notes.append(f"{arch}: {words} not compared: {told}.")
            break
    changes = []
    for what in TITLES:
        if what in now and what in before and what not in skipped:
            slack = tolerance_percent / 100 if what == "predicted_us" else 0.0
            change = _change(what, before[what], now[what], arch, slack=slack)
            changes += [change] if change else []
    return changes, notes


def _change(
    what: str, before: float | None, now: float, arch: str = "", *, slack: float = 0.0, aside: str = ""
) -> Change | None:
    """None also where the snapshot, of an earlier version, did not have this number."""
    if before is None or abs(now - before) <= slack * before:
        return None
    return Change(what, before, now, "worse" if now > before else "better", arch, aside)


def _aside(what: str, before: Facts, now: Facts) -> str:
    """What it means for one request."""
    requests = _PER_REQUEST.get(what)
    if requests is None or not before.counts.get(requests) or not now.counts.get(requests):
        return ""
    old, new = (facts.counts[what] / facts.counts[requests] for facts in (before, now))
    return f"{old:.4g} -> {new:.4g} a request"
