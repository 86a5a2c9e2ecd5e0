"""Loops over k whose threads copy for themselves: through registers, by cp.async, tile after tile, by halves in turn.

    one stage       the next tile waits in registers until this one has been read; barriers are placed later
    a ring          tile t lies in stage t % n, and its copy starts n - 1 iterations ahead. The one barrier of an
                    iteration orders both hazards: tile t+1 is complete for all, and the stage of tile t, which the next
                    iteration fills, has been read by all
    persistent      where copies are asynchronous and all tiles of C use the ring equally often, it runs on from one
                    to the next: the last n - 1 iterations start the copies of the first n - 1 of the block's next tile.
                    Else it begins anew with each work item
    halves in turn  each half of the block copies every other tile while the other half computes

Where fragments run one inner step ahead, the first ones of tile t+1 are loaded right behind the barrier, and the
products of tile t's last step hide both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.async_stmt import FenceProxy
from tilewright.ir.expr import HERE, ZERO, Const, Env, Expr, Op, Select, Var, binary
from tilewright.ir.program import Loop, Program, Route, Staged
from tilewright.ir.stmt import Alloc, Barrier, Body, CommitCopies, For, If, Let, Steady, SyncWarp, WaitCopies
from tilewright.ir.visit import substitute
from tilewright.ir.work import Walk
from tilewright.lowering.coordinates import TURN, extent_of
from tilewright.lowering.copies import (
    Team,
    copy_steps,
    copy_tile,
    deposit_tile,
    fetch_tile,
    needs_scope,
    prefetch_buffer,
    whole_block,
)
from tilewright.lowering.generator import (
    Beside,
    Beyond,
    CarriedStages,
    Event,
    Pipeline,
    Position,
    Uses,
    always,
    steady_loop,
    steps_of,
)
from tilewright.lowering.kernel_parts import Steps, if_any
from tilewright.lowering.plan import Hop, KernelPlan
from tilewright.lowering.products import reads_shared
from tilewright.lowering.scheduler import Item, Scheduler


@dataclass(frozen=True)
class Iteration:
    """What an iteration does with its tiles once they are there.

    use: all of it; or, where fragments run one inner step ahead, every inner step but the last, with the loads for the
    next. declare: their registers. load: the fragments of inner step 0. finish: the last inner step, which loads those
    of the next tile's fragments that take their places one by one. reads_tile: whether the last step still reads the
    shared tile. by_matrices: whether fragments are loaded by ldmatrix. promote: behind all of it, where the sum is
    promoted after some of the iterations; None where it is not.
    """

    use: Callable[[Env, Beside], Body]
    declare: Body = ()
    load: Callable[[Env], Body] | None = None
    finish: Callable[[Env, Env], Body] = lambda env, following: ()
    reads_tile: bool = False
    by_matrices: bool = False
    promote: Callable[[Env], Body] | None = None


def copy_ordinary(program: Program, tiles: tuple[Staged, ...]) -> Body:
    """Copies that are complete, for this thread, when the statements are done."""
    copies = tuple(s for staged in tiles for s in copy_tile(program, staged))
    fence = _fence(program) if tiles else ()
    if any(staged.route is Route.ASYNC for staged in tiles):
        return (*copies, CommitCopies(), WaitCopies(0), *fence)
    return (*copies, *fence)


def _fence(program: Program) -> Body:
    """Before all meet: what was written to tiles comes before the asynchronous unit reads them."""
    return (FenceProxy(),) if reads_shared(program) else ()


@dataclass(frozen=True)
class OneStage:
    """One stage: tiles are prefetched into registers."""

    program: Program
    plan: KernelPlan
    loop: Loop
    exact: frozenset[str]
    iteration: Iteration

    @cached_property
    def _hops(self) -> tuple[Hop, ...]:
        return self.plan.hops_under(self.loop.name)

    @property
    def count(self) -> Expr:
        """Iterations of the loop."""
        return extent_of(self.program, self.loop, self.exact)

    def whole(self) -> Body:
        """The loop, and what comes before it."""
        late = tuple(hop.tile for hop in self._hops if not hop.prefetched)
        store = Event(lambda env: [deposit_tile(self.program, hop.tile, env) for hop in self._early])
        load = Event(self._fetch, 1, beyond=Beyond.BRANCH, fills=True)
        events = (store, Event(always(*copy_ordinary(self.program, late))), load, *self._promotion())
        pipeline = Pipeline(events, Uses(self.loop.name, self.count), self.iteration.use)
        return (*self._registers(), *pipeline.prologue(), steady_loop(pipeline, self.count, (), None))

    def _promotion(self) -> tuple[Event, ...]:
        """The last event of an iteration, where its sum is promoted."""
        promote, number = self.iteration.promote, self._number_in_tile
        if promote is None:
            return ()
        return (Event(steps_of(lambda env: promote(env.at(**{self.loop.name: number}))), at=Position.TAIL),)

    @property
    def _number_in_tile(self) -> Expr:
        """The running iteration of a tile of C."""
        return Var(self.loop.name)

    def _registers(self) -> Body:
        return tuple(Alloc(prefetch_buffer(self.program, hop.tile)) for hop in self._early)

    @property
    def _early(self) -> tuple[Hop, ...]:
        """Tiles that are loaded into registers first."""
        return tuple(hop for hop in self._hops if hop.prefetched)

    def _fetch(self, env: Env) -> list[Steps]:
        return [fetch_tile(self.program, hop.tile, env) for hop in self._early]


@dataclass(frozen=True)
class BlockRing(OneStage):
    """A ring of stages; every thread copies its part."""

    def whole(self) -> Body:
        pipeline = self._pipeline(self._uses)
        steady = Steady() if self._loads_by_matrices else None
        run = steady_loop(pipeline, self.count, self._stages.carried(), steady)
        return (*self._emptied(), *self._registers(), *self.iteration.declare, *pipeline.prologue(), run)

    def _emptied(self) -> Body:
        """In front of the ring of a block that comes here for one work item after another: what was copied, or loaded
        from a stage, beyond the end of the item before."""
        if self.plan.scheduler.walk is Walk.ONE_TILE:
            return ()
        loads = self.iteration.load is not None and self._beyond is not Beyond.BRANCH
        meet: Body = (Barrier("fragments of the item before are loaded"),) if loads else ()
        return (*((WaitCopies(0),) if self._is_asynchronous else ()), *meet)

    def _pipeline(self, uses: Uses) -> Pipeline:
        return Pipeline(self._events, uses, self.iteration.use, self.plan.spread)

    @property
    def _uses(self) -> Uses:
        # Where k may end inside a tile, each copy asks for its own k: it need not ask for its tile as well.
        by_tiles = self.count == extent_of(self.program, self.loop, frozenset(("k",)))
        return Uses(self.loop.name, self.count, self._stages.stage, by_tiles)

    @cached_property
    def _stages(self) -> CarriedStages:
        assert self.plan.ring is not None
        stages = self.plan.ring.stages
        return CarriedStages(self.loop.name, stages, self.iteration.load is not None and stages > 2)

    @cached_property
    def _beyond(self) -> Beyond:
        return self._hops[0].beyond

    @cached_property
    def _is_asynchronous(self) -> bool:
        """Whether some copy is made by cp.async."""
        return any(hop.tile.route is Route.ASYNC for hop in self._hops)

    @cached_property
    def _loads_by_matrices(self) -> bool:
        return self.iteration.by_matrices and self._beyond is not Beyond.BRANCH

    @cached_property
    def _events(self) -> tuple[Event, ...]:
        """The events of an iteration, in the order of the steady state.

        Copies through registers that are spread: a part is put into its stage when that of the next tile is asked for.
        """
        lead, beyond = self._stages.stages - 1, self._beyond
        stored = Beyond.BRANCH if beyond is Beyond.BRANCH else Beyond.ALWAYS
        meet = Event(steps_of(self._meet), 1, Position.TAIL)
        begin = Event(steps_of(self._begin), 1, Position.TAIL, stored)
        finish = Event(steps_of(self._finish), 0, Position.TAIL)
        if self.plan.spread.loop:
            start = Event(self._start, lead, Position.BESIDE, beyond, fills=True)
            store = Event(self._store, lead, Position.BESIDE, stored, fills=True)
            fetch = Event(self._fetch, lead + 1, Position.BESIDE, beyond, fills=True)
            copies: tuple[Event, ...] = (start, store, fetch, *self._commit(lead, Position.TAIL))
            stores: tuple[Event, ...] = ()
        else:
            start = Event(self._start, lead, Position.HEAD, beyond, fills=True)
            fetch = Event(self._fetch, lead, Position.HEAD, beyond, fills=True)
            copies = (start, fetch, *self._commit(lead, Position.HEAD), *self._kept_ahead())
            stores = (Event(self._store, lead, Position.TAIL, stored, fills=True),)
        # The last products hide what begins behind the barrier, unless they still read the tile.
        if self.iteration.reads_tile:
            return (*copies, finish, *stores, meet, begin, *self._promotion())
        return (*copies, *stores, meet, begin, finish, *self._promotion())

    def _kept_ahead(self) -> tuple[Event, ...]:
        """Between loads into registers and products, where the schedule asks for it and they stand in a branch; but not
        where the kernel before may still write what they read, as such loads are not constant, and stay."""
        fenced = any(hop.tile.fenced for hop in self._early)
        if not fenced or self._beyond is not Beyond.BRANCH or self.plan.overlapped:
            return ()
        return (Event(always(SyncWarp("loads stay in front of the products")), at=Position.HEAD),)

    def _commit(self, lead: int, at: Position) -> tuple[Event, ...]:
        """Closes the group of an iteration's asynchronous copies: always, so that waits count groups to the end."""
        return (Event(always(CommitCopies()), lead, at, fills=True),) if self._is_asynchronous else ()

    def _start(self, env: Env) -> list[Steps]:
        """Copies that are started, and arrive by themselves or are complete at once."""
        made = []
        for tile in (hop.tile for hop in self._hops if not hop.prefetched):
            steps = copy_steps(self.program, tile, env)
            scoped = self._beyond is not Beyond.BRANCH and needs_scope(self.program, tile)
            made.append(Steps(steps.var, 1, steps.body) if scoped else steps)
        return made

    def _store(self, env: Env) -> list[Steps]:
        return [deposit_tile(self.program, hop.tile, env) for hop in self._early]

    def _meet(self, env: Env) -> Body:
        wait: Body = (WaitCopies(self._stages.stages - 2),) if self._is_asynchronous else ()
        first, later = "the first tiles are complete", "the next tiles are complete, these are no longer read"
        return (*wait, *_fence(self.program), Barrier(first if env.in_prologue else later))

    def _begin(self, env: Env) -> Body:
        return () if self.iteration.load is None else self.iteration.load(env)

    def _finish(self, env: Env) -> Body:
        return self.iteration.finish(HERE.in_stage(self._stages.read), HERE.in_stage(self._stages.next))


