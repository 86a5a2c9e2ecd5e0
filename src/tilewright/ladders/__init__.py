"""The rungs as data: `LADDERS`, and `find_rung` / `find_ladder` by name."""

from __future__ import annotations

from tilewright.errors import UnknownName
from tilewright.ladders.hierarchy import HIERARCHY
from tilewright.ladders.rung import Claim, Counts, Rung
from tilewright.ladders.swizzle import SWIZZLE
from tilewright.ladders.te import TE
from tilewright.ladders.worklog import WORKLOG

LADDERS: dict[str, tuple[Rung, ...]] = {"worklog": WORKLOG, "hierarchy": HIERARCHY, "swizzle": SWIZZLE, "te": TE}
"""Every ladder, bottom rung first."""


def find_ladder(name: str) -> tuple[Rung, ...]:
    """The rungs of a ladder. Raises UnknownName with the nearest."""
    if name not in LADDERS:
        raise UnknownName("ladder", name, LADDERS)
    return LADDERS[name]


def find_rung(name: str) -> Rung:
    """The rung called `worklog/6`, `worklog/vectorised`, or just `vectorised` where that is unique.

    >>> find_rung("worklog/6") is find_rung("vectorised")
    True
    """
    rungs = [rung for ladder in LADDERS.values() for rung in ladder]
    wanted = name.strip().lower().replace(" ", "/")
    matches = [r for r in rungs if wanted in (r.name, f"{r.ladder}/{r.slug}")] or [r for r in rungs if wanted == r.slug]
    if len(matches) == 1:
        return matches[0]
    known = [n for rung in rungs for n in (rung.name, f"{rung.ladder}/{rung.slug}")]
    raise UnknownName("rung", name, known)


def below(rung: Rung) -> Rung | None:
    """The rung that `rung` builds on."""
    return next((r for r in LADDERS[rung.ladder] if r.label == rung.builds_on), None)


__all__ = ["Claim", "Counts", "LADDERS", "Rung", "below", "find_ladder", "find_rung"]
