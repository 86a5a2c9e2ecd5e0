"""Kernels whose tiles are brought by the copy engine: who starts the copies, who waits for what.

    together   every thread waits for a slot to be full and multiplies; all meet; one thread starts the next copy
    roles      a warpgroup of its own fills slots that are empty; the others multiply those that are full

The t-th use of the ring is of slot t % stages, in phase t / stages: its barriers complete one phase a use, so the
parity of that number is what to wait for. A filler waits for the opposite parity of `empty`, which passes at once the
first time round. Source of the protocol: PTX ISA 9.0, mbarrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.dtypes import MBARRIER
from tilewright.ir.async_stmt import (
    ArriveBarrier,
    ClusterBarrier,
    FenceBarriers,
    InitBarrier,
    PrefetchMap,
    SetRegisters,
    StartNextGrid,
    TmaStore,
    WaitBarrier,
    WaitPreviousGrid,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from tilewright.ir.buffer import Buffer, Ref, Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary
from tilewright.ir.program import Loop, Program, Route, Staged
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import Alloc, Barrier, Body, For, If, Let, Stmt
from tilewright.ir.tiles import empty_name, fill_name, full_name, slot_name
from tilewright.ir.visit import map_exprs, rewrite, walk
from tilewright.lowering.coordinates import (
    GROUP,
    GROUP_LANE,
    RANK,
    ROUND,
    extent_of,
    thread_coordinates,
)
from tilewright.lowering.located import size_of
from tilewright.lowering.products import bulk_loads, expect, tensor_map
from tilewright.lowering.scheduler import Item, Scheduler
from tilewright.lowering.sums import Sums


def comes_by_engine(program: Program, loop: Loop) -> bool:
    """Whether the tiles under a loop are brought by the copy engine."""
    return any(staged.under == loop.name and staged.route is Route.TMA for staged in program.staged)


@dataclass(frozen=True)
class Compute:
    """What the threads that multiply do: one step of the ring; for each tile the store of the sum; before they end."""

    sums: Sums
    step: Body
    finish: Body
    leave: Body


@dataclass(frozen=True)
class Engine:
    """The statements of a kernel whose ring is filled by the copy engine."""

    program: Program
    exact: frozenset[str]
    compute: Compute

    @cached_property
    def _loop(self) -> Loop:
        assert self.program.pipelined is not None
        return self.program.loop(self.program.pipelined.loop)

    @cached_property
    def _stages(self) -> int:
        assert self.program.pipelined is not None
        return self.program.pipelined.stages

    @property
    def _extent(self) -> Expr:
        return extent_of(self.program, self._loop, self.exact)

    @cached_property
    def _tiles(self) -> tuple[Staged, ...]:
        staged = (s for operand in ("A", "B") for s in self.program.chain(operand))
        return tuple(s for s in staged if s.under == self._loop.name and s.route is Route.TMA)

    @cached_property
    def _scheduler(self) -> Scheduler:
        return Scheduler(self.program)

    @cached_property
    def _cluster(self) -> int:
        return 1 if self.program.clustered is None else self.program.clustered.size

    @cached_property
    def _turns(self) -> int:
        """Warpgroups that take turns at tiles of C."""
        return 1 if self.program.specialized is None else self.program.specialized.turns

    @cached_property
    def _readers(self) -> int:
        """Warpgroups that multiply the same tile."""
        count = 1
        for loop in self.program.thread_loops:
            count *= loop.extent or 1
        return count

    def _barrier(self, name: str, slot: Expr) -> Ref:
        return Ref(Buffer(name, Space.SHARED, MBARRIER, (self._stages,), ("slot",)), (slot,))

    def full(self, slot: Expr) -> Ref:
        return self._barrier(full_name(self._loop.name), slot)

    def empty(self, slot: Expr) -> Ref:
        return self._barrier(empty_name(self._loop.name), slot)

    def _my_turn(self, group: Expr) -> Ref:
        """The barrier at which a warpgroup waits until the one before it has taken all its slots."""
        return Ref(Buffer("my_turn", Space.SHARED, MBARRIER, (self._turns,), (GROUP,)), (group,))

    # -- the whole body ---------------------------------------------------------------------------------------------

    def body(self) -> Body:
        specialized = self.program.specialized
        if specialized is None:
            return (*self._scheduler.locate(ZERO), *thread_coordinates(self.program), *self._together())
        threads = [let for let in thread_coordinates(self.program) if isinstance(let, Let)]
        # The warpgroups that multiply are numbered from 0; the one behind them copies.
        rank = (Let(RANK, Var("blockIdx.x") % self._cluster),) if self._cluster > 1 else ()
        group = Let(GROUP, Var("threadIdx.x") // 128, uniform=True)
        lane = next(let for let in threads if let.name == GROUP_LANE)
        own = tuple(
            Let(let.name, substitute(let.value, {"threadIdx.x": Var(GROUP) * 128 + Var(GROUP_LANE)}), let.note)
            for let in threads
            if let.name != GROUP_LANE
        )
        produce = self._scheduler.each(self._produce, behind=self._wait)
        share = (self._turns, Var(GROUP)) if self._turns > 1 else (1, ZERO)
        copies, multiplies = specialized.registers
        producer: Body = (
            SetRegisters(copies, grow=False),
            If(binary(Op.EQ, Var(GROUP_LANE), 0), produce),
        )
        consumer: Body = (
            SetRegisters(multiplies, grow=True),
            *own,
            Alloc(self.compute.sums.buffer),
            *self._scheduler.each(self._consume, behind=self._wait, share=share),
            *self.compute.leave,
        )
        end: Body = (ClusterBarrier(),) if self._cluster > 1 else ()
        roles = If(binary(Op.EQ, Var(GROUP), self._readers * self._turns), producer, consumer)
        return (group, lane, *rank, *self._init(with_empty=True), roles, *end)

    def _init(self, *, with_empty: bool) -> Body:
        """One thread makes the barriers, and all see them."""
        slot = Var("slot")
        made: list[Stmt] = [InitBarrier(self.full(slot), 1)]
        if with_empty:
            made.append(InitBarrier(self.empty(slot), self._readers * self._cluster))
        loop: Body = (For("slot", Const(self._stages), tuple(made), unroll=True),)
        if self._turns > 1:
            each = (InitBarrier(self._my_turn(slot), 1),)
            loop = (*loop, For("slot", Const(self._turns), each, unroll=True))
        read = [tensor_map(self.program, staged) for staged in self._tiles]
        leaving = walk((*self.compute.finish, *self.compute.leave))
        stored = [stmt.map for _, stmt in leaving if isinstance(stmt, TmaStore)]
        maps = tuple(PrefetchMap(one) for one in dict.fromkeys((*read, *stored)))
        first = If(binary(Op.EQ, Var("threadIdx.x"), 0), (*maps, *loop, FenceBarriers()))
        meet = ClusterBarrier() if self._cluster > 1 else Barrier("the barriers are there")
        begin = (StartNextGrid(),) if self.program.overlapped else ()
        return (first, meet, *begin)

    @cached_property
    def _wait(self) -> Body:
        """Before anything is read that the kernels before may have written; coordinates need not wait."""
        return (WaitPreviousGrid(),) if self.program.overlapped else ()

    # -- the ring ---------------------------------------------------------------------------------------------------

    def _position(self, slot: str, item: Item) -> Body:
        """Names the running use of the ring: its slot, and the parity of its phase."""
        loop = self._loop.name
        number = Var(f"{loop}_number")
        uses = Let(number.name, item.uses_before(self._extent) + Var(loop), "uses of the ring before")
        return (
            uses,
            Let(slot, binary(Op.MOD, number, self._stages)),
            Let(f"{loop}_parity", binary(Op.MOD, binary(Op.DIV, number, self._stages), 2)),
        )

    def _produce(self, item: Item) -> Body:
        """All uses of the ring for a work item by the producer."""
        slot, parity = Var(fill_name(self._loop.name)), Var(f"{self._loop.name}_parity")
        fill: Body = (
            *self._position(slot.name, item),
            WaitBarrier(self.empty(slot), parity ^ 1),
            *self._start_copies(slot),
        )
        return (For(self._loop.name, self._extent, fill),)

    def _start_copies(self, slot: Expr) -> Body:
        signal = self.full(slot)
        loads = tuple(s for staged in self._tiles for s in bulk_loads(self.program, staged, signal))
        return (expect(self.program, self._tiles, signal), *loads)

    def _consume(self, item: Item) -> Body:
        """A work item by those that multiply: a slot is given back when the products of the next one are started."""
        loop, compute = self._loop.name, self.compute
        slot, parity = Var(slot_name(loop)), Var(f"{loop}_parity")
        before = binary(Op.MOD, Var(f"{loop}_number") + (self._stages - 1), self._stages)
        body: Body = (
            *self._position(slot.name, item),
            WaitBarrier(self.full(slot), parity),
            WgmmaFence(),
            *compute.step,
            WgmmaCommit(),
            WgmmaWait(1, origin=compute.sums.name),
            If(binary(Op.LT, 0, Var(loop)), self._give_back(before)),
        )
        last = item.uses_through(self._extent) - 1
        await_turn, pass_turn = self._taking_turns()
        return (
            *await_turn,
            For(loop, self._extent, body),
            *pass_turn,
            WgmmaWait(0, compute.sums.first, compute.sums.name),
            If(binary(Op.LT, 0, size_of(self.program, "k")), self._give_back(binary(Op.MOD, last, self._stages))),
            *compute.finish,
        )

    def _taking_turns(self) -> tuple[Body, Body]:
        """Wait until the ring has come to one's own tile: a parity tells two neighbouring phases apart, and no more.

        The first warpgroup's phase of a round is the last one's of the round before; it need not wait in the first.
        """
        if self._turns == 1:
            return (), ()
        group = Var(GROUP)
        parity = binary(Op.MOD, Var(ROUND) + Select(binary(Op.EQ, group, 0), Const(1), ZERO), 2)
        following = binary(Op.MOD, group + 1, self._turns)
        arrive = If(binary(Op.EQ, Var(GROUP_LANE), 0), (ArriveBarrier(self._my_turn(following)),))
        return (WaitBarrier(self._my_turn(group), parity),), (arrive,)

    def _give_back(self, slot: Expr) -> Body:
        """One thread of the warpgroup tells every block of the cluster that fills this slot."""
        lane = Var(GROUP_LANE)
        if self._cluster == 1:
            return (If(binary(Op.EQ, lane, 0), (ArriveBarrier(self.empty(slot)),)),)
        return (If(binary(Op.LT, lane, self._cluster), (ArriveBarrier(self.empty(slot), lane),)),)

    def _together(self) -> Body:
        """Every thread multiplies; one of them starts the copies, ahead by all slots but the one in use."""
        loop, compute, stages = self._loop.name, self.compute, self._stages
        first = binary(Op.EQ, Var("threadIdx.x"), 0)
        slot, parity = Var(slot_name(loop)), Var(f"{loop}_parity")

        def copies(number: Expr, fill: Expr) -> Body:
            started = self._start_copies(Var(fill_name(loop)))
            started = _put(started, {fill_name(loop): fill, loop: number})
            return (If(binary(Op.LAND, first, binary(Op.LT, number, self._extent)), started),)

        prologue = tuple(s for number in range(stages - 1) for s in copies(Const(number), Const(number)))
        ahead = Var(loop) + (stages - 1)
        body: Body = (
            *copies(ahead, binary(Op.MOD, ahead, stages)),
            *self._position(slot.name, Item(ZERO)),
            WaitBarrier(self.full(slot), parity),
            WgmmaFence(),
            *compute.step,
            WgmmaCommit(),
            WgmmaWait(0, compute.sums.first, compute.sums.name),
            Barrier("this slot has been read by all"),
        )
        return (
            *self._init(with_empty=False),
            *self._wait,
            *prologue,
            Alloc(compute.sums.buffer),
            For(loop, self._extent, body),
            *compute.finish,
            *compute.leave,
        )


def _put(body: Body, values: dict[str, Expr]) -> Body:
    return rewrite(body, lambda stmt: (map_exprs(stmt, lambda expr: substitute(expr, values)),))
