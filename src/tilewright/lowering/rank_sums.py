"""Sums over the ranks of a group, added up in the kernels: parts of tiles of C travel to the rank that keeps them.

    a tile of another rank   its sums go to memory of this rank
                             the courier: tell the carriers
                             the carriers: store the part into the memory of that rank, set its flag there
    an own tile              the courier: for each other rank, wait for the tile's flag; ask the L2 for its part
                             for each other rank, in order: sums = sums + its part;  the epilogue

Tiles of other ranks come first, so that no kernel waits for one that waits for it: a rank waits for tiles that its
peers compute before any that wait for it, and for nothing else.

What orders other GPUs takes microseconds. The courier, a thread of the producer's warpgroup, does that while consumers
multiply. They meet once a tile, in strict turn, so that no phase of a barrier is passed over:

    the courier              consumers
    (an own tile: wait for the flags)
    arrive at `there`        (a tile of another rank: store the sums)
    wait for `gone`          wait for `there`
    (a tile of another       (an own tile: add the parts)
    rank: tell the carriers; arrive at `gone`
    an own one: flags = 0)

The carriers (`rank_carriers`) are warps of that warpgroup, too, which may be tiles behind: only they wait for the link.

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
from tilewright.ir.buffer import PEERS, Buffer, Space
from tilewright.ir.expr import ONE, ZERO, Binary, Cast, Const, Expr, Load, Op, Ref, Select, Var, binary
from tilewright.ir.finish import as_f32, as_format
from tilewright.ir.kernel import MOST_ROWS, OWN_RANK, RECEIVED_FLAGS, RECEIVED_PARTS, SENT_FLAGS, SENT_PARTS, SHARDS
from tilewright.ir.program import Program
from tilewright.ir.register_budgets import register_budgets
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move, Stmt
from tilewright.ir.work import Problems
from tilewright.lowering.coordinates import GROUP, RANK, TURN
from tilewright.lowering.ordered_sums import CHUNK, ELEMENT, OrderedSums
from tilewright.lowering.plan import Role, plan_of
from tilewright.lowering.rank_tiles import IN_RUN, OWNER
from tilewright.lowering.scheduler import Scheduler

_KEEPER, TILE, _SOURCE = Var("keeper"), Var("tile_of_keeper"), Var("source")
_FIRST = Select(binary(Op.EQ, OWN_RANK, 0), ONE, ZERO)
"""The first of the other ranks."""

_VECTOR_BYTES = 16

_ITERATIONS_AHEAD = 4
"""Iterations of the loop over k, microseconds together, while a part comes from the L2."""

_OTHER_REGISTERS = 40
"""Of a consumer, beside sums and a part."""

MOST_BLOCKS = 1024
"""Of a launch: GPUs have fewer SMs."""


def flags_of(ranks: int, tiles: int) -> int:
    """How many flags each rank has, which are 0 in the beginning: for each block one from each rank and a counter, for
    each own tile one from each rank. tiles: that a rank keeps, at most."""
    return (ranks + 1) * MOST_BLOCKS + ranks * tiles


@dataclass(frozen=True)
class RankSums(OrderedSums):
    """The statements around the epilogue of a program whose ranks share out k."""

    def around(self, finish: Body) -> Body:
        """`finish` where the running tile is this rank's, behind what the others have summed; else its sums leave."""
        one, there = binary(Op.EQ, self._thread, 0), WaitBarrier(self._barrier("there"), self._parity)
        gone = ArriveBarrier(self._barrier("gone"))
        if self._fetches:
            rest = binary(Op.NE, _SOURCE, _FIRST)
            later = (If(rest, self._chunks(self._add_part())),)
            added = (*self._chunks(self._add_fetched()), *self._from_each(later))
        else:
            added = (there, *self._from_each(self._chunks(self._add_part())))
        keep: Body = (*added, self._meet(), If(one, (gone,)), *finish)
        leave: Body = (*self._chunks(self._leave()), self._meet(), If(one, (there, gone)))
        lets = Let(_KEEPER.name, OWNER, uniform=True), Let(TILE.name, self.number, uniform=True)
        return (*lets, If(binary(Op.EQ, _KEEPER, OWN_RANK), keep, leave))

    def escort(self) -> Body:
        """What the courier does for an item."""
        is_own = binary(Op.EQ, OWNER, OWN_RANK)
        flag = self.flag(OWN_RANK, _SOURCE)
        ask = BulkPrefetch(self.received(OWN_RANK, _SOURCE, ZERO), self.part_bytes, origin=self.sums.name)
        back = SignalFlag(flag, ZERO, releases=False)
        return (
            Let(TILE.name, self.number),
            If(is_own, self._from_each((WaitFlag(flag, ONE, scope=Scope.SYSTEM), ask))),
            ArriveBarrier(self._barrier("there")),
            WaitBarrier(self._barrier("gone"), self._parity),
            If(is_own, self._from_each((back,)), (SignalFlag(self.sent_flag, ONE),)),
        )

    @property
    def _fetches(self) -> bool:
        """Whether a part comes while products end: consumers have registers for it beside their sums, and nobody else
        multiplies while they add."""
        if self._consumer.in_turn > 1:
            return False
        _, registers = register_budgets(self.program)
        elements = self.sums.buffer.elements
        return elements + elements * self.program.gemm.out.bytes // 4 + _OTHER_REGISTERS <= registers

    @property
    def declared(self) -> Body:
        """Registers of consumers."""
        return (Alloc(self._fetched.buffer),) if self._fetches else ()

    def fetch(self, count: Expr, iteration: Var) -> Body:
        """Some iterations before the last of so many: the first part of an own tile is asked for."""
        if not self._fetches:
            return ()
        place = self.received(OWN_RANK, _FIRST, self._inside)
        loads = self._chunks((Move(self._fetched, place, self._width, origin=self.sums.name),))
        own = (
            Let(TILE.name, self.number, uniform=True),
            WaitBarrier(self._barrier("there"), self._parity),
            *loads,
        )
        near = binary(Op.EQ, iteration, binary(Op.MAX, count - _ITERATIONS_AHEAD, 0))
        return (If(near, (If(binary(Op.EQ, OWNER, OWN_RANK), own),)),)

    @property
    def _fetched(self) -> Ref:
        """The running vector of the part that is fetched."""
        shape = self.sums.buffer.elements // self._width, self._width
        return Ref(Buffer("fetched", Space.REGISTER, self.program.gemm.out, shape), (Var(CHUNK), ZERO))

    @staticmethod
    def _from_each(each: Body) -> Body:
        """For each other rank."""
        others = If(binary(Op.NE, _SOURCE, OWN_RANK), each)
        return (For(_SOURCE.name, SHARDS, (others,), rolled=True, note="ranks"),)

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
    def number(self) -> Expr:
        """Of the running block's tile among those of its rank's rows."""
        return IN_RUN * self._cluster + Var(RANK) if self._cluster > 1 else IN_RUN

    @property
    def _cluster(self) -> int:
        return Scheduler(self.program).plan.cluster

    # -- parts and their flags: the running tile is `tile_of_keeper` ------------------------------------------------

    @property
    def part_bytes(self) -> int:
        """Of the part of a tile."""
        return self._part_elements * self.program.gemm.out.bytes

    @property
    def _part_elements(self) -> int:
        return self._threads * self.sums.buffer.elements * self._groups

    def flag(self, keeper: Expr, source: Expr) -> Ref:
        """That the part of the running tile which a rank sends is there, on the rank that keeps it."""
        number = TILE * SHARDS + source + SHARDS * MOST_BLOCKS + MOST_BLOCKS
        return Ref(Buffer(PEERS + RECEIVED_FLAGS, Space.GLOBAL, I32, (), of_ranks=True), (keeper, number))

    @property
    def sent_flag(self) -> Ref:
        """That the running tile's part lies in the memory of this rank."""
        return Ref(Buffer(SENT_FLAGS, Space.GLOBAL, I32, ()), (self._tile_of(OWNER, OWN_RANK),))

    def sent(self, keeper: Expr, inside: Expr) -> Ref:
        """An element of the running tile's part, before it travels. inside: its number in the part."""
        buffer = Buffer(SENT_PARTS, Space.GLOBAL, self.program.gemm.out, ())
        return Ref(buffer, (self._begin_of(keeper, OWN_RANK), inside))

    def received(self, keeper: Expr, source: Expr, inside: Expr) -> Ref:
        """The same on the rank that keeps the tile, of what a rank sends."""
        buffer = Buffer(PEERS + RECEIVED_PARTS, Space.GLOBAL, self.program.gemm.out, (), of_ranks=True)
        begin = self._begin_of(source, keeper)
        return Ref(buffer, (keeper, begin if inside == ZERO else Binary(Op.ADD, begin, Cast(I64, inside))))

    def _begin_of(self, rank: Expr, beside: Expr) -> Expr:
        return Binary(Op.MUL, Cast(I64, self._tile_of(rank, beside)), Const(self._part_elements, I64))

    def _tile_of(self, rank: Expr, beside: Expr) -> Expr:
        """The number of the running tile among all that one rank sends or receives. rank: that gets or sends it."""
        scheduler = Scheduler(self.program)
        tiles = scheduler.rows_of(MOST_ROWS) * scheduler.tile_counts[1] * self._cluster
        slot = Select(binary(Op.LT, rank, beside), rank, Binary(Op.SUB, rank, ONE))
        return slot * tiles + TILE

    @property
    def _inside(self) -> Expr:
        """Where the running vector of the running thread lies in the part of a tile."""
        each = self._threads * self.sums.buffer.elements
        vector = (Var(CHUNK) * self._threads + self._thread) * self._width
        return Var(GROUP) % self._groups * each + vector if self._groups > 1 else vector

    @property
    def _width(self) -> int:
        return gcd(_VECTOR_BYTES // self.program.gemm.out.bytes, self.sums.buffer.elements)

    def _chunks(self, body: Body) -> Body:
        return (For(CHUNK, Const(self.sums.buffer.elements // self._width), body, unroll=True),)

    def _leave(self) -> Body:
        """A vector of sums goes to what is sent, in the format of C."""
        here, out = self._register(), self.program.gemm.out
        value = Ref(Buffer("part", Space.REGISTER, out, (self._width,)), (ZERO,))
        total = as_format(Load(here.buffer, here.index), out)
        rounded = Assign(Ref(value.buffer, (Var(ELEMENT),)), total, origin=self.sums.name)
        store = Move(self.sent(_KEEPER, self._inside), value, self._width, origin=self.sums.name)
        return (Alloc(value.buffer), self._over_vector(rounded), store)

    def _add_part(self) -> Body:
        """A vector of another rank's part is added to the sums."""
        value = Buffer("part", Space.REGISTER, self.program.gemm.out, (self._width,))
        place = self.received(OWN_RANK, _SOURCE, self._inside)
        load = Move(Ref(value, (ZERO,)), place, self._width, origin=self.sums.name)
        return (Alloc(value), load, self._added(Load(value, (Var(ELEMENT),))))

    def _add_fetched(self) -> Body:
        """The same with what was fetched."""
        return (self._added(Load(self._fetched.buffer, (Var(CHUNK), Var(ELEMENT)))),)

    def _added(self, part: Expr) -> Stmt:
        here = self._register()
        total = Binary(Op.ADD, Load(here.buffer, here.index), as_f32(part))
        return self._over_vector(Assign(here, total, origin=self.sums.name))


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
