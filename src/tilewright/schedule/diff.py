"""What one schedule adds to or changes in another: the text of "what is new in this rung"."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Difference:
    """Steps that only the newer schedule has, and steps that only the older one had."""

    added: tuple[Step, ...]
    removed: tuple[Step, ...]

    @property
    def text(self) -> str:
        """A step a line, `+` for new ones and `-` for those that went."""
        return "\n".join([*(f"- {step!r}" for step in self.removed), *(f"+ {step!r}" for step in self.added)])


def diff(old: Schedule, new: Schedule) -> Difference:
    """The steps that changed from `old` to `new`.

    >>> from tilewright.schedule import Accumulate, Unroll
    >>> print(diff(Schedule(Accumulate("k")), Schedule(Accumulate("k"), Unroll("k"))).text)
    + Unroll('k')
    """
    added: list[Step] = []
    removed: list[Step] = []
    for change, i1, i2, j1, j2 in SequenceMatcher(None, old.steps, new.steps, autojunk=False).get_opcodes():
        if change != "equal":
            removed += old.steps[i1:i2]
            added += new.steps[j1:j2]
    return Difference(tuple(added), tuple(removed))