PART = "part"
"""0: iterations that copy for the running tile; 1: iterations that copy for the next one."""

FIRST, AHEAD = "first", "ahead"
"""What names end in that say which tile of C: the block's first one, and the one that is copied."""


@dataclass(frozen=True)
class PersistentRing(BlockRing):
    """The tiles of C that one block computes, one after another.

        start iterations 0 .. n-2 of the first tile;  wait for the first;  barrier
        for tile:
            sums = 0
            for part in 0, 1:                   iterations that copy for this tile, and those that copy for the next
                for k:  use iteration k;  start iteration k+n-1 of this tile, or iteration k of the next
            results leave

    So while results leave, the next tile is on its way, and only the very first iteration waits for memory. Both parts
    are one loop in the text, which finds its operands by the coordinates of the tile that it copies.
    """

    def over_tiles(self, start: Body, finish: Body) -> Body:
        """The whole of it. start: sets the sums; finish: stores them; names of the running tile have no suffix."""
        pipeline = self._pipeline(self._uses)

        def tile(_: Item) -> Body:
            return (*start, self._parts(pipeline), *finish)

        first = self._found(ZERO, FIRST)
        prologue = (*self._registers(), *self.iteration.declare, *pipeline.prologue())
        return (*first, *prologue, *self._scheduler.each(tile))

    @property
    def _number_in_tile(self) -> Expr:
        return Var(f"{self.loop.name}_done") + Var(self.loop.name)

    @property
    def _uses(self) -> Uses:
        names = self._scheduler.names
        digits = {suffix: {name: Var(_name(name, suffix)) for name in names} for suffix in (FIRST, AHEAD)}
        return _OverTiles(self.loop.name, self.count, self._stages.stage, True, digits[FIRST], digits[AHEAD])

    def _parts(self, pipeline: Pipeline) -> For:
        """The iterations of one tile."""
        name, early, stages, part = self.loop.name, self._stages.stages - 1, self._stages.stages, Var(PART)
        of_loop = ("number", "done", "from", "limit", "iterations")
        number, done, begin, limit, iterations = (Var(f"{name}_{what}") for what in of_loop)
        is_first = binary(Op.EQ, part, 0)
        there = binary(Op.LT, self._scheduler.numbered(Var(TURN) + part), self._scheduler.count)
        # At least as many as are copied early, where k is short with zeros.
        each = binary(Op.MAX, self.count, early)
        lets = (
            *self._found(Var(TURN) + part, AHEAD),
            Let(begin.name, Select(is_first, Const(early), ZERO), "the first iteration that is copied"),
            Let(limit.name, Select(there, self.count - begin, ZERO), "iterations that copy"),
            Let(done.name, Select(is_first, ZERO, each - early), "iterations of this tile before"),
            Let(number.name, binary(Op.MOD, Var(TURN) * each + done, stages), "the stage of the next"),
            Let(iterations.name, Select(is_first, each - early, Const(early))),
        )
        steady = Steady(moves_on=True) if self._loads_by_matrices else None
        run = steady_loop(pipeline, iterations, self._stages.carried_from(number), steady)
        return For(PART, Const(2), (*lets, run), note="copies for this tile, then for the next")

    @property
    def _scheduler(self) -> Scheduler:
        return Scheduler(self.program)

    def _found(self, turn: Expr, suffix: str) -> Body:
        """The coordinates of a tile of this block, their names with a suffix; where it has none, of the last tile."""
        return _renamed(self._scheduler.locate(turn, clamped=True), suffix)


