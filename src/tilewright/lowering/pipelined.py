"""A loop whose copies run ahead of their use: prologue, steady state, and who waits for what.

With a ring of n slots, tile t lies in slot t % n, and the copy of tile t + n - 1 is started before tile t is used:

    start tiles 0 .. n-2;  wait for tile 0;  barrier
    for t:  start tile t+n-1 (or load it into registers)
            use tile t
            put what was loaded into registers into its slot
            wait for tile t+1;  barrier

The one barrier at the end of a step orders both hazards: tile t+1 is complete for all, and the slot of tile t, which
the next step fills, has been read by all. Without a ring (one slot, tiles prefetched into registers) the barriers are
those of the plain loop.

When fragments are prefetched as well, those of the next inner step are loaded while this one multiplies; the first ones
of tile t+1 are loaded right after the barrier, and the multiply-adds of tile t's last step hide both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.ir.async_stmt import FenceProxy
from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary, both
from tilewright.ir.program import CUT_OUT_TILES, Loop, Pipelined, Program, Route, Staged
from tilewright.ir.simplify import substitute
from tilewright.ir.stmt import (
    Alloc,
    Assign,
    Barrier,
    Body,
    Carried,
    CommitCopies,
    For,
    If,
    Let,
    Move,
    MultiplyTiles,
    RoundPair,
    Stmt,
    WaitCopies,
)
from tilewright.ir.tiles import arrived_name, arriving_name, cut_name, fill_name, side_name, slot_name
from tilewright.ir.visit import map_exprs, rewrite, walk
from tilewright.lowering import cut_out
from tilewright.lowering.coordinates import extent_of
from tilewright.lowering.copies import Team, copy_tile, deposit_tile, fetch_tile, prefetch_buffer, whole_block
from tilewright.lowering.products import reads_shared
from tilewright.units import ceil_div


@dataclass(frozen=True, slots=True)
class Use:
    """What an iteration does with its tiles once they are there.

    whole: all of it. Or, where fragments run one inner step ahead: declare their registers; first, load those of inner
    step 0; most, every inner step but the last with the loads for the next; last, the last inner step, which may pass
    the barrier unless it still reads the tile.
    """

    whole: Body = ()
    declare: Body = ()
    first: Body = ()
    most: Body = ()
    last: Body = ()
    last_reads_tile: bool = False

    @property
    def is_split(self) -> bool:
        return bool(self.first)


def tiles_under(program: Program, loop: Loop) -> tuple[Staged, ...]:
    """The shared tiles of A and B that are filled in each iteration of a loop."""
    return tuple(
        staged
        for operand in ("A", "B")
        for staged in program.chain(operand)
        if staged.under == loop.name and staged.space is Space.SHARED
    )


def runs_ahead(program: Program, loop: Loop) -> bool:
    """Whether some copy under the loop is started before the iteration that uses it."""
    ring = program.pipelined is not None and program.pipelined.loop == loop.name
    return ring or any(staged.prefetched for staged in tiles_under(program, loop))


def pipelined_loop(program: Program, loop: Loop, extent: Expr, use: Use) -> Body:
    """The loop with its copies running ahead; `use` is what an iteration does once its tiles are there."""
    ring = program.pipelined
    if ring is None or ring.loop != loop.name:
        return _prefetched_loop(program, loop, extent, use.whole)
    if ring.alternating:
        return _alternating_loop(program, loop, extent, use.whole)
    if any(staged.cut_out for staged in tiles_under(program, loop)):
        return _CutOutLoop(program, loop, extent, use, ring).whole()
    return _RingLoop(program, loop, extent, use, ring).whole()


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


def at(body: Body, **values: Expr) -> Body:
    """`body` with variables replaced."""
    return rewrite(body, lambda stmt: (map_exprs(stmt, lambda expr: substitute(expr, values)),))


def _if(condition: Expr, body: Body) -> Body:
    return (If(condition, body),) if body else ()


@dataclass(frozen=True)
class _Ring:
    """A loop over tiles that come through a ring of slots: what there is to it, whoever fills the slots."""

    program: Program
    loop: Loop
    extent: Expr
    use: Use
    ring: Pipelined

    @property
    def _next(self) -> str:
        """The counter that says which slot is read in the next turn."""
        return f"{self.loop.name}_next"

    def _copied(self, copies: Body, turn: Expr) -> Body:
        """The copies of a turn, which fill their slots whether there is a tile or not.

        Where k may end inside a tile, each copy asks for its own k: it need not ask for its tile as well.
        """
        copies = at(copies, **{self.loop.name: turn})
        is_whole = self.extent == extent_of(self.loop, frozenset(("k",)))
        return _where(binary(Op.LT, turn, self.extent), copies) if is_whole else copies

    def _beside(self, copies: Body) -> Body:
        """What a turn does with its tiles, behind copies; where they are spread, with a part of them in each step."""
        used = (*self.use.whole, *self.use.most)
        if not self.ring.spread:
            return (*copies, *used)
        return tuple(_spread_over(self.ring.spread, stmt, copies) for stmt in used)

    def _meet(self, finish: Body, begin: Body) -> Body:
        """The end of a turn. Its last products hide what begins behind the barrier, unless they still read the tile."""
        before, behind = (self.use.last, ()) if self.use.last_reads_tile else ((), self.use.last)
        return (*before, *finish, Barrier("the next tiles are complete, these are no longer read"), *begin, *behind)

    def _slots(self, *, runs_ahead: bool) -> tuple[Carried, ...]:
        """Which slot is read, which is filled and, where that has a counter of its own, which is read next."""
        starts = {slot_name(self.loop.name): 0, fill_name(self.loop.name): self.ring.stages - 1}
        if runs_ahead:
            starts[self._next] = 1
        return tuple(_counter(name, first, self.ring.stages) for name, first in starts.items())


@dataclass(frozen=True)
class _RingLoop(_Ring):
    """The tiles themselves lie in the ring: see the top of this file."""

    def whole(self) -> Body:
        """The loop, and what comes before it."""
        name, first = self.loop.name, self.use.first
        # Of two slots, the next one to be read is the one that is being filled.
        runs_ahead = self.use.is_split and self.ring.stages > 2
        following = Var(self._next if runs_ahead else fill_name(name))
        begin = self._if_there(at(first, **{slot_name(name): ZERO}), ZERO)
        begin_next = self._if_there(at(first, **{slot_name(name): following}), Var(name) + 1)
        waiting = () if self.ring.spread else self._deposited(self._ahead)
        body = (*self._steps(), *self._meet((*waiting, *self._wait), begin_next))
        run = For(name, self.extent, body, carried=self._slots(runs_ahead=runs_ahead))
        return (*self._prologue(), *self._wait, Barrier("the first tiles are complete"), *begin, run)

    def _prologue(self) -> Body:
        """Registers, and the copies of every slot but one."""
        stages, slot = self.ring.stages, fill_name(self.loop.name)
        registers = (Alloc(prefetch_buffer(self.program, staged)) for staged in self._early)
        stmts: list[Stmt] = [*registers, *self.use.declare]
        for tile in range(stages - 1):
            copies = at((*self._start, *self._fetch, *self._deposit), **{slot: Const(tile)})
            stmts += [*self._copied(copies, Const(tile)), *self._commit]
        if self.ring.spread:
            stmts += self._copied(self._fetch, Const(stages - 1))
        return tuple(stmts)

    def _steps(self) -> Body:
        """What a turn does up to its end, with the copies that it starts.

        Copies through registers that are spread: a part is put into its slot when that of the next tile is asked for.
        """
        ahead = self._ahead
        if not self.ring.spread:
            return self._beside((*self._copied((*self._start, *self._fetch), ahead), *self._commit))
        fetched = self._copied(self._fetch, ahead + 1)
        return (*self._beside((*self._copied(self._start, ahead), *self._deposited(ahead), *fetched)), *self._commit)

    def _deposited(self, turn: Expr) -> Body:
        return self._if_there(at(self._deposit, **{self.loop.name: turn}), turn)

    def _copied(self, copies: Body, turn: Expr) -> Body:
        if self._has_no_branch:
            return super()._copied(copies, turn)
        return self._if_there(at(copies, **{self.loop.name: turn}), turn)

    def _if_there(self, body: Body, turn: Expr) -> Body:
        """What is done with the tile of a turn: also with zeros, where every slot is filled."""
        return body if self._has_no_branch else _if(binary(Op.LT, turn, self.extent), body)

    @cached_property
    def _has_no_branch(self) -> bool:
        """Whether every slot is filled: branches would keep the compiler from moving addresses out of the loop.

        Only a loop or a branch gives the names of a copy a scope of their own.
        """
        named = any(isinstance(stmt, (Let, Alloc)) for stmt in (*self._start, *self._fetch, *self._deposit))
        return self.program.tensorized is not None and not named

    @property
    def _ahead(self) -> Expr:
        """The turn whose copies are started."""
        return Var(self.loop.name) + (self.ring.stages - 1)

    @property
    def _commit(self) -> Body:
        return (CommitCopies(),) if self._is_asynchronous else ()

    @property
    def _wait(self) -> Body:
        wait: Body = (WaitCopies(self.ring.stages - 2),) if self._is_asynchronous else ()
        return (*wait, *_fence(self.program))

    @property
    def _is_asynchronous(self) -> bool:
        return any(staged.route is Route.ASYNC for staged in tiles_under(self.program, self.loop))

    @cached_property
    def _start(self) -> Body:
        tiles = (staged for staged in tiles_under(self.program, self.loop) if not staged.prefetched)
        return tuple(s for staged in tiles for s in copy_tile(self.program, staged))

    @cached_property
    def _fetch(self) -> Body:
        return tuple(s for staged in self._early for s in fetch_tile(self.program, staged))

    @cached_property
    def _deposit(self) -> Body:
        return tuple(s for staged in self._early for s in deposit_tile(self.program, staged))

    @property
    def _early(self) -> tuple[Staged, ...]:
        """Tiles that are loaded into registers first."""
        return tuple(staged for staged in tiles_under(self.program, self.loop) if staged.prefetched)


@dataclass(frozen=True)
class _CutOutLoop(_Ring):
    """A ring of vectors in front of two tiles: one is used while the next is cut out of its vectors.

        start the vectors of tiles 0 .. n;  wait;  barrier
        cut out tile 0;  barrier
        for t:  start the vectors of tile t+n+1, where those of tile t were
                cut out tile t+1
                use tile t
                wait for the vectors of tile t+2;  barrier

    Where fragments run ahead, nobody reads tile t behind the barrier: tile t+2 is cut out there, in its place, and the
    last products of tile t hide it. A row along k ends in the first vector of the next tile, for which all wait too.

    An operand whose rows are aligned needs no cutting: its tiles come straight into a ring of n slots.
    """

    def whole(self) -> Body:
        """The loop, and what comes before it."""
        name, first = self.loop.name, self.use.first
        side = Var(side_name(name))
        other, following = Const(CUT_OUT_TILES - 1) - side, Var(self._next)
        ahead, wait = Var(name) + self._vector_slots, WaitCopies(self._vector_slots - 3)
        copies = (*self._vectors(ahead, Var(arriving_name(name))), *self._uncut(ahead, Var(fill_name(name))))
        begin = at(first, **{side_name(name): ZERO, slot_name(name): ZERO})
        begin_next = at(first, **{side_name(name): other, slot_name(name): following})
        if self._is_hidden:
            begin_next = (*begin_next, *self._cut(side))
        else:
            copies = (*copies, *self._cut(other))
        body = (*self._beside(copies), *self._meet((CommitCopies(), wait), begin_next))
        run = For(name, self.extent, body, carried=self._counters())
        return (*self._prologue(), wait, Barrier("the first tiles are complete"), *begin, run)

    def _prologue(self) -> Body:
        """Vectors for every slot, and the first tiles cut out of them."""
        stmts: list[Stmt] = [*self.use.declare]
        for turn in range(self._vector_slots):
            stmts += self._vectors(Const(turn), Const(turn), first=turn == 0)
            if turn >= self._later:
                stmts += self._uncut(Const(turn), Const(turn - self._later))
            stmts.append(CommitCopies())
        stmts += [WaitCopies(self._vector_slots - 1 - self._lead), Barrier("the first vectors are there")]
        for turn in range(self._lead):
            stmts += at(self._cut(Const(turn)), **{arrived_name(self.loop.name): Const(turn)})
        return tuple(stmts)

    def _vectors(self, turn: Expr, slot: Expr, *, first: bool = False) -> Body:
        """Start the vectors of a turn's tiles."""
        tiles = self._tiles(are_cut=True)
        started = tuple(s for staged in tiles for s in cut_out.start(self.program, staged, first=first))
        return at(started, **{self.loop.name: turn, arriving_name(self.loop.name): slot})

    def _uncut(self, turn: Expr, slot: Expr) -> Body:
        """Start the tile that needs no cutting, which is not as far ahead as the vectors of a turn."""
        copies = tuple(s for staged in self._tiles(are_cut=False) for s in copy_tile(self.program, staged))
        return self._copied(at(copies, **{fill_name(self.loop.name): slot}), turn - self._later)

    def _cut(self, side: Expr) -> Body:
        """Cut tiles out of the vectors that have arrived."""
        cut = tuple(s for staged in self._tiles(are_cut=True) for s in cut_out.cut_out(self.program, staged))
        return at(cut, **{cut_name(self.loop.name): side})

    def _counters(self) -> tuple[Carried, ...]:
        name, slots = self.loop.name, self._vector_slots
        counters = (
            _counter(side_name(name), 0, CUT_OUT_TILES),
            _counter(arriving_name(name), 0, slots),
            _counter(arrived_name(name), self._lead, slots),
        )
        return (*counters, *self._slots(runs_ahead=self.use.is_split)) if self._tiles(are_cut=False) else counters

    @property
    def _is_hidden(self) -> bool:
        """Whether tiles are cut out behind the barrier."""
        return self.use.is_split and not self.use.last_reads_tile

    @property
    def _lead(self) -> int:
        """Tiles that are cut out before the loop."""
        return CUT_OUT_TILES if self._is_hidden else CUT_OUT_TILES - 1

    @property
    def _later(self) -> int:
        """Turns by which a tile that needs no cutting comes later than vectors."""
        return self._vector_slots - self.ring.stages + 1

    @property
    def _vector_slots(self) -> int:
        return cut_out.slots_of(self.ring)

    def _tiles(self, *, are_cut: bool) -> list[Staged]:
        return [staged for staged in tiles_under(self.program, self.loop) if staged.cut_out is are_cut]


