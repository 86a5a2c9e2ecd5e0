"""Who has the tensor cores: warpgroups in ping-pong take tiles in turn, those that share a tile its last stages."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import MBARRIER
from tilewright.ir.async_stmt import ArriveBarrier, InitBarrier, TeamBarrier, WaitBarrier
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Ref, Select, Var, binary, both
from tilewright.ir.program import GROUP_LANES
from tilewright.ir.stmt import Body, For, If
from tilewright.lowering.coordinates import GROUP, GROUP_LANE, ROUND
from tilewright.lowering.kernel_parts import if_any
from tilewright.lowering.plan import Role

_GROUP, _FIRST_LANE = Var(GROUP), binary(Op.EQ, Var(GROUP_LANE), 0)


@dataclass(frozen=True, slots=True)
class Turns:
    """The order of the consumers of a ring."""

    consumer: Role

    @property
    def count(self) -> int:
        """Warpgroups that wait for the one before them; 1: none."""
        return self.consumer.together if self.consumer.apart else self.consumer.in_turn

    def _barrier(self, group: Expr) -> Ref:
        """The barrier at which a warpgroup waits until the one before it has taken all its stages."""
        note = "mbarriers that signal that the warpgroup before has issued its MMAs"
        return Ref(Buffer("ordered", Space.SHARED, MBARRIER, (self.count,), (GROUP,), note), (group,))

    def barriers(self, stage: Var) -> Body:
        """What makes them."""
        each = (InitBarrier(self._barrier(stage), 1),)
        return (For(stage.name, Const(self.count), each, unroll=True),) if self.count > 1 else ()

    def of_tiles(self, k: Expr) -> tuple[Body, Body]:
        """Wait until the ring has come to one's own tile: a parity tells two neighbouring phases apart, and no more.

        The first warpgroup's phase of a round is the last one's of the round before; it need not wait in the first.
        """
        if self.consumer.in_turn == 1:
            return (), ()
        parity = binary(Op.MOD, Var(ROUND) + Select(binary(Op.EQ, _GROUP, 0), Const(1), ZERO), 2)
        following = binary(Op.MOD, _GROUP + 1, self.consumer.in_turn)
        arrive = If(_FIRST_LANE, (ArriveBarrier(self._barrier(following)),))
        wait = WaitBarrier(self._barrier(_GROUP), parity)
        # MMAs make the warps of a warpgroup wait for each other. Without any, one warp could pass the order on, and it
        # could come round again, before another warp has seen it.
        return (wait,), (If(binary(Op.EQ, k, 0), (TeamBarrier(_GROUP + 1, GROUP_LANES),)), arrive)

    def of_last_stages(self, item: Expr, takes_part: Expr, use: Expr, uses: Expr, stages: int) -> tuple[Body, Body]:
        """In front of each use of the ring for a tile, and behind them all: the last uses each warpgroup leaves to the
        one before it first, so that it has the tensor cores to itself while that one stores its part of C.

        All of those uses are in the ring by then: they are fewer than it has stages. It also keeps a warpgroup within
        so many uses of the one behind it, so that of two phases, a tile's and the next one's, no more can be under way
        where a tile has as many uses; where it has fewer, none waits.

        item: its number among those of as many uses, where takes_part says that it is one of them.
        """
        if not self.consumer.apart:
            return (), ()
        long = both(takes_part, binary(Op.LE, stages, uses))
        due = binary(Op.EQ, use, uses - self.consumer.apart)
        wait = WaitBarrier(self._barrier(_GROUP), binary(Op.MOD, item, 2))
        arrive = ArriveBarrier(self._barrier(_GROUP + 1))
        follows, leads = binary(Op.LT, 0, _GROUP), binary(Op.LT, _GROUP, self.count - 1)
        return if_any(both(follows, due, long), (wait,)), if_any(both(leads, _FIRST_LANE, long), (arrive,))