@dataclass(frozen=True)
class _OverTiles(Uses):
    """Copies work for the tile that is copied: in front of the loops the block's first one. first_tile, tile_ahead: its
    coordinates."""

    first_tile: Mapping[str, Expr] | None = None
    tile_ahead: Mapping[str, Expr] | None = None

    def ahead(self, event: Event) -> tuple[Env, Expr | None]:
        if not event.fills:
            return Env(stage=self.stage(event.lead)), None
        digits = {self.loop: Var(self.loop) + Var(f"{self.loop}_from"), **(self.tile_ahead or {})}
        exists = binary(Op.LT, Var(self.loop), Var(f"{self.loop}_limit"))
        return Env(digits, self.stage(event.lead)), exists

    def first(self, number: int) -> tuple[Env, Expr]:
        env, exists = super().first(number)
        return env.at(**(self.first_tile or {})), exists


def _name(name: str, suffix: str) -> str:
    return f"{name}_{suffix}"


def _renamed(lets: Body, suffix: str) -> Body:
    """`Let`s by other names, which end in `suffix`."""
    names: dict[str, Expr] = {}
    result: list[Let] = []
    for let in lets:
        assert isinstance(let, Let)
        result.append(Let(_name(let.name, suffix), substitute(let.value, names), let.note))
        names[let.name] = Var(result[-1].name)
    return tuple(result)


