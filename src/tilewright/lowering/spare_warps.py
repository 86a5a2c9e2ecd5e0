"""The warps of the producer's warpgroup that start no TMA copies, all but the first: teams of them copy vectors."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.expr import Expr, Op, Var, binary, both
from tilewright.ir.program import GROUP_LANES, WARP_LANES
from tilewright.lowering.coordinates import GROUP_LANE


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
    def lane(self) -> Expr:
        return Var(GROUP_LANE) % WARP_LANES

    @property
    def includes(self) -> Expr:
        """Whether the running thread of the producer's warpgroup is in the team."""
        begin, end = self.first * WARP_LANES, (self.first + self.warps) * WARP_LANES
        above = binary(Op.LE, begin, Var(GROUP_LANE))
        return above if end == GROUP_LANES else both(above, binary(Op.LT, Var(GROUP_LANE), end))


CARRIERS = Team(3, 1)
"""Those that carry parts of tiles to other ranks, in kernels that copy no vectors."""


def teams(*, scales: bool) -> tuple[Team, Team]:
    """Those that copy scales with the stages of a ring, and those that copy vectors for epilogues: apart where there
    are both, since scales must not wait for an epilogue. One warp brings scales: it waits for no copy."""
    return Team(1, 1), Team(2, 2) if scales else Team(1, 3)
