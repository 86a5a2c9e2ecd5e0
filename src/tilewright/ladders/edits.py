"""Edits of schedules that several rungs are made by."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.buffer import Space
from tilewright.schedule import Distribute, Relayout, Schedule, Split, Stage, Vectorize


def sized(schedule: Schedule, **factors: int) -> Schedule:
    """The schedule with other factors of its splits, by the loop that is split.

    >>> sized(Schedule(Split("k", 8, into=("k_tile", "k_in"))), k=16)[0]
    Split('k', 16, into=('k_tile', 'k_in'))
    """
    return Schedule(
        *(
            replace(step, by=factors[step.loop]) if isinstance(step, Split) and step.loop in factors else step
            for step in schedule
        )
    )


def wide_copies(schedule: Schedule, vector: int = 4) -> Schedule:
    """The schedule with so many elements in each access of its copies of A and B."""
    for tile in ("A_tile", "B_tile"):
        schedule = schedule.replace(Distribute(tile), Distribute(tile, vector=vector))
    return schedule


def wide_fragments(schedule: Schedule) -> Schedule:
    """The schedule with 16-byte loads of fragments, and 16-byte stores of C."""
    vectors = (Vectorize(name, 4) for name in ("A_frag", "B_frag", "C"))
    return schedule.insert(*vectors, after=Stage("B", Space.REGISTER, under="k_in"))


def rows_along_k(schedule: Schedule) -> Schedule:
    """The schedule with shared tiles whose rows run across k, behind copies of 16 bytes."""
    return schedule.insert(
        Relayout("A_tile", rows="k"), Relayout("B_tile", rows="k"), after=Distribute("B_tile", vector=4)
    )


def in_vectors(schedule: Schedule) -> Schedule:
    """The schedule with 16 bytes in every access, for which the A tile is transposed."""
    return wide_fragments(rows_along_k(wide_copies(schedule)))
