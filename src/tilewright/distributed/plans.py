"""How a product over several ranks overlaps: in which pieces, and which way the data takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tilewright.distributed.timeline import (
    Step,
    all_gather_steps,
    merged_reduce_scatter_steps,
    reduce_scatter_steps,
)

Kind = Literal["gather", "gather merged", "scatter", "scatter direct", "scatter merged"]


@dataclass(frozen=True, slots=True)
class Plan:
    """gather: a product for the rows of each rank. gather merged: one product when all rows are there. scatter:
    products of pieces, which copy engines send. scatter direct: products write into the memory of the owner. scatter
    merged: one product of all rows.

    pieces: of the rows of each rank, in a scatter.
    """

    kind: Kind
    pieces: int = 1

    def steps(self, rank: int, rows: Sequence[int]) -> tuple[Step, ...]:
        """What a rank does."""
        return _steps(self, rank, tuple(rows))

    def __str__(self) -> str:
        return f"{self.kind}, {self.pieces} pieces" if self.pieces > 1 else self.kind


@lru_cache(maxsize=4096)
def _steps(plan: Plan, rank: int, rows: tuple[int, ...]) -> tuple[Step, ...]:
    if plan.kind in ("gather", "gather merged"):
        return all_gather_steps(rank, rows, merged=plan.kind == "gather merged")
    if plan.kind == "scatter merged":
        return merged_reduce_scatter_steps(rank, rows)
    return reduce_scatter_steps(rank, rows, pieces=plan.pieces, direct=plan.kind == "scatter direct")


def chosen(gathers: bool, rows: Sequence[int], k: int, columns: Sequence[int], element_bytes: int) -> Plan:
    """The plan of a call. rows: of each rank. k: of the product on this rank. columns: of each b."""
    if gathers:
        return Plan("gather")
    own = max(rows)
    return Plan("scatter merged") if own < 128 else Plan("scatter", pieces=4 if own >= 1024 else 1)
