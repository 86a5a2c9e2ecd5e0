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

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.ir.async_stmt import FenceProxy
from tilewright.ir.buffer import Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Select, Var, binary, both
from tilewright.ir.program import Loop, Pipelined, Program, Route, Staged
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
        return _cut_out_loop(program, loop, extent, use, ring)
    return _ring_loop(program, loop, extent, use, ring)


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


def _ring_loop(program: Program, loop: Loop, extent: Expr, use: Use, ring: Pipelined) -> Body:
    stages = ring.stages
    tiles = tiles_under(program, loop)
    early = tuple(staged for staged in tiles if staged.prefetched)
    started = tuple(staged for staged in tiles if not staged.prefetched)
    asynchronous = any(staged.route is Route.ASYNC for staged in tiles)
    commit: Body = (CommitCopies(),) if asynchronous else ()
    wait: Body = (*((WaitCopies(stages - 2),) if asynchronous else ()), *_fence(program))
    registers: Body = (*(Alloc(prefetch_buffer(program, staged)) for staged in early), *use.declare)
    start = tuple(s for staged in started for s in copy_tile(program, staged))
    fetch = tuple(s for staged in early for s in fetch_tile(program, staged))
    deposit = tuple(s for staged in early for s in deposit_tile(program, staged))
    # Branches in the loop would keep the compiler from moving addresses out of it: see `_where`.
    # Only a loop or a branch gives the names of a copy a scope of their own.
    named = any(isinstance(stmt, (Let, Alloc)) for stmt in (*start, *fetch, *deposit))
    filled = program.tensorized is not None and not named
    where: Callable[[Expr, Body], Body] = _if
    if filled:
        # Where k may end inside a tile, each copy asks for its own k: it need not ask for its tile as well.
        where = _where if extent == extent_of(loop, frozenset(("k",))) else _anywhere

    prologue: list[Stmt] = [*registers]
    for tile in range(stages - 1):
        first = at((*start, *fetch, *deposit), **{loop.name: Const(tile), fill_name(loop.name): Const(tile)})
        prologue += [*where(binary(Op.LT, tile, extent), first), *commit]
    ahead = Var(loop.name) + (stages - 1)
    there = binary(Op.LT, ahead, extent)
    # Copies through registers that are spread: a part is put into its slot when that of the next tile is asked for.
    waiting = bool(ring.spread) and bool(fetch)
    if waiting:
        prologue += where(binary(Op.LT, stages - 1, extent), at(fetch, **{loop.name: Const(stages - 1)}))
    slots = [_counter(slot_name(loop.name), 0, stages), _counter(fill_name(loop.name), stages - 1, stages)]
    following = fill_name(loop.name)
    if use.is_split and stages > 2:
        following = f"{loop.name}_next"
        slots.append(_counter(following, 1, stages))
    more = binary(Op.LT, Var(loop.name) + 1, extent)

    def begin(condition: Expr, first: Body) -> Body:
        return first if filled else _if(condition, first)

    used = use.most if use.is_split else use.whole
    at_once: Body = (*start, *fetch)
    if ring.spread:
        spread = where(there, at(start, **{loop.name: ahead}))
        if waiting:
            late = at(deposit, **{loop.name: ahead})
            after = where(binary(Op.LT, ahead + 1, extent), at(fetch, **{loop.name: ahead + 1}))
            spread = (*spread, *(late if filled else _if(there, late)), *after)
        used = tuple(_spread_over(ring.spread, s, spread) for s in used)
        at_once, deposit = (), () if waiting else deposit
    body: Body = (
        *where(there, at(at_once, **{loop.name: ahead})),
        *(() if ring.spread else commit),
        *used,
        *(commit if ring.spread else ()),
        *(use.last if use.last_reads_tile else ()),
        *(at(deposit, **{loop.name: ahead}) if filled else _if(there, at(deposit, **{loop.name: ahead}))),
        *wait,
        Barrier("the next tiles are complete, these are no longer read"),
        *begin(more, at(use.first, **{slot_name(loop.name): Var(following)})),
        *(() if use.last_reads_tile else use.last),
    )
    start_use = begin(binary(Op.LT, 0, extent), at(use.first, **{slot_name(loop.name): ZERO}))
    run = For(loop.name, extent, body, carried=tuple(slots))
    return (*prologue, *wait, Barrier("the first tiles are complete"), *start_use, run)