def _where(condition: Expr, body: Body) -> Body:
    """Copies that fill their slots with zeros where there is no tile: no branch, and every slot is filled.

    So what is loaded one step too far is zero, and needs no branch either.
    """

    def guarded(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Move) and stmt.src.buffer.space is Space.GLOBAL:
            return (replace(stmt, guard=both(condition, stmt.guard)),)
        return None

    return rewrite(body, guarded)


def _spread_over(inner: str, stmt: Stmt, copies: Body) -> Stmt:
    """The loop `inner` with a part of the copies started in each of its iterations; any other statement as it is.

    They are started behind the loads, which the products wait for, and in front of the products, which hide both.
    """
    if not isinstance(stmt, For) or stmt.var != inner or not isinstance(stmt.extent, Const):
        return stmt
    count = int(stmt.extent.value)
    parts = tuple(part for copy in copies for part in _part(copy, Var(inner), count))
    products = next((i for i, s in enumerate(stmt.body) if _multiplies(s)), len(stmt.body))
    return replace(stmt, body=(*stmt.body[:products], *parts, *stmt.body[products:]), unroll=True)


def _multiplies(stmt: Stmt) -> bool:
    return any(isinstance(s, (Assign, RoundPair, MultiplyTiles)) for _, s in walk((stmt,)))


