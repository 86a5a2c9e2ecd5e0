"""Kernels whose tiles are loaded by TMA: who starts the copies, who waits for what.

    together   every thread waits for a stage to be full and multiplies; all meet; one thread starts the next copy
    roles      a warpgroup of its own, the producer, fills stages that are empty; consumers multiply those that are full

The t-th use of the ring is of stage t % stages, in phase t / stages: its mbarriers complete one phase a use, so the
parity of that number is what to wait for. A producer waits for the opposite parity of `empty`, which passes at once the
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
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.clusters import neighbours
from tilewright.ir.expr import HERE, TRUE, ZERO, Const, Env, Expr, Op, Ref, Select, Var, binary, both
from tilewright.ir.program import GROUP_LANES, WARP_LANES, Loop, Program, Route
from tilewright.ir.stmt import Barrier, Body, For, If, Let, Stmt
from tilewright.ir.visit import substitute, walk
from tilewright.ir.work import Walk
from tilewright.lowering.arrivals import wait_for_rows
from tilewright.lowering.block_scales import ScaleStream, Use, sides
from tilewright.lowering.compute import Compute
from tilewright.lowering.coordinates import (
    GROUP,
    GROUP_LANE,
    RANK,
    cluster_coordinates,
    extent_of,
    lane_let,
    rank_step,
    size_of,
    thread_coordinates,
)
from tilewright.lowering.epilogue_vectors import EpilogueVectors
from tilewright.lowering.generator import (
    Beyond,
    Event,
    NumberedStages,
    Pipeline,
    Position,
    RunningStages,
    Uses,
    always,
    steps_of,
)
from tilewright.lowering.kernel_parts import if_any
from tilewright.lowering.plan import Hop, KernelPlan, Ring
from tilewright.lowering.products import bulk_loads, bulk_prefetches, expect, held_in_registers, tensor_map
from tilewright.lowering.promotion import at_group_ends, counted_by, left_over, promote
from tilewright.lowering.scheduler import CountedItem, Item, Scheduler
from tilewright.lowering.spare_warps import CARRIERS, Team, teams
from tilewright.lowering.turns import Turns
from tilewright.problem.gemm import piece_of


def loaded_by_tma(program: Program, loop: Loop) -> bool:
    """Whether the tiles under a loop are loaded by TMA."""
    return any(staged.under == loop.name and staged.route is Route.TMA for staged in program.staged)


@dataclass(frozen=True)
class TmaKernel:
    """The statements of a kernel whose ring is filled by TMA."""

    program: Program
    plan: KernelPlan
    exact: frozenset[str]
    compute: Compute

    @cached_property
    def _ring(self) -> Ring:
        assert self.plan.ring is not None
        return self.plan.ring

    @cached_property
    def _loop(self) -> str:
        return self._ring.loop.name

    @cached_property
    def _hops(self) -> tuple[Hop, ...]:
        return self.plan.hops_under(self._loop)

    @cached_property
    def _stages(self) -> int:
        return self._ring.stages

    @cached_property
    def _count(self) -> Expr:
        """Uses of the ring for a work item."""
        return extent_of(self.program, self._ring.loop, self.exact)

    @cached_property
    def _scheduler(self) -> Scheduler:
        return Scheduler(self.program)

    @cached_property
    def _read(self) -> Var:
        """The stage that consumers read."""
        return Var(f"{self._loop}_stage")

    @cached_property
    def _fill(self) -> Var:
        """The stage that the producer fills."""
        return Var(f"{self._loop}_fill")

    def _mbarriers(self, name: str, stage: Expr, note: str) -> Ref:
        buffer = Buffer(name, Space.SHARED, MBARRIER, (self._stages,), ("stage",), note, stages=self._stages)
        return Ref(buffer, (stage,))

    def full(self, stage: Expr) -> Ref:
        """The barrier that says that a stage has been filled."""
        return self._mbarriers(f"{self._loop}_full", stage, "mbarriers that signal a filled stage")

    def empty(self, stage: Expr) -> Ref:
        """The barrier that says that a stage has been read by all."""
        return self._mbarriers(f"{self._loop}_empty", stage, "mbarriers that signal a stage that all have read")

    @cached_property
    def _turns(self) -> Turns:
        return Turns(self.plan.consumer)

    # -- the whole body ---------------------------------------------------------------------------------------------

    def body(self) -> Body:
        if self.plan.producer is None:
            return (*self._scheduler.locate(ZERO), *thread_coordinates(self.program), *self._together())
        # The consumers are numbered from 0; the producer stands behind them.
        rank = cluster_coordinates(self.program)
        group = Let(GROUP, Var("threadIdx.x") // 128, uniform=True)
        is_producer = binary(Op.EQ, Var(GROUP), self.plan.consumer.warpgroups)
        roles = If(is_producer, self._producer(), self._consumer())
        groups = self._scheduler.prepare()
        # Where groups end may be written by the kernel before.
        wait = self._wait if self.program.problems.has_groups else ()
        return (group, lane_let(self.program), *rank, *self._init(with_empty=True), *wait, *groups, roles)

    def _producer(self) -> Body:
        assert self.plan.producer is not None and self.plan.producer.registers is not None
        produce = self._scheduler.each(self._produce, behind=(*self._ahead, *self._wait))
        start = If(binary(Op.EQ, Var(GROUP_LANE), 0), produce, self._copy_vectors())
        return (SetRegisters(self.plan.producer.registers, grow=False), start)

    def _copy_vectors(self) -> Body:
        """What the other warps of the producer's warpgroup do: scales for each stage, vectors for each tile of C, or
        what `Compute.courier` says."""
        of_scales, of_vectors = self._teams
        found: Body = ()
        if self._vectors.vectors:
            copy = lambda item: self._vectors.copy(of_vectors, item.number)  # noqa: E731
            found = (If(of_vectors.includes, self._scheduler.each(copy, behind=self._wait)),)
        if self._scales.by_warp:
            found = (If(of_scales.includes, self._scheduler.each(self._copy_scales, behind=self._wait), found),)
        if self.compute.courier:
            assert not found, "one warp has vectors to copy and parts to carry"
            escort = self._scheduler.each(lambda item: self.compute.courier, behind=self._wait)
            carry = self._scheduler.each(lambda item: self.compute.carriers, behind=self._wait)
            carriers = If(CARRIERS.includes, (*self._wait, *self.compute.before_carriers, *carry))
            found = (If(binary(Op.EQ, Var(GROUP_LANE), WARP_LANES), escort, (carriers,)),)
        return found

    def _copy_scales(self, item: Item) -> Body:
        """All scales of a work item, by the warp of a team."""
        team, _ = self._teams
        uses = self._numbered(item)
        wait = WaitBarrier(self.empty(self._fill), uses.parity ^ 1)
        copy = self._scales.copy(team.lane, self._use(self._fill, uses.before), wait, self.full(self._fill))
        return (For(self._loop, self._count, (*uses.lets(self._fill.name), *copy)),)

    @cached_property
    def _teams(self) -> tuple[Team, Team]:
        return teams(scales=self._scales.by_warp)

    @cached_property
    def _scales(self) -> ScaleStream:
        return ScaleStream(sides(self.compute.sums) or (), self._stages)

    @cached_property
    def _vectors(self) -> EpilogueVectors:
        return EpilogueVectors(self.program, self.plan.epilogue.vectors)

    def _consumer(self) -> Body:
        consumer = self.plan.consumer
        assert consumer.registers is not None
        own = tuple(
            Let(let.name, substitute(let.value, {"threadIdx.x": Var(GROUP) * 128 + Var(GROUP_LANE)}), let.note)
            for let in thread_coordinates(self.program, with_lane=False)
        )
        return (
            SetRegisters(consumer.registers, grow=True),
            *own,
            *self.compute.declared,
            *self._scheduler.each(self._consume, behind=self._wait, share=(consumer.in_turn, Var(GROUP))),
            *self.compute.leave,
        )

    def _init(self, *, with_empty: bool) -> Body:
        """One thread makes the barriers, and all see them."""
        stage, consumer = Var("stage"), self.plan.consumer
        ring: list[Stmt] = [InitBarrier(self.full(stage), 1 + self._scales.arrivals)]
        if with_empty:
            ring.append(InitBarrier(self.empty(stage), consumer.together * self._filling * self._releases))
        loop: Body = (For(stage.name, Const(self._stages), tuple(ring), unroll=True),)
        loop = (*loop, *self._turns.barriers(stage))
        read = [tensor_map(self.program, hop.tile) for hop in self._hops]
        read += self._scales.maps(self.full(ZERO))
        leaving = walk((*self.compute.finish, *self.compute.leave))
        stored = [stmt.map for _, stmt in leaving if isinstance(stmt, TmaStore)]
        maps = tuple(PrefetchMap(one) for one in dict.fromkeys((*read, *stored)))
        vectors = self._vectors.barriers(self._teams[1], consumer.together)
        made = (*maps, *loop, *vectors, *self.compute.barriers, FenceBarriers())
        first = If(binary(Op.EQ, Var("threadIdx.x"), 0), made)
        meet = ClusterBarrier() if self.plan.cluster > 1 else Barrier("mbarriers are initialised")
        begin = (StartNextGrid(),) if self.plan.overlapped else ()
        return (first, meet, *begin)

    @cached_property
    def _wait(self) -> Body:
        """Before anything is read that the kernels before may have written; coordinates need not wait."""
        return (WaitPreviousGrid(),) if self.plan.overlapped else ()

    @cached_property
    def _ahead(self) -> Body:
        """The L2 is asked for the first tiles of an operand, which need not wait, as nothing is read. Of a constant one
        for as many as there are stages, those that the producer asks for at once behind the wait; of one that is read
        once, and leaves the L2 first, for one: 16 KiB more took as long as they won (record 0099)."""
        program, loop = self.program, self._ring.loop
        constant = tuple(hop.tile for hop in self._hops if piece_of(hop.tile.operand)[0] == program.constant)
        tiles = constant or tuple(hop.tile for hop in self._hops if hop.tile.evict_first)
        most = self._stages if constant else 1
        if not self.plan.overlapped or not tiles or self._scheduler.plan.walk is not Walk.ONE_TILE:
            return ()
        asked = tuple(stmt for tile in tiles for stmt in bulk_prefetches(program, tile, HERE))
        whole = extent_of(program, loop, self.exact)
        count = Select(binary(Op.LT, whole, most), whole, Const(most))
        return (For(loop.name, count, asked, rolled=True, note="the L2 is asked for what is loaded first"),)

    # -- the pipelines of the roles ---------------------------------------------------------------------------------

    def _numbered(self, item: Item) -> NumberedStages:
        return NumberedStages(self._loop, self._stages, item.uses_before(self._count))

    def _produce(self, item: Item) -> Body:
        """All uses of the ring for a work item by the producer."""
        uses = self._numbered(item)
        events = (
            Event(always(*uses.lets(self._fill.name))),
            Event(always(WaitBarrier(self.empty(self._fill), uses.parity ^ 1))),
            Event(steps_of(lambda env: self._load(self._in_order_of_k(env, item), uses.before)), fills=True),
        )
        pipeline = Pipeline(events, Uses(self._loop, self._count, lambda _: self._fill))
        arrived = wait_for_rows(self._scheduler.tile_axes[0]) if self.program.arriving else ()
        return (*arrived, For(self._loop, self._count, pipeline.steady()), *self._await_release(item))

    def _in_order_of_k(self, env: Env, item: Item) -> Env:
        """The place of what a use of the ring loads: of every other item from the end of k, where k alternates."""
        raster, k_tile = self.program.raster, env[self._loop]
        if raster is None or not raster.alternating_k:
            return env
        back = binary(Op.EQ, binary(Op.MOD, item.number, 2), 1)
        return env.at(**{self._loop: Select(back, self._count - 1 - k_tile, k_tile)})

    def _await_release(self, item: Item) -> Body:
        """Behind the last item, the producer of a clustered block waits until all stages are released: an arrival from
        another block must not come to one that has ended."""
        if self._filling == 1:
            return ()
        uses = NumberedStages(f"{self._loop}_last", self._stages, item.uses_through(self._count))
        stage = Var(f"{uses.loop}_stage")
        wait = WaitBarrier(self.empty(stage), uses.parity ^ 1)
        few = self._scales.by_warp or bool(self._vectors.vectors)  # registers: other warps' code takes some
        released = For(uses.loop, Const(self._stages), (*uses.lets(stage.name), wait), rolled=few)
        is_last = self._scheduler.is_last(item)
        if is_last is None:
            return (released,)
        if self._scheduler.plan.walk.streams:  # which counts a k tile also where k is 0: no ring has seen it
            is_last = both(is_last, binary(Op.LT, 0, size_of(self.program, "k")))
        return (If(is_last, (released,)),)

    def _use(self, stage: Expr, before: Expr) -> Use:
        """The running use of the ring. before: uses before the work item."""
        return Use(stage, Var(self._loop), before)

    def _load(self, env: Env, before: Expr) -> Body:
        """The copies of a stage. before: as of `_use`."""
        assert env.stage is not None
        signal = self.full(env.stage)
        tiles = tuple(hop.tile for hop in self._hops)
        loads = tuple(s for tile in tiles for s in bulk_loads(self.program, tile, signal, env))
        use = Use(env.stage, env[self._loop], before)
        told, scales = self._scales.loads(env, use, signal, lambda more: expect(self.program, tiles, signal, more))
        return (*told, *loads, *scales)

    def _multiply(self, uses: NumberedStages, pending: int) -> tuple[Event, ...]:
        """The MMAs of a stage, once it is full; so many groups of them stay under way, but none that are promoted.
        Those that read an operand through registers come in several groups, each of which is committed by itself."""
        if held_in_registers(self.program) is not None:
            return (
                Event(always(*uses.lets(self._read.name))),
                Event(always(WaitBarrier(self.full(self._read), uses.parity))),
                Event(steps_of(self.compute.step)),
                Event(always(*(() if pending else self._all_ended))),
            )
        return (
            Event(always(*uses.lets(self._read.name))),
            Event(always(WaitBarrier(self.full(self._read), uses.parity), WgmmaFence())),
            Event(steps_of(self.compute.step)),
            Event(always(*self._committed(pending))),
        )

    def _committed(self, pending: int, ahead: Body = ()) -> Body:
        """Behind the MMAs of an iteration. ahead: beside them, for the next one."""
        sums = self.compute.sums
        wait = (WgmmaWait(1, origin=sums.name),) if pending else self._all_ended
        promotion = sums.accumulator.promotion
        if promotion is None:
            return (WgmmaCommit(), *wait)
        if promotion.loop != self._loop:
            return ahead  # promoted among them, which waits for all
        if promotion.iterations == 1:
            return (WgmmaCommit(), *ahead, *self._all_ended)
        return (WgmmaCommit(), *at_group_ends(promotion, Var(self._loop), (*self._all_ended, *promote(sums)), wait))

    @property
    def _all_ended(self) -> Body:
        """All MMAs have ended: their accumulators may be read."""
        sums = self.compute.sums
        return (WgmmaWait(0, sums.first, origin=sums.name),)

    @property
    def _ends_each_iteration(self) -> bool:
        """Whether the sum is promoted in each iteration, so that no MMAs stay under way."""
        promotion = self.compute.sums.accumulator.promotion
        return promotion is not None and (promotion.loop != self._loop or promotion.iterations == 1)

    def _promoted(self) -> tuple[Event, ...]:
        """The promotion of each iteration, when its stage has been given back."""
        promotion = counted_by(self.compute.sums, self._loop)
        if promotion is None or promotion.iterations > 1:
            return ()
        return (Event(always(*promote(self.compute.sums)), at=Position.TAIL),)

    def _consume(self, item: Item) -> Body:
        """A work item by consumers."""
        await_turn, pass_turn = self._turns.of_tiles(size_of(self.program, "k"))
        return (
            *self.compute.start,
            *await_turn,
            *(self._promoting(item, pass_turn) if self._ends_each_iteration else self._overlapping(item, pass_turn)),
            *self._vectors.around(self.compute.finish),
        )

    def _overlapping(self, item: Item, pass_turn: Body) -> Body:
        """The sum of an item whose MMAs overlap those of the next stage, at whose start a stage is given back."""
        uses = self._numbered(item)
        stages = {0: self._read, -1: uses.previous()}
        release = Event(steps_of(self._release), -1, Position.TAIL, Beyond.BRANCH)
        pipeline = Pipeline((*self._multiply(uses, 1), release), Uses(self._loop, self._count, stages.get))
        last = HERE.in_stage(binary(Op.MOD, item.uses_through(self._count) - 1, self._stages))
        hold, pass_on = self._last_in_turn(item)
        fetch = self.compute.fetch(self._count, Var(self._loop))
        return (
            For(self._loop, self._count, (*hold, *fetch, *pipeline.steady())),
            *pass_turn,
            *pass_on,
            *self._all_ended,
            *if_any(binary(Op.LT, 0, size_of(self.program, "k")), pipeline.drain(last)),
            *left_over(self.compute.sums, self._loop, self._count),
        )

    def _last_in_turn(self, item: Item) -> tuple[Body, Body]:
        if isinstance(item, CountedItem) and item.whole is not None:
            return self._turns.of_last_stages(*item.whole, Var(self._loop), self._count, self._stages)
        if not self._is_counted_alike(item):
            return (), ()
        return self._turns.of_last_stages(item.number, TRUE, Var(self._loop), self._count, self._stages)

    def _promoting(self, item: Item, pass_turn: Body) -> Body:
        """The sum of an item that is promoted with each stage. From the end of its MMAs to the start of the next ones a
        warpgroup leaves the tensor cores idle: only promotion stands between. What the next stage asks for (its number,
        the wait until it is full) stands in front of the wait for the MMAs, where time is left."""
        uses: NumberedStages | RunningStages = self._numbered(item)
        if self._is_counted_alike(item):
            uses = RunningStages(self._loop, self._stages, uses.before)
        lets = uses.lets(self._read.name) if isinstance(uses, NumberedStages) else ()
        stage, parity = uses.following()
        in_front = self._scales.in_front
        read_ahead = (lambda use: ()) if in_front else self._scales.read_ahead
        following = Use(stage, Var(self._loop) + 1, uses.before)
        ahead = if_any(
            binary(Op.LT, following.iteration, self._count),
            (WaitBarrier(self.full(stage), parity), *read_ahead(following)),
        )
        read = self._scales.read(self._use(self._read, uses.before)) if in_front else ()
        events = (
            Event(always(*lets, *read)),
            Event(steps_of(lambda env: self.compute.over_parts(self._of_part(env, ahead)))),
        )
        pipeline = Pipeline(events, Uses(self._loop, self._count, {0: self._read}.get))
        first, phase = uses.first()
        begun = (WaitBarrier(self.full(first), phase), *read_ahead(Use(first, ZERO, uses.before)))
        carried = uses.carried() if isinstance(uses, RunningStages) else ()
        return (
            *(() if in_front else self._scales.declared),
            *if_any(binary(Op.LT, 0, self._count), begun),
            For(self._loop, self._count, pipeline.steady(), carried=carried),
            *pass_turn,
        )

    def _of_part(self, env: Env, ahead: Body) -> Body:
        """The MMAs of a stage, or of a part of it that is promoted before the next one; ahead: as of `_committed`. The
        stage is given back between the MMAs and the promotion of the last part."""
        sums, promotion = self.compute.sums, counted_by(self.compute.sums, self._loop)
        last: Expr = TRUE
        promoted: Body = ()
        if promotion is not None:
            loops = (self.program.loop(name) for name in promotion.parts)
            last = both(*(binary(Op.EQ, Var(loop.name), (loop.extent or 1) - 1) for loop in loops))
            promoted = promote(sums.of_part)
        release = self._release(env)
        if last != TRUE:
            ahead, release = if_any(last, ahead), if_any(last, release)
        take = () if self._scales.in_front else ScaleStream(sides(sums.of_part) or (), self._stages).take()
        return (WgmmaFence(), *self.compute.step(env), *self._committed(0, (*take, *ahead)), *release, *promoted)

    def _is_counted_alike(self, item: Item) -> bool:
        """Whether the uses of the ring before an item are a number that all threads of the grid agree on."""
        if self.plan.consumer.in_turn > 1 or isinstance(item, CountedItem):
            return False
        return self._scheduler.plan.walk is Walk.ONE_TILE or not self._scheduler.plan.split_k.by_items

    def _release(self, env: Env) -> Body:
        """One thread of the warpgroup, or of each warp where warps read the stage themselves, tells every block of the
        cluster that fills this stage: those in its row or its column."""
        assert env.stage is not None
        lane: Expr = Var(GROUP_LANE) if self._releases == 1 else Var(GROUP_LANE) % WARP_LANES
        if self._filling == 1:
            return (If(binary(Op.EQ, lane, 0), (ArriveBarrier(self.empty(env.stage)),)),)
        fills = binary(Op.LT, lane, self.plan.cluster)
        if self._filling < self.plan.cluster:
            rank, size = Var(RANK), max(rank_step(self.program, dim) for dim in ("m", "n"))
            together = binary(Op.EQ, lane // size, rank // size), binary(Op.EQ, lane % size, rank % size)
            fills = both(fills, binary(Op.LOR, *together))
        return (If(fills, (ArriveBarrier(self.empty(env.stage), lane),)),)

    @property
    def _releases(self) -> int:
        """Threads of a warpgroup that give a stage back: MMAs end for all its warps together, loads do not."""
        read = self._scales or held_in_registers(self.program) is not None
        return GROUP_LANES // WARP_LANES if read else 1

    @property
    def _filling(self) -> int:
        """Blocks of a cluster that load into the stages of one of them."""
        return neighbours(self.program, "m") + neighbours(self.program, "n") - 1

    def _together(self) -> Body:
        """Every thread multiplies; one of them starts the copies, ahead by all stages but the one in use."""
        uses, ahead = NumberedStages(self._loop, self._stages, ZERO), self._stages - 1
        stages = {0: self._read, ahead: binary(Op.MOD, Var(self._loop) + ahead, self._stages)}
        elected = binary(Op.EQ, Var("threadIdx.x"), 0)
        load = Event(steps_of(lambda env: self._load(env, ZERO)), ahead, beyond=Beyond.BRANCH, who=elected, fills=True)
        meet = Event(always(Barrier("this stage has been read by all")), at=Position.TAIL)
        events = (load, *self._multiply(uses, 0), meet, *self._promoted())
        pipeline = Pipeline(events, Uses(self._loop, self._count, stages.get))
        return (
            *self._init(with_empty=False),
            *self._wait,
            *pipeline.prologue(),
            *self.compute.declared,
            *self.compute.start,
            For(self._loop, self._count, pipeline.steady()),
            *left_over(self.compute.sums, self._loop, self._count),
            *self.compute.finish,
            *self.compute.leave,
        )
