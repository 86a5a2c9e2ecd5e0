"""Sums over the ranks of a group, added up in the kernels: parts of tiles of C travel to the rank that keeps them.

    a tile of another rank   its sums go to memory for what is sent
                             the courier: count of its piece += 1
    an own tile              the courier: for each other rank, wait for the flag of the piece; ask the L2 for its part
                             for each other rank, in order: sums = sums + its part;  the epilogue

Tiles of other ranks come first, so that no kernel waits for one that waits for it. The tiles of a rank are sent in
pieces: so many tiles one after the other. Copy engines push a piece when its count says that it is done, and set its
flag on the rank that keeps it; who starts the kernel sets counts and flags back. So no thread waits for the link.

What orders other GPUs takes microseconds. The courier, a thread of the producer's warpgroup, does that while consumers
multiply. They meet once a tile, in strict turn, so that no phase of a barrier is passed over:

    the courier              consumers
    (an own tile: wait for the flags)
    arrive at `there`        (a tile of another rank: store the sums)
    wait for `gone`          wait for `there`
    (a tile of another       (an own tile: add the parts)
    rank: count it)          arrive at `gone`

Parts have the format of C; what they are added to stays in f32. They lie in the order in which tiles are computed,
those of a tile in the order of the registers, thread beside thread; those of (or for) rank 0 first, the running one
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.dtypes import F32, I32, I64, MBARRIER
from tilewright.errors import LoweringError
from tilewright.ir.async_stmt import ArriveBarrier, BulkPrefetch, InitBarrier, Scope, SignalFlag, WaitBarrier, WaitFlag
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Cast, Const, Expr, Load, Op, Select, Var, binary
from tilewright.ir.kernel import (
    MOST_ROWS,
    OWN_RANK,
    PIECE_TILES,
    RECEIVED_FLAGS,
    RECEIVED_PARTS,
    SENT_COUNTS,
    SENT_PARTS,
    SHARDS,
)
from tilewright.ir.program import Program
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move
from tilewright.ir.work import Problems
from tilewright.lowering.coordinates import GROUP, RANK, TURN
from tilewright.lowering.ordered_sums import CHUNK, ELEMENT, OrderedSums
from tilewright.lowering.plan import Role, plan_of
from tilewright.lowering.rank_tiles import IN_RUN, OWNER
from tilewright.lowering.scheduler import Scheduler

_KEEPER, _TILE, _SOURCE = Var("keeper"), Var("tile_of_keeper"), Var("source")
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class RankSums(OrderedSums):
    """The statements around the epilogue of a program whose ranks share out k."""

    def around(self, finish: Body) -> Body:
        """`finish` where the running tile is this rank's, behind what the others have summed; else its sums leave."""
        one, there = binary(Op.EQ, self._thread, 0), WaitBarrier(self._barrier("there"), self._parity)
        gone = ArriveBarrier(self._barrier("gone"))
        others = If(binary(Op.NE, _SOURCE, OWN_RANK), self._chunks(self._add_part()))
        added = For(_SOURCE.name, SHARDS, (others,), rolled=True, note="ranks")
        keep: Body = (there, added, self._meet(), If(one, (gone,)), *finish)
        leave: Body = (*self._chunks(self._leave()), self._meet(), If(one, (there, gone)))
        lets = Let(_KEEPER.name, OWNER, uniform=True), Let(_TILE.name, self._number, uniform=True)
        return (*lets, If(binary(Op.EQ, _KEEPER, OWN_RANK), keep, leave))

    def carry(self) -> Body:
        """What the courier does for an item."""
        is_own = binary(Op.EQ, OWNER, OWN_RANK)
        wait = WaitFlag(self._of_piece(RECEIVED_FLAGS, _SOURCE), ONE, scope=Scope.SYSTEM)
        elements = self._threads * self.sums.buffer.elements * self._groups
        part = Binary(Op.MUL, Cast(I64, self._tile_of(_SOURCE)), Const(elements, I64))
        place = Ref(self._parts(RECEIVED_PARTS), (part, ZERO))
        ask = BulkPrefetch(place, elements * self.program.gemm.out.bytes, origin=self.sums.name)
        others = If(binary(Op.NE, _SOURCE, OWN_RANK), (wait, ask))
        waits = For(_SOURCE.name, SHARDS, (others,), rolled=True, note="ranks")
        count = SignalFlag(self._of_piece(SENT_COUNTS, OWNER), ONE, scope=Scope.SYSTEM, adds=True)
        return (
            Let(_TILE.name, self._number),
            If(is_own, (waits,)),
            ArriveBarrier(self._barrier("there")),
            WaitBarrier(self._barrier("gone"), self._parity),
            If(binary(Op.NE, OWNER, OWN_RANK), (count,)),
        )

    @property
    def barriers(self) -> Body:
        """What one thread makes for the courier and the consumers."""
        slots = range(self._consumer.in_turn)
        there = tuple(InitBarrier(self._barrier("there", Const(slot)), 1) for slot in slots)
        return (*there, *(InitBarrier(self._barrier("gone", Const(slot)), self._consumer.together) for slot in slots))

    @property
    def _consumer(self) -> Role:
        return plan_of(self.program).consumer

    def _barrier(self, name: str, slot: Expr | None = None) -> Ref:
        """Of the warpgroups that have the running item."""
        in_turn = self._consumer.in_turn
        buffer = Buffer(f"parts_{name}", Space.SHARED, MBARRIER, (in_turn,), ("consumer",))
        return Ref(buffer, (binary(Op.MOD, Var(TURN), in_turn) if slot is None else slot,))

    @property
    def _parity(self) -> Expr:
        return binary(Op.MOD, binary(Op.DIV, Var(TURN), self._consumer.in_turn), 2)

    @property
    def _number(self) -> Expr:
        """Of the running block's tile among those of its rank's rows."""
        return IN_RUN * self._cluster + Var(RANK) if self._cluster > 1 else IN_RUN

    @property
    def _cluster(self) -> int:
        return Scheduler(self.program).plan.cluster

    def _of_piece(self, name: str, rank: Expr) -> Ref:
        """The flag or the count of the piece of the running tile. rank: that sends or gets it."""
        return Ref(Buffer(name, Space.GLOBAL, I32, ()), (binary(Op.DIV, _TILE, PIECE_TILES) * SHARDS + rank,))

    def _tile_of(self, rank: Expr) -> Expr:
        """The number of the running tile among all that a rank sends or receives. rank: that gets or sends it."""
        scheduler = Scheduler(self.program)
        tiles = scheduler.rows_of(MOST_ROWS) * scheduler.tile_counts[1] * self._cluster
        slot = Select(binary(Op.LT, rank, OWN_RANK), rank, Binary(Op.SUB, rank, ONE))
        return slot * tiles + _TILE

    def _part(self, rank: Expr) -> Expr:
        """The number of the running team's part of the tile."""
        tile = self._tile_of(rank)
        return tile * self._groups + Var(GROUP) % self._groups if self._groups > 1 else tile

    def _parts(self, name: str) -> Buffer:
        return Buffer(name, Space.GLOBAL, self.program.gemm.out, ())

    def _place_of(self, name: str, rank: Expr) -> Ref:
        """A vector of the running thread's part."""
        each = self._threads * self.sums.buffer.elements
        base = Binary(Op.MUL, Cast(I64, self._part(rank)), Const(each, I64))
        inside = (Var(CHUNK) * self._threads + self._thread) * self._width
        return Ref(self._parts(name), (base, inside))

    @property
    def _width(self) -> int:
        return gcd(_VECTOR_BYTES // self.program.gemm.out.bytes, self.sums.buffer.elements)

    def _chunks(self, body: Body) -> Body:
        return (For(CHUNK, Const(self.sums.buffer.elements // self._width), body, unroll=True),)

    def _leave(self) -> Body:
        """A vector of sums goes to what is sent, in the format of C."""
        here, out = self._register(), self.program.gemm.out
        value = Ref(Buffer("part", Space.REGISTER, out, (self._width,)), (ZERO,))
        total: Expr = Load(here.buffer, here.index)
        total = total if total.dtype is out else Cast(out, total)
        rounded = Assign(Ref(value.buffer, (Var(ELEMENT),)), total, origin=self.sums.name)
        store = Move(self._place_of(SENT_PARTS, _KEEPER), value, self._width, origin=self.sums.name)
        return (Alloc(value.buffer), self._over_vector(rounded), store)

    def _add_part(self) -> Body:
        """A vector of another rank's part is added to the sums."""
        here, out = self._register(), self.program.gemm.out
        value = Buffer("part", Space.REGISTER, out, (self._width,))
        part: Expr = Load(value, (Var(ELEMENT),))
        total = Binary(Op.ADD, Load(here.buffer, here.index), part if out is F32 else Cast(F32, part))
        load = Move(Ref(value, (ZERO,)), self._place_of(RECEIVED_PARTS, _SOURCE), self._width, origin=self.sums.name)
        return (Alloc(value), load, self._over_vector(Assign(here, total, origin=self.sums.name)))


def check_rank_sums(program: Program) -> None:
    """Raise LoweringError for a program whose ranks cannot share out k."""
    if not program.persistent or program.specialized is None or program.raster is None:
        raise LoweringError(
            "Sums over ranks need a persistent kernel with a producer, whose tiles are rasterised.",
            note="tiles of other ranks come first, so that no rank waits for one that waits for it.",
            hint="a schedule of wgmma with Specialize(...), Raster(...) and Persist().",
        )
    if program.problems is not Problems.ONE or program.stream_k or program.arriving:
        raise LoweringError(
            f"Ranks share out the k of one problem, and this is {program.problems.value}"
            f"{', stream-K' if program.stream_k else ''}{', whose rows arrive' if program.arriving else ''}.",
            hint="leave problems, stream_k and arriving out.",
        )
    if program.accumulation is None or program.gemm.accumulate is not F32 or program.gemm.accumulators > 1:
        raise LoweringError(
            f"Ranks add up one sum of f32 in registers, not {program.gemm.accumulators} of {program.gemm.accumulate}.",
            hint="accumulate in f32, in registers: Accumulate(over=...).",
        )