def _part(copy: Stmt, turn: Expr, count: int) -> Body:
    """Of a copy in several steps, those of one turn of `count`; a copy in one step belongs to the first turn."""
    if not isinstance(copy, For) or not isinstance(copy.extent, Const):
        return (If(binary(Op.EQ, turn, 0), (copy,)),)
    steps = int(copy.extent.value)
    each = ceil_div(steps, count)
    number = turn * each + Var(copy.var)
    body = at(copy.body, **{copy.var: number})
    if each * count > steps:
        body = _if(binary(Op.LT, number, steps), body)
    return (replace(copy, extent=Const(each), body=body),)


def _counter(name: str, start: int, stages: int) -> Carried:
    """A counter that goes round 0 .. stages - 1 without a division."""
    following = Var(name) + 1
    return Carried(name, Const(start), Select(binary(Op.EQ, following, stages), ZERO, following))


def _prefetched_loop(program: Program, loop: Loop, extent: Expr, use: Body) -> Body:
    """One slot: the next tile waits in registers until this one has been read."""
    tiles = tiles_under(program, loop)
    early = tuple(staged for staged in tiles if staged.prefetched)
    late = tuple(staged for staged in tiles if not staged.prefetched)
    registers: Body = tuple(Alloc(prefetch_buffer(program, staged)) for staged in early)
    fetch = tuple(s for staged in early for s in fetch_tile(program, staged))
    deposit = tuple(s for staged in early for s in deposit_tile(program, staged))
    following = Var(loop.name) + 1
    body: Body = (
        *deposit,
        *copy_ordinary(program, late),
        *_if(binary(Op.LT, following, extent), at(fetch, **{loop.name: following})),
        *use,
    )
    first = _if(binary(Op.LT, 0, extent), at(fetch, **{loop.name: ZERO}))
    return (*registers, *first, For(loop.name, extent, body))


