"""How a product over several ranks overlaps: in which pieces, and which way the data takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tilewright.distributed.overlap import Costs, Work, predicted_us
from tilewright.distributed.timeline import (
    Step,
    all_gather_steps,
    exchanged_all_gather_steps,
    exchanged_reduce_scatter_steps,
    reduce_scatter_steps,
    shared_reduce_scatter_steps,
)

Kind = Literal[
    "gather",
    "gather arriving",
    "gather exchanged",
    "scatter",
    "scatter added",
    "scatter shared",
    "scatter exchanged",
]


@dataclass(frozen=True, slots=True)
class Plan:
    """gather: a product for the rows of each rank, which copy engines push. gather arriving: one product whose kernel
    waits for the rows of each rank. gather exchanged: threads store rows into the memory of all ranks, before one
    product. scatter: products of pieces, which copy engines push. scatter added: what others sent is added to the
    product of own rows when it is done. scatter shared: one product, whose kernels on all ranks add up. scatter
    exchanged: one product, parts of which threads store into the memory of their owners.

    pieces: of the rows of each rank, in a scatter.
    """

    kind: Kind
    pieces: int = 1

    @property
    def parts(self) -> int:
        """For the rows that a rank keeps and for those that it sends, in pieces: what is predicted one by one; 1 where
        an exchange follows one product, or a kernel does all, and in a gather."""
        return 2 * self.pieces if self.kind in ("scatter", "scatter added") else 1

    def steps(self, rank: int, rows: Sequence[int]) -> tuple[Step, ...]:
        """What a rank does."""
        return _steps(self, rank, tuple(rows))

    def __str__(self) -> str:
        return f"{self.kind}, {self.pieces} pieces" if self.pieces > 1 else self.kind


@lru_cache(maxsize=4096)
def _steps(plan: Plan, rank: int, rows: tuple[int, ...]) -> tuple[Step, ...]:
    match plan.kind:
        case "gather" | "gather arriving":
            return all_gather_steps(rank, rows, arriving=plan.kind == "gather arriving")
        case "gather exchanged":
            return exchanged_all_gather_steps(rank, rows)
        case "scatter exchanged":
            return exchanged_reduce_scatter_steps(rank, rows)
        case "scatter shared":
            return shared_reduce_scatter_steps(rank, rows)
        case "scatter" | "scatter added":
            return reduce_scatter_steps(rank, rows, pieces=plan.pieces, adds=plan.kind == "scatter added")


_NEARLY = 1.05

GATHERS = Plan("gather"), Plan("gather exchanged")
ARRIVING, SHARED = Plan("gather arriving"), Plan("scatter shared")
"""By one kernel on each rank, which not every product has."""

EXCHANGED = Plan("gather exchanged"), Plan("scatter exchanged")
"""By threads, which every product has that is not empty."""

SCATTERS = (
    Plan("scatter exchanged"),
    Plan("scatter added"),
    *(Plan("scatter", pieces) for pieces in (1, 2, 4, 8)),
)


SCALED_AS_WHOLE = Plan("gather"), Plan("scatter exchanged"), Plan("scatter added")
"""Of operands of FP8 with a scale for each rank's rows: no product has rows of several, and what ranks add up was
scaled."""

SCALED = (*SCALED_AS_WHOLE, Plan("gather exchanged"))
"""Of operands of FP8 whose rows have scales, which travel with them."""


def candidates(gathers: bool) -> tuple[Plan, ...]:
    """The plans among which is chosen."""
    return (*GATHERS, ARRIVING) if gathers else (*SCATTERS, SHARED)


def plan_us(plan: Plan, work: Work, costs: Costs) -> float:
    """The predicted time of a plan."""
    return predicted_us([plan.steps(rank, work.rows) for rank in range(len(work.rows))], work, costs)


@lru_cache(maxsize=1024)
def ranked(gathers: bool, work: Work, costs: Costs) -> tuple[Plan, ...]:
    """All plans by their predicted time, but those of fewer parts first among those that are nearly the fastest: each
    costs the host time, and small ones are the hardest to predict."""
    times = {plan: plan_us(plan, work, costs) for plan in candidates(gathers)}
    enough = _NEARLY * min(times.values())
    return tuple(sorted(times, key=lambda one: (times[one] > enough, one.parts * (times[one] <= enough), times[one])))


def chosen(gathers: bool, work: Work, costs: Costs) -> Plan:
    """The first of them."""
    return ranked(gathers, work, costs)[0]
