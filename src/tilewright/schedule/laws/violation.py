"""How a law says that a program breaks it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that does not hold: the reason (the end of a sentence), why it is a law, and the way out."""

    reason: str
    note: str = ""
    hint: str = ""
