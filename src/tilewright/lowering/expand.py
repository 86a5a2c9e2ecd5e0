"""Pass 1: the declared nest becomes explicit loops, copies and arithmetic of one thread.

needs: a program that keeps every law. leaves: a kernel whose global accesses carry logical (row, column) indices,
whose shared accesses carry coordinates of the C array, with no guards and no barriers. pinned first: everything after
it works on statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.ir.async_stmt import WgmmaCommit, WgmmaFence, WgmmaWait
from tilewright.ir.buffer import Ref, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Fma, Load, Op, Select, Var, binary
from tilewright.ir.program import Loop, Program, Staged
from tilewright.ir.stmt import Alloc, Assign, Body, For, Let, Move, Stmt
from tilewright.ir.tiles import next_name, slot_name, tile_of
from tilewright.ir.visit import walk
from tilewright.lowering.coordinates import digits, extent_of, index_of, thread_coordinates
from tilewright.lowering.copies import copy_tile
from tilewright.lowering.epilogue import Epilogue, as_f32
from tilewright.lowering.epilogue_plan import ALPHA
from tilewright.lowering.fragments import (
    declare_fragments,
    multiply_tiles,
    round_fragments,
)
from tilewright.lowering.kernel_parts import at, global_place, value_buffer
from tilewright.lowering.ordered_sums import OrderedSums
from tilewright.lowering.pipelined import copy_ordinary, pipelined_loop, runs_ahead
from tilewright.lowering.products import multiply_shared, reads_shared
from tilewright.lowering.ring import Use
from tilewright.lowering.roles import Compute, Engine, comes_by_engine
from tilewright.lowering.scheduler import Scheduler
from tilewright.lowering.spread import NO_LOOP, Outer
from tilewright.lowering.staying import staying_loop
from tilewright.lowering.sums import Sums
from tilewright.problem.gemm import OperandName


@dataclass(frozen=True)
class Expansion:
    """The statements of one thread, made from the declarations of a program."""

    program: Program
    exact: frozenset[str]
    overwrites: bool = False

    def body(self) -> Body:
        """The whole kernel body."""
        program = self.program
        ring = program.pipelined
        if ring is not None and comes_by_engine(program, program.loop(ring.loop)):
            return Engine(program, self.exact, self._compute(ring.loop)).body()
        bound = [loop.name for loop in (*program.grid_loops, *program.thread_loops)]
        copies = self._copies_under(*bound)
        loops = program.thread_serial_loops
        if program.persistent:
            return (*thread_coordinates(program), *copies, *self._staying(loops[0], loops[1:]))
        located = Scheduler(program).locate(ZERO)
        return (*located, *thread_coordinates(program), *copies, *self._nest(loops))

    def _finish(self, sums: Sums) -> Body:
        """What becomes of the sums of an item: the epilogue, behind those of other items where they share out k."""
        finish = self._epilogue.finish(sums)
        return OrderedSums(self.program, sums).around(finish) if self.program.adds_in_order else finish

    def _compute(self, ring: str) -> Compute:
        """What the threads do that multiply what the copy engine brings."""
        assert self._sums is not None
        order = [loop.name for loop in self.program.thread_serial_loops]
        inner = self.program.thread_serial_loops[order.index(ring) + 1 :]
        return Compute(self._sums, self._nest(inner), self._finish(self._sums), self._epilogue.leave())

    @cached_property
    def _register_axes(self) -> frozenset[str]:
        """The digits that index registers: loops over them must be unrolled."""
        names = {axis.name for axis in self.program.sum_axes}
        for staged in self.program.staged:
            if staged.space is Space.REGISTER:
                names |= {axis.name for axis in tile_of(self.program, staged).register_axes}
        return frozenset(names)

    @cached_property
    def _epilogue(self) -> Epilogue:
        return Epilogue(self.program, self.exact, self.overwrites)

    @cached_property
    def _sums(self) -> Sums | None:
        accumulation = self.program.accumulation
        return None if accumulation is None else Sums(self.program, accumulation.name)

    # -- the nest ---------------------------------------------------------------------------------------------------

    def _nest(self, loops: tuple[Loop, ...]) -> Body:
        if not loops:
            return self._multiply_add()
        loop, rest = loops[0], loops[1:]
        nested = self._with_copies(loop, rest)
        if self._sums is not None and self.program.accumulation is not None:
            if loop.name == self.program.accumulation.over:
                start, finish = self._epilogue.start(self._sums), self._finish(self._sums)
                return (Alloc(self._sums.buffer), *start, *nested, *finish)
        elif loop.is_reduction and not self._inside_reduction(loop):
            # Nothing is reused here, so no loop need turn; and the one that would count its turns is not around.
            inner = tuple(replace(other, turning=False) for other in rest if not other.is_reduction)
            return (*self._around(inner, self._epilogue.scale_c()), *nested)
        return nested

    def _staying(self, loop: Loop, rest: tuple[Loop, ...]) -> Body:
        """All tiles of C of a block that stays. loop: the outermost that a thread runs, with a ring under it."""
        assert self._sums is not None
        tiles = staying_loop(self.program, loop, self.exact, self._use(loop, rest))
        start, finish = self._epilogue.start(self._sums), self._finish(self._sums)
        return (Alloc(self._sums.buffer), *tiles.over_tiles(start, finish))

    def _with_copies(self, loop: Loop, rest: tuple[Loop, ...]) -> Body:
        """The loop, with the copies of the tiles that are staged under it."""
        if runs_ahead(self.program, loop):
            return pipelined_loop(self.program, loop, self.exact, self._use(loop, rest))
        use = self._multiplied(loop, (*self._fragments(loop), *self._rounded(loop), *self._nest(rest)))
        shared = tuple(self._staged_under(Space.SHARED, loop.name))
        return (self._loop(loop, (*copy_ordinary(self.program, shared), *use)),)

    def _multiplied(self, loop: Loop, use: Body) -> Body:
        """What a loop does with the tiles that are staged under it; products that it starts are waited for."""
        if self._sums is None or not reads_shared(self.program):
            return use
        if not any(self._staged_under(Space.SHARED, loop.name)):
            return use
        return (WgmmaFence(), *use, WgmmaCommit(), WgmmaWait(0, self._sums.first, origin=self._sums.name))

    def _fragments(self, loop: Loop) -> Body:
        """The loads of the register tiles under a loop that do not run ahead."""
        staged = (tile for tile in self._staged_under(Space.REGISTER, loop.name) if not tile.prefetched)
        return tuple(s for tile in staged for s in copy_tile(self.program, tile))

    def _rounded(self, loop: Loop) -> Body:
        """The fragments under a loop rounded to what is multiplied, where they are not that already."""
        tiles = (tile_of(self.program, staged) for staged in self._staged_under(Space.REGISTER, loop.name))
        return tuple(s for tile in tiles for s in round_fragments(self.program, tile))

    def _use(self, loop: Loop, rest: tuple[Loop, ...]) -> Use:
        """What an iteration of a pipelined loop does with its tiles, apart from filling them."""
        inner = rest[0] if rest else None
        early = [] if inner is None else [t for t in self._staged_under(Space.REGISTER, inner.name) if t.prefetched]
        if inner is None or not early:
            whole = self._multiplied(loop, (*self._fragments(loop), *self._rounded(loop), *self._nest(rest)))
            return Use(whole=whole, outer=_outer(rest[1]) if len(rest) > 1 else NO_LOOP)
        assert inner.extent is not None
        at_once = tuple(s for t in early if not t.in_place for s in copy_tile(self.program, t))
        one_by_one = tuple(s for t in early if t.in_place for s in copy_tile(self.program, t))
        late, rounded, products = self._fragments(inner), self._rounded(inner), self._nest(rest[1:])
        outer = _outer(rest[1], one_by_one) if len(rest) > 1 else NO_LOOP
        step, last = Var(inner.name), Const(inner.extent - 1)
        following: dict[str, Expr] = {inner.name: step + 1}
        next_tile: dict[str, Expr] = {inner.name: ZERO, slot_name(loop.name): Var(next_name(loop.name))}
        done = _in_place(products, outer, at(one_by_one, **following))
        steps = For(inner.name, last, (*at(at_once, **following), *late, *rounded, *done), unroll=True)
        final = at((*late, *rounded), **{inner.name: last})
        return Use(
            declare=tuple(
                s for staged in early for s in declare_fragments(self.program, tile_of(self.program, staged))
            ),
            first=tuple(s for staged in early for s in self._first_fragments(staged)),
            again=tuple(s for staged in early if not staged.in_place for s in self._first_fragments(staged)),
            most=(*self._fragments(loop), steps),
            last=(*final, *_in_place(at(products, **{inner.name: last}), outer, at(one_by_one, **next_tile))),
            # What is still loaded from the tile in the last step must be loaded before others may overwrite it.
            last_reads_tile=any(
                isinstance(s, Move) and s.src.buffer.space is Space.SHARED for _, s in walk((*late, *products))
            ),
            outer=outer,
        )

    def _first_fragments(self, staged: Staged) -> Body:
        """The loads of a register tile for the first step of the loop that it is staged under."""
        return at(copy_tile(self.program, staged), **{staged.under: ZERO})

    def _staged_under(self, space: Space, *loops: str) -> Iterator[Staged]:
        for operand in ("A", "B"):
            for staged in self.program.chain(operand):
                if staged.space is space and staged.under in loops:
                    yield staged

    def _inside_reduction(self, loop: Loop) -> bool:
        outer = self.program.loops[: self.program.position(loop.name)]
        return any(other.is_reduction for other in outer)

    def _loop(self, loop: Loop, body: Body) -> Stmt:
        names = {axis.name for axis in loop.axes}
        constant = loop.extent is not None
        unroll = loop.unroll or (constant and bool(names & self._register_axes))
        inside = (*digits(self.program, loop, Var(loop.name)), *body)
        if loop.turning and loop.extent is not None:
            turn = Var(f"{loop.name}_turn")
            backward = binary(Op.EQ, Var(self._turns_around(loop).name) % 2, 1)
            here = Let(loop.name, Select(backward, Const(loop.extent - 1) - turn, turn))
            return For(turn.name, Const(loop.extent), (here, *inside), unroll)
        return For(loop.name, extent_of(self.program, loop, self.exact), inside, unroll)

    def _turns_around(self, loop: Loop) -> Loop:
        """The loop whose count turns `loop`: the nearest one around it that does not turn itself."""
        order = self.program.thread_serial_loops
        return next(outer for outer in reversed(order[: order.index(loop)]) if not outer.turning)

    def _around(self, loops: tuple[Loop, ...], body: Body) -> Body:
        for loop in reversed(loops):
            body = (self._loop(loop, body),)
        return body

    def _copies_under(self, *names: str) -> Body:
        """The copies under loops that are bound to blocks or threads: made once, before everything else."""
        shared = tuple(self._staged_under(Space.SHARED, *names))
        registers = self._staged_under(Space.REGISTER, *names)
        return (*copy_ordinary(self.program, shared), *(s for t in registers for s in copy_tile(self.program, t)))

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def _operand(self, name: OperandName) -> tuple[Body, Expr]:
        """Statements that bring one element of an operand into registers, and its value there."""
        chain = self.program.chain(name)
        last = chain[-1] if chain else None
        if last is not None and last.space is Space.REGISTER:
            tile = tile_of(self.program, last)
            return (), Load(tile.register_buffer, tile.register_index)
        value = value_buffer(name, self.program.gemm.operand(name).dtype, 1)
        source = self._source(name, last)
        origin = name if last is None else last.name
        return (Alloc(value), Move(Ref(value, (ZERO,)), source, origin=origin)), Load(value, (ZERO,))

    def _source(self, name: OperandName, staged: Staged | None) -> Ref:
        if staged is None:
            rows, cols = self.program.gemm.operand(name).dims
            return global_place(self.program, name, index_of(self.program, rows), index_of(self.program, cols))
        tile = tile_of(self.program, staged)
        row, col = (span.local_index() for span in tile.spans)
        return tile.at(row, col)

    def _multiply_add(self) -> Body:
        if self.program.tensorized is not None and self._sums is not None:
            if self.program.tensorized.instruction.reads_shared:
                return multiply_shared(self.program, self._sums)
            return multiply_tiles(self.program, self._sums)
        load_a, a = self._operand("A")
        load_b, b = self._operand("B")
        a, b = self._epilogue.as_sum(a), self._epilogue.as_sum(b)
        if not self.program.late_alpha:
            a = self._epilogue.as_sum(Binary(Op.MUL, ALPHA, as_f32(a)))
        if self._sums is not None:
            place = Ref(self._sums.buffer, self._sums.index)
            total = Fma(a, b, Load(place.buffer, place.index))
            return (*load_a, *load_b, Assign(place, total, origin=self._sums.name))
        value = value_buffer("C", self.program.gemm.out, 1)
        here = Ref(value, (ZERO,))
        total = Fma(a, b, self._epilogue.as_sum(Load(value, (ZERO,))))
        place = self._epilogue.result_place()
        return (
            *load_a,
            *load_b,
            Alloc(value),
            Move(here, place, origin="C"),
            Assign(here, self._epilogue.as_result(total), origin="C"),
            Move(place, here, origin="C"),
        )


def _outer(loop: Loop, loads: Body = ()) -> Outer:
    """The loop around the products of a step, in turns of as many fragments as one of these loads fills."""
    counts = {int(s.extent.value) for s in loads if isinstance(s, For) and isinstance(s.extent, Const)}
    if not loads or counts == {loop.extent}:
        return Outer(f"{loop.name}_turn" if loop.turning else loop.name)
    assert loop.extent is not None
    return Outer(f"{loop.name}_vec", loop.extent // min(counts, default=1))


def _in_place(products: Body, outer: Outer, loads: Body) -> Body:
    """Products, and each of the loads as soon as those are done whose fragments it overwrites."""
    if not loads:
        return products
    result: list[Stmt] = []
    for stmt in products:
        assert isinstance(stmt, For) and isinstance(stmt.extent, Const)
        body, extent = stmt.body, stmt.extent
        if outer.turns > 1:
            own = Var(f"{stmt.var}_of_vec")
            number = Let(stmt.var, Var(outer.var) * outer.turns + own)
            body = (For(own.name, Const(outer.turns), (number, *body), unroll=True),)
            extent = Const(int(extent.value) // outer.turns)
        turn = {load.var: Var(outer.var) for load in loads if isinstance(load, For)}
        done = tuple(s for load in loads for s in (load.body if isinstance(load, For) else (load,)))
        result.append(For(outer.var, extent, (*body, *at(done, **turn)), unroll=True))
    return tuple(result)


def expand(program: Program, exact: frozenset[str], *, overwrites: bool = False) -> Body:
    """The explicit statements of one thread of `program`; dimensions in `exact` have no edge.

    overwrites: of `Variant`.
    """
    return Expansion(program, exact, overwrites).body()