def _cut_out_loop(program: Program, loop: Loop, extent: Expr, use: Use, ring: Pipelined) -> Body:
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
    slots, stages, name = cut_out.slots_of(ring), ring.stages, loop.name
    tiles = [staged for staged in tiles_under(program, loop) if staged.cut_out]
    whole = [staged for staged in tiles_under(program, loop) if not staged.cut_out]
    lead = 2 if use.is_split and not use.last_reads_tile else 1
    cut = tuple(s for staged in tiles for s in cut_out.cut_out(program, staged))
    copy = tuple(s for staged in whole for s in copy_tile(program, staged))
    each = _where if extent == extent_of(loop, frozenset(("k",))) else _anywhere
    late = slots - stages + 1  # turns by which tiles that need no cutting come later than vectors

    def vectors(turn: Expr, slot: Expr, *, first: bool = False) -> Body:
        started = (s for staged in tiles for s in cut_out.start(program, staged, first=first))
        return at(tuple(started), **{name: turn, arriving_name(name): slot})

    def uncut(turn: Expr, slot: Expr) -> Body:
        return each(binary(Op.LT, turn - late, extent), at(copy, **{name: turn - late, fill_name(name): slot}))

    wait = WaitCopies(slots - 3)
    prologue: list[Stmt] = [*use.declare]
    for turn in range(slots):
        prologue += vectors(Const(turn), Const(turn), first=turn == 0)
        if turn >= late:
            prologue += uncut(Const(turn), Const(turn - late))
        prologue.append(CommitCopies())
    prologue += [WaitCopies(slots - 1 - lead), Barrier("the first vectors are there")]
    for turn in range(lead):
        prologue += at(cut, **{arrived_name(name): Const(turn), cut_name(name): Const(turn)})
    begin = at(use.first, **{side_name(name): ZERO, slot_name(name): ZERO})
    prologue += [wait, Barrier("the first tiles are complete"), *begin]
    ahead = Var(name) + slots
    starts = (*vectors(ahead, Var(arriving_name(name))), *uncut(ahead, Var(fill_name(name))))
    used = use.most if use.is_split else use.whole
    if ring.spread:
        used = tuple(_spread_over(ring.spread, s, starts if lead == 2 else (*starts, *cut)) for s in used)
        starts = ()
    side, other = Var(side_name(name)), Const(1) - Var(side_name(name))
    following = f"{name}_next"
    body: Body = (
        *starts,
        *(() if lead == 2 or ring.spread else cut),
        *used,
        *(use.last if use.last_reads_tile else ()),
        CommitCopies(),
        wait,
        Barrier("the next tiles are complete, these are no longer read"),
        *at(use.first, **{side_name(name): other, slot_name(name): Var(following)}),
        *(at(cut, **{cut_name(name): side}) if lead == 2 else ()),
        *(() if use.last_reads_tile else use.last),
    )
    counters = [
        _counter(side_name(name), 0, 2),
        _counter(arriving_name(name), 0, slots),
        _counter(arrived_name(name), lead, slots),
    ]
    if whole:
        begins = {slot_name(name): 0, fill_name(name): stages - 1, **({following: 1} if use.is_split else {})}
        counters += [_counter(counter, first, stages) for counter, first in begins.items()]
    return (*prologue, For(name, extent, at(body, **{cut_name(name): other}), carried=tuple(counters)))


def _anywhere(_: Expr, body: Body) -> Body:
    return body


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
