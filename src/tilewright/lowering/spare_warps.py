"""The warps of the producer's warpgroup that start no TMA copies: teams of them copy vectors."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.async_stmt import TeamBarrier, WaitBarrier
from tilewright.ir.expr import Expr, Op, Var, binary, both
from tilewright.ir.program import GROUP_LANES, WARP_LANES
from tilewright.ir.stmt import Body, If
from tilewright.lowering.coordinates import GROUP_LANE

WARPS = GROUP_LANES // WARP_LANES
"""Of a warpgroup; the first one starts the TMA copies."""

_NAMED = 8
"""The first of the named barriers at which a warp meets, behind those of warpgroups."""


@dataclass(frozen=True, slots=True)
class Team:
    """Some warps of the producer's warpgroup. first: the number of the first one in it."""

    first: int
    warps: int

    @property
    def threads(self) -> int:
        return self.warps * WARP_LANES

    @property
    def thread(self) -> Expr:
        """The number of the running thread in the team."""
        return Var(GROUP_LANE) - self.first * WARP_LANES

    @property
    def warp(self) -> Expr:
        """The number of the running warp in the team."""
        return Var(GROUP_LANE) // WARP_LANES - self.first

    @property
    def lane(self) -> Expr:
        return Var(GROUP_LANE) % WARP_LANES

    @property
    def includes(self) -> Expr:
        """Whether the running thread of the producer's warpgroup is in the team."""
        begin, end = self.first * WARP_LANES, (self.first + self.warps) * WARP_LANES
        above = binary(Op.LE, begin, Var(GROUP_LANE))
        return above if end == GROUP_LANES else both(above, binary(Op.LT, Var(GROUP_LANE), end))

    def waits(self, wait: WaitBarrier) -> Body:
        """Each warp waits. One lane asks: those of a warp ask for the barrier one by one in shared memory, over and
        over, which MMAs read at the same time."""
        warp = Var(GROUP_LANE) // WARP_LANES
        return If(binary(Op.EQ, self.lane, 0), (wait,)), TeamBarrier(warp + _NAMED, WARP_LANES)


def teams(*, scales: bool, vectors: bool) -> tuple[Team, Team]:
    """Those that copy scales with the stages of a ring, and those that copy vectors for epilogues: apart where there
    are both, since scales must not wait for an epilogue."""
    if scales and vectors:
        return Team(2, 2), Team(1, 1)
    return Team(1, 3), Team(1, 3)
