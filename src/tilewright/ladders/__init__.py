"""The rungs as data: `LADDERS`, and `find_rung` / `find_ladder` by name."""

from __future__ import annotations

import copyreg
from typing import Any

from tilewright.errors import TilewrightError, UnknownName
from tilewright.ladders.ampere import AMPERE
from tilewright.ladders.hierarchy import HIERARCHY
from tilewright.ladders.hopper import HOPPER
from tilewright.ladders.rung import Claim, Counts, Rung
from tilewright.ladders.swizzle import SWIZZLE
from tilewright.ladders.te import TE
from tilewright.ladders.worklog import WORKLOG

LADDERS: dict[str, tuple[Rung, ...]] = {
    ladder.name: tuple(ladder.rungs) for ladder in (WORKLOG, HIERARCHY, SWIZZLE, TE, AMPERE, HOPPER)
}
"""Every ladder, bottom rung first."""


def find_ladder(name: str) -> tuple[Rung, ...]:
    """The rungs of a ladder. Raises UnknownName with the nearest."""
    if name not in LADDERS:
        raise UnknownName("ladder", name, LADDERS)
    return LADDERS[name]


def find_rung(name: str) -> Rung:
    """The rung called `worklog/6`, `worklog/vectorised`, or just `padded_b` where that is unique.

    >>> find_rung("worklog/8") is find_rung("padded_b")
    True
    """
    rungs = [rung for ladder in LADDERS.values() for rung in ladder]
    wanted = str(name).strip().lower().replace(" ", "/")
    exact = [rung for rung in rungs if wanted in (rung.name, f"{rung.ladder}/{rung.slug}")]
    matches = exact or [rung for rung in rungs if wanted == rung.slug]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise TilewrightError(
            f"{name!r} is a rung of {len(matches)} ladders.", hint=f"say {' or '.join(rung.name for rung in matches)}."
        )
    shared = [rung.name for rung in rungs if wanted == rung.label]
    if len(shared) > 1:
        raise TilewrightError(
            f"Rungs of {len(shared)} ladders are called {name!r}.", hint=f"say {' or '.join(shared)}."
        )
    if wanted in LADDERS:
        first, last = LADDERS[wanted][0], LADDERS[wanted][-1]
        raise TilewrightError(f"{name!r} is a ladder, not a rung.", hint=f"name one of {first.name} to {last.name}.")
    ladder = wanted.split("/")[0]
    near = LADDERS.get(ladder, tuple(rungs))
    names = [rung.name for rung in near] + [f"{rung.ladder}/{rung.slug}" for rung in near if rung.slug != rung.label]
    raise UnknownName(
        "rung", str(name), names, shown=[f"{key}/{r[0].label} to {r[-1].label}" for key, r in LADDERS.items()]
    )


def below(rung: Rung) -> Rung | None:
    """The rung that `rung` builds on; None for the lowest, and for a schedule that is not of a ladder."""
    return next((r for r in LADDERS.get(rung.ladder, ()) if r.label == rung.builds_on), None)


def is_shipped(rung: Rung) -> bool:
    """Whether a rung is of a ladder of `LADDERS`, and not of a user's file."""
    return rung in LADDERS.get(rung.ladder, ())


def _reduced(rung: Rung) -> Any:
    """A rung that ships is pickled by its name: what it claims are lambdas."""
    return (find_rung, (rung.name,)) if is_shipped(rung) else rung.__reduce_ex__(4)


copyreg.pickle(Rung, _reduced)

__all__ = ["Claim", "Counts", "LADDERS", "Rung", "below", "find_ladder", "find_rung", "is_shipped"]
