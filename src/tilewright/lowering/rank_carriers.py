"""The warps that carry parts of tiles to the ranks that keep them, while others load and multiply (`rank_sums`).

    once       count this launch;  tell the blocks of this number on all peers that it has begun
               wait for theirs: what the launches before received there has been read
    a tile of  wait until its part lies in the memory of this rank
    another    store it into the memory of that rank;  set its flag there
    rank

A part waits in memory of this rank for as long as the link takes: nobody else waits for the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.dtypes import I32
from tilewright.ir.async_stmt import Scope, SignalFlag, TeamBarrier, WaitFlag
from tilewright.ir.buffer import PEERS, Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Const, Expr, Load, Op, Ref, Var, binary
from tilewright.ir.kernel import OWN_RANK, RECEIVED_FLAGS, SHARDS
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move
from tilewright.lowering.plan import plan_of
from tilewright.lowering.rank_sums import MOST_BLOCKS, TILE, RankSums
from tilewright.lowering.rank_tiles import OWNER
from tilewright.lowering.spare_warps import CARRIERS
from tilewright.units import ceil_div

_IN_FLIGHT = 4
"""Vectors of a thread that are under way at a time. All SMs together store 336 GB/s into a peer so, and 343 with 8 (two
H200s; copy engines 382). With twice as many threads a product of 4096 x 14336 x 4096 takes 364 to 366 us, not 359."""

_VECTOR_BYTES = 16
_BLOCK, _PEER, _COUNT = Var("blockIdx.x"), Var("peer"), Var("launches")


@dataclass(frozen=True)
class Carriers:
    """The statements of a thread of the team."""

    program: Program
    sums: RankSums

    def begin(self) -> Body:
        """Before the first part."""
        count = Buffer("launch", Space.REGISTER, I32, (1,), note="of this block, through this memory")
        here, counter = Ref(count, (ZERO,)), self._word(OWN_RANK, SHARDS * MOST_BLOCKS + _BLOCK)
        tell = SignalFlag(self._begun(_PEER, OWN_RANK), _COUNT, scope=Scope.SYSTEM)
        wait = WaitFlag(self._begun(OWN_RANK, _PEER), _COUNT, scope=Scope.SYSTEM, or_later=True)
        counted: Body = (
            Alloc(count),
            Move(here, counter),
            Let(_COUNT.name, Load(count, (ZERO,)) + 1),
            Assign(here, _COUNT),
            Move(counter, here),
            *self._with_peers(tell),
            *self._with_peers(wait),
        )
        return (If(self._is_first, counted), self._meet)

    def carry(self) -> Body:
        """What the team does for an item."""
        is_there = WaitFlag(self.sums.sent_flag, ONE)
        back = SignalFlag(self.sums.sent_flag, ZERO, releases=False)
        told = SignalFlag(self.sums.flag(OWNER, OWN_RANK), ONE, scope=Scope.SYSTEM)
        carried: Body = (
            If(self._is_first, (is_there, back)),
            self._meet,
            *self._copies(),
            self._meet,
            If(self._is_first, (told,)),
        )
        return (Let(TILE.name, self.sums.number), If(binary(Op.NE, OWNER, OWN_RANK), carried))

    def _copies(self) -> Body:
        """All vectors of a part."""
        out = self.program.gemm.out
        elements = self.sums.part_bytes // out.bytes
        width = gcd(_VECTOR_BYTES // out.bytes, elements)
        held, vectors, u = Buffer("held", Space.REGISTER, out, (_IN_FLIGHT, width)), elements // width, Var("u")
        each = CARRIERS.threads * _IN_FLIGHT
        number = Var("batch_of_part") * each + u * CARRIERS.threads + CARRIERS.thread
        guard = binary(Op.LT, number, vectors) if vectors % each else None
        here, inside, origin = Ref(held, (u, ZERO)), number * width, self.sums.sums.name
        load = Move(here, self.sums.sent(OWNER, inside), width, guard, origin=origin)
        store = Move(self.sums.received(OWNER, OWN_RANK, inside), here, width, guard, origin=origin)
        both = tuple(For(u.name, Const(_IN_FLIGHT), (one,), unroll=True) for one in (load, store))
        count = Const(ceil_div(vectors, each))
        return (For("batch_of_part", count, (Alloc(held), *both), rolled=True, note="vectors of a part"),)

    @property
    def _is_first(self) -> Expr:
        return binary(Op.EQ, CARRIERS.thread, 0)

    @property
    def _meet(self) -> TeamBarrier:
        """Consumers have the named barriers before it."""
        return TeamBarrier(Const(plan_of(self.program).consumer.warpgroups + 1), CARRIERS.threads)

    @staticmethod
    def _with_peers(each: SignalFlag | WaitFlag) -> Body:
        peers = If(binary(Op.NE, _PEER, OWN_RANK), (each,))
        return (For(_PEER.name, SHARDS, (peers,), rolled=True, note="ranks"),)

    def _begun(self, rank: Expr, source: Expr) -> Ref:
        """How many launches a rank has begun, as it tells another one."""
        return self._word(rank, source * MOST_BLOCKS + _BLOCK)

    @staticmethod
    def _word(rank: Expr, number: Expr) -> Ref:
        return Ref(Buffer(PEERS + RECEIVED_FLAGS, Space.GLOBAL, I32, (), of_ranks=True), (rank, number))
