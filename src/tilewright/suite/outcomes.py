"""Items measured one after another within a budget: what came of each, and how many are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.errors import TilewrightError

Item = TypeVar("Item")
Made = TypeVar("Made")

BUDGET_SPENT = "the budget is spent"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Item, Made]):
    """What came of one item. made: None where it failed, or was not begun. left: items still to come."""

    item: Item
    made: Made | None
    failure: str
    left: int


def outcomes(
    items: Sequence[Item],
    make: Callable[[Item], Made],
    *,
    told: Callable[[Item], str],
    budget_s: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome[Item, Made]]:
    """Make something of each item, in order. told: an item, for the progress. budget_s: none is begun after so many
    seconds. One that raises TilewrightError has failed, and the others go on."""
    began = clock()
    for number, item in enumerate(items):
        left = len(items) - number
        if budget_s is not None and clock() - began >= budget_s:
            yield Outcome(item, None, BUDGET_SPENT, left)
            return
        if progress is not None:
            progress(told(item), number, len(items))
        try:
            made = make(item)
        except TilewrightError as failure:
            yield Outcome(item, None, str(failure), left - 1)
        else:
            yield Outcome(item, made, "", left - 1)
