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

from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.async_stmt import FenceProxy
from tilewright.ir.expr import ZERO, Const, Expr, Op, Var, binary
from tilewright.ir.program import Loop, Program, Route, Staged
from tilewright.ir.stmt import (
    Alloc,
    Barrier,
    Body,
    CommitCopies,
    For,
    If,
    Let,
    Stmt,
    WaitCopies,
)
from tilewright.ir.tiles import fill_name, next_name, slot_name
from tilewright.lowering.coordinates import extent_of
from tilewright.lowering.copies import Team, copy_tile, deposit_tile, fetch_tile, prefetch_buffer, whole_block
from tilewright.lowering.kernel_parts import at, if_any
from tilewright.lowering.products import reads_shared
from tilewright.lowering.ring import Ring, Use, tiles_under


def runs_ahead(program: Program, loop: Loop) -> bool:
    """Whether some copy under the loop is started before the iteration that uses it."""
    ring = program.pipelined is not None and program.pipelined.loop == loop.name
    return ring or any(staged.prefetched for staged in tiles_under(program, loop))


def pipelined_loop(program: Program, loop: Loop, exact: frozenset[str], use: Use) -> Body:
    """The loop with its copies running ahead; `use` is what an iteration does once its tiles are there.

    exact: dimensions that have no edge.
    """
    ring, extent = program.pipelined, extent_of(program, loop, exact)
    if ring is None or ring.loop != loop.name:
        return _prefetched_loop(program, loop, extent, use.whole)
    if ring.alternating:
        return _alternating_loop(program, loop, extent, use.whole)
    return RingLoop(program, loop, exact, use, ring).whole()


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
class RingLoop(Ring):
    """The tiles themselves lie in the ring: see the top of this file."""

    def whole(self) -> Body:
        """The loop, and what comes before it."""
        name = self.loop.name
        begin = self._if_there(at(self.use.first, **{slot_name(name): ZERO}), ZERO)
        run = For(name, self.extent, self._turn(), carried=self._slots(runs_ahead=self._runs_ahead))
        return (*self._prologue(), *self._wait, Barrier("the first tiles are complete"), *begin, run)

    def _turn(self) -> Body:
        """What is done in each turn of the loop."""
        name = self.loop.name
        following = Var(next_name(name) if self._runs_ahead else fill_name(name))
        begin_next = self._if_there(at(self.use.again, **{slot_name(name): following}), Var(name) + 1)
        waiting = () if self.ring.spread else self._deposited(self._ahead)
        turn = (*self._steps(), *self._meet((*waiting, *self._wait), begin_next))
        return turn if self._runs_ahead else at(turn, **{next_name(name): following})

    @property
    def _runs_ahead(self) -> bool:
        """Whether the slot that is read next has a counter: of two, it is the one that is being filled."""
        return self.use.is_split and self.ring.stages > 2

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
        return body if self._has_no_branch else if_any(binary(Op.LT, turn, self.extent), body)

    @cached_property
    def _has_no_branch(self) -> bool:
        """Whether every slot is filled: branches would keep the compiler from moving addresses out of the loop.

        Only a loop or a branch gives the names of a copy a scope of their own. Where every slot must be filled, a copy
        that is made once stands in a loop of one turn.
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
        copies = tuple(s for staged in tiles for s in copy_tile(self.program, staged))
        must_be_filled = self.program.persistent or any(staged.in_place for staged in self.program.staged)
        if must_be_filled and any(isinstance(stmt, (Let, Alloc)) for stmt in copies):
            return (For(f"{self.loop.name}_copies", Const(1), copies, unroll=True),)
        return copies

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
        *if_any(binary(Op.LT, following, extent), at(fetch, **{loop.name: following})),
        *use,
    )
    first = if_any(binary(Op.LT, 0, extent), at(fetch, **{loop.name: ZERO}))
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
        return if_any(binary(Op.LT, tile, extent), at(fill, **{loop.name: tile, filled: Const(place)}))

    def using(tile: Expr, place: int) -> Body:
        return if_any(binary(Op.LT, tile, extent), at(use, **{loop.name: tile, slot: Const(place)}))

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
