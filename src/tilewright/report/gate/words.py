"""A comparison as lines of text, for the pytest plugin; the command prints the same as a table."""

from __future__ import annotations

from tilewright.report.collect import is_large
from tilewright.report.costs import costs_of
from tilewright.report.explain import sentence
from tilewright.report.gate.compare import Change, Comparison
from tilewright.toolchain import Build

_EXPLAINED = ("conflicts", "sectors", "wavefronts")
"""Counts whose cause the costs of a kernel can name."""


def value_text(value: float | None) -> str:
    """
    >>> value_text(4096), value_text(12.5), value_text(None)
    ('4,096', '12.5', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def change_text(change: Change) -> str:
    """
    >>> change_text(Change("registers", 64, 80, "worse", "sm_80"))
    'registers a thread, sm_80: 64 -> 80'
    """
    if change.before is None and change.now is None:
        return f"{change.title}: {'no longer: ' if change.verdict == 'worse' else ''}{change.aside}"
    aside = f" ({change.aside})" if change.aside else ""
    return f"{change.title}: {value_text(change.before)} -> {value_text(change.now)}{aside}"


def causes(comparison: Comparison, built: Build) -> list[str]:
    """Which accesses waste what got worse, in sentences. Simulates once more, so ask only where something did."""
    memories = {_memory(change.what) for change in comparison.worse if change.what.endswith(_EXPLAINED)}
    if not memories or is_large(built.gemm):
        return []
    _, costs = costs_of(built)
    wasteful = (cost for cost in costs if cost.excess_wavefronts or cost.sectors > cost.fewest_sectors)
    return [sentence(cost) for cost in wasteful if cost.space and (cost.space.value, cost.kind) in memories]


def _memory(what: str) -> tuple[str, str]:
    """("shared", "load") of "shared_load_conflicts"."""
    place, kind, _ = what.split("_")
    return place, kind


def summary_lines(comparison: Comparison) -> list[str]:
    """What got worse first, then what got better, then the notes."""
    lines = [comparison.fatal] if comparison.fatal else []
    lines += [f"worse   {change_text(change)}" for change in comparison.worse]
    lines += [f"better  {change_text(change)}" for change in comparison.better]
    return [*lines, *comparison.notes]