@dataclass(frozen=True)
class AlternatingHalves(OneStage):
    """Two stages and two halves of the block; each half copies every other tile while the other half computes.

    Half 0 copies even tiles into stage 0, half 1 odd tiles into stage 1. An iteration takes two tiles in three phases,
    with a barrier after each, which no branch may hold:

        half 0:  use stage 0  | use stage 1 | fill stage 0
        half 1:  fill stage 1 | use stage 0 | use stage 1
    """

    def whole(self) -> Body:
        everyone = whole_block(self.program)
        half = Team(everyone.threads // 2, everyone.number % (everyone.threads // 2))
        first_half = binary(Op.LT, everyone.number, half.threads)
        pair = Var(f"{self.loop.name}_pair")
        even, odd = pair * 2, pair * 2 + 1

        def at(tile: Expr, stage: int) -> Env:
            return HERE.at(**{self.loop.name: tile}).in_stage(Const(stage))

        def filling(tile: Expr, stage: int) -> Body:
            copies = [copy_steps(self.program, hop.tile, at(tile, stage), team=half) for hop in self._hops]
            return if_any(binary(Op.LT, tile, self.count), tuple(s for copy in copies for s in copy.whole()))

        def using(tile: Expr, stage: int) -> Body:
            env, promote = at(tile, stage), self.iteration.promote
            use = self.iteration.use(env, Beside())
            return if_any(binary(Op.LT, tile, self.count), (*use, *(promote(env) if promote else ())))

        body: Body = (
            If(first_half, using(even, 0), filling(odd, 1)),
            Barrier("the odd tile is complete"),
            If(first_half, using(odd, 1), using(even, 0)),
            Barrier("the even tile is no longer read"),
            If(first_half, filling(even + 2, 0), using(odd, 1)),
            Barrier("the next even tile is complete, the odd one no longer read"),
        )
        start = (If(first_half, filling(ZERO, 0)), Barrier("the first tile is complete"))
        return (*start, For(pair.name, binary(Op.DIV, self.count + 1, 2), body))