def _alternating_loop(program: Program, loop: Loop, extent: Expr, use: Body) -> Body:
    """Two slots and two halves of the block; each half copies every other tile while the other half computes.

    Half 0 copies even tiles into slot 0, half 1 odd tiles into slot 1. A step takes two tiles in three phases, with a
    barrier after each:

        half 0:  use slot 0  | use slot 1 | fill slot 0
        half 1:  fill slot 1 | use slot 0 | use slot 1
    """
    everyone = whole_block(program)
    half = Team(everyone.threads // 2, everyone.number % (everyone.threads // 2))
    fill = tuple(s for staged in tiles_under(program, loop) for s in copy_tile(program, staged, team=half))
    first_half = binary(Op.LT, everyone.number, half.threads)
    slot, filled, pair = slot_name(loop.name), fill_name(loop.name), f"{loop.name}_pair"
    even, odd = Var(pair) * 2, Var(pair) * 2 + 1

    def filling(tile: Expr, place: int) -> Body:
        return _if(binary(Op.LT, tile, extent), at(fill, **{loop.name: tile, filled: Const(place)}))

    def using(tile: Expr, place: int) -> Body:
        return _if(binary(Op.LT, tile, extent), at(use, **{loop.name: tile, slot: Const(place)}))

    body: Body = (
        If(first_half, using(even, 0), filling(odd, 1)),
        Barrier("the odd tile is complete"),
        If(first_half, using(odd, 1), using(even, 0)),
        Barrier("the even tile is no longer read"),
        If(first_half, filling(even + 2, 0), using(odd, 1)),
        Barrier("the next even tile is complete, the odd one no longer read"),
    )
    start = (If(first_half, filling(ZERO, 0)), Barrier("the first tile is complete"))
    return (*start, For(pair, binary(Op.DIV, extent + 1, 2), body))
