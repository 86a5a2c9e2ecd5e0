"""Pass 1: the declared nest becomes explicit loops, copies and arithmetic of one thread.

needs: a program that keeps every law. leaves: a kernel whose global accesses carry logical (row, column) indices,
whose shared accesses carry coordinates of the C array, with no guards and no barriers. pinned first: everything after
it works on statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.ir.async_stmt import WgmmaCommit, WgmmaFence, WgmmaWait
from tilewright.ir.buffer import Handoff, Space
from tilewright.ir.expr import HERE, ZERO, Binary, Const, Env, Expr, Fma, Load, Op, Ref, Select, Var, binary
from tilewright.ir.finish import ALPHA, as_f32
from tilewright.ir.program import Loop, Program, Route, Staged
from tilewright.ir.stmt import Alloc, Assign, Body, For, If, Let, Move, Stmt
from tilewright.ir.tiles import tile_of
from tilewright.ir.work import SplitK, Walk
from tilewright.lowering.block_pipelines import (
    AlternatingHalves,
    BlockRing,
    Iteration,
    OneStage,
    PersistentRing,
    copy_ordinary,
)
from tilewright.lowering.cluster_sums import ClusterSums
from tilewright.lowering.compute import Compute
from tilewright.lowering.coordinates import cluster_coordinates, digits, extent_of, index_of, thread_coordinates
from tilewright.lowering.copies import copy_steps, copy_tile
from tilewright.lowering.epilogue import Epilogue
from tilewright.lowering.fragments import multiply_tiles, round_fragments
from tilewright.lowering.generator import NOTHING_BESIDE, Beside
from tilewright.lowering.kernel_parts import Steps, global_place, value_buffer
from tilewright.lowering.ordered_sums import OrderedSums
from tilewright.lowering.plan import KernelPlan, plan_of
from tilewright.lowering.products import held_in_registers, multiply_shared, reads_shared, started
from tilewright.lowering.promotion import after_iteration, among_wgmma, before_product, counted_by, left_over
from tilewright.lowering.rank_carriers import Carriers
from tilewright.lowering.rank_sums import RankSums
from tilewright.lowering.roles import TmaKernel, loaded_by_tma
from tilewright.lowering.scheduler import Scheduler
from tilewright.lowering.sums import Sums
from tilewright.problem.gemm import OperandName, Product


@dataclass(frozen=True)
class Expansion:
    """The statements of one thread, made from the declarations of a program."""

    program: Program
    exact: frozenset[str]
    overwrites: bool = False
    product: Product | None = None
    """Of MMAs that read shared memory, that of the running nest."""

    def body(self) -> Body:
        """The whole kernel body."""
        program = self.program
        ring = program.pipelined
        if ring is not None and loaded_by_tma(program, program.loop(ring.loop)):
            return TmaKernel(program, self._plan, self.exact, self._compute(ring.loop)).body()
        bound = [loop.name for loop in (*program.grid_loops, *program.thread_loops)]
        copies = self._copies_under(*bound)
        loops = program.thread_serial_loops
        scheduler, threads = Scheduler(program), thread_coordinates(program)
        if self._plan.runs_on:
            return (*threads, *self._persistent(loops[0], loops[1:]))
        one_tile = program.walk is Walk.ONE_TILE
        behind = (*threads, *self._meet_in_cluster) if one_tile else ()
        items = scheduler.each(lambda _: (*copies, *self._nest(loops)), behind=behind)
        return (*cluster_coordinates(program), *items) if one_tile else (*threads, *scheduler.prepare(), *items)

    @property
    def _shares_k(self) -> bool:
        """Whether the blocks of a cluster share out k."""
        return self.program.split_k is SplitK.CLUSTER

    @property
    def _meet_in_cluster(self) -> Body:
        """What a block without roles does before it shares out k."""
        return ClusterSums(self.program, self._sums).begin() if self._shares_k and self._sums is not None else ()

    def _finish(self, sums: Sums) -> Body:
        """What becomes of the sums of an item: the epilogue, behind those of other items where they share out k."""
        if self._shares_k:
            return ClusterSums(self.program, sums).around(self._epilogue)
        finish = self._epilogue.finish(sums)
        if self.program.split_k is SplitK.RANKS:
            store = self._epilogue.store(sums)
            return (*self._epilogue.empty_sum(sums), *RankSums(self.program, sums).around(store))
        return OrderedSums(self.program, sums).around(finish) if self.program.adds_in_order else finish

    def _compute(self, ring: str) -> Compute:
        """What the threads do that multiply what TMA loads."""
        assert self._sums is not None
        order = [loop.name for loop in self.program.thread_serial_loops]
        promotion = self._sums.accumulator.promotion
        parts = tuple(self.program.loop(name) for name in (promotion.parts if promotion else ()))
        inner = tuple(one for one in self.program.thread_serial_loops[order.index(ring) + 1 :] if one not in parts)
        start, finish = self._epilogue.start(self._sums), self._finish(self._sums)
        barriers = ClusterSums(self.program, self._sums).barriers if self._shares_k else ()
        leave = self._epilogue.leave()
        held = held_in_registers(self.program)
        fragments = () if held is None else (Alloc(tile_of(self.program, held).register_buffer),)
        declared = (*self._sums.declared, *fragments)
        step, over_parts = lambda env: self._products(inner, env), lambda body: self._around(parts, body)
        compute = Compute(self._sums, declared, start, step, finish, leave, over_parts, barriers)
        if self.program.split_k is not SplitK.RANKS:
            return compute
        ranks = RankSums(self.program, self._sums)
        carriers = Carriers(self.program, ranks)
        return replace(
            compute,
            declared=(*declared, *ranks.declared),
            barriers=ranks.barriers,
            courier=ranks.escort(),
            carriers=carriers.carry(),
            before_carriers=carriers.begin(),
            fetch=ranks.fetch,
        )

    def _products(self, inner: tuple[Loop, ...], env: Env) -> Body:
        """The products of the running stage, one after another."""
        assert self._sums is not None
        body: list[Stmt] = []
        for product in started(self.program):
            body += before_product(self._sums.of_part, product)
            body += replace(self, product=product)._nest(inner, env)
        return tuple(body)

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
        return Epilogue(self.program, self._plan.epilogue, self.exact, self.overwrites)

    @cached_property
    def _plan(self) -> KernelPlan:
        return plan_of(self.program)

    @cached_property
    def _sums(self) -> Sums | None:
        """The running sum in registers; None where it is kept in C."""
        (accumulator,) = self._plan.accumulators
        return Sums(self.program, accumulator) if accumulator.space is Space.REGISTER else None

    # -- the nest ---------------------------------------------------------------------------------------------------

    def _nest(self, loops: tuple[Loop, ...], env: Env = HERE, beside: Beside = NOTHING_BESIDE) -> Body:
        if not loops:
            return self._multiply_add(env)
        loop, rest = loops[0], loops[1:]
        nested = self._with_copies(loop, rest, env, beside)
        if self._sums is not None and self.program.accumulation is not None:
            if loop.name == self.program.accumulation.over:
                start, finish = self._epilogue.start(self._sums), self._finish(self._sums)
                count = extent_of(self.program, loop, self.exact)
                last = left_over(self._sums, loop.name, count)
                return (*self._sums.declared, *start, *nested, *last, *finish)
        elif loop.is_reduction and not self._inside_reduction(loop):
            # Nothing is reused here, so no loop need be serpentine; and the one whose count reverses it is not around.
            inner = tuple(replace(other, turning=False) for other in rest if not other.is_reduction)
            return (*self._around(inner, self._epilogue.scale_c()), *nested)
        return nested

    def _persistent(self, loop: Loop, rest: tuple[Loop, ...]) -> Body:
        """All tiles of C of a persistent block. loop: the outermost that a thread runs, with a ring under it."""
        assert self._sums is not None
        tiles = PersistentRing(self.program, self._plan, loop, self.exact, self._iteration(loop, rest))
        start, finish = self._epilogue.start(self._sums), self._finish(self._sums)
        last = left_over(self._sums, loop.name, tiles.count)
        return (*self._sums.declared, *tiles.over_tiles(start, (*last, *finish)))

    def _with_copies(self, loop: Loop, rest: tuple[Loop, ...], env: Env, beside: Beside) -> Body:
        """The loop, with the copies of the tiles that are staged under it."""
        plan = self._plan
        if plan.hops_under(loop.name):
            ring = plan.ring if plan.ring is not None and plan.ring.loop == loop else None
            kind = OneStage if ring is None else _RINGS[ring.handoff]
            return kind(self.program, plan, loop, self.exact, self._iteration(loop, rest)).whole()
        shared = tuple(self._staged_under(Space.SHARED, loop.name))
        use = self._used(loop, rest, env, beside)
        body = (*copy_ordinary(self.program, shared), *use, *self._promoted(loop, env))
        return (self._loop(loop, body, env, unroll=beside.loop == loop.name),)

    def _used(self, loop: Loop, rest: tuple[Loop, ...], env: Env, beside: Beside) -> Body:
        """What an iteration does with the tiles that are staged under it; MMAs that it starts are waited for."""
        loads, products = self._fragments(loop, env), (*self._rounded(loop, env),)
        if beside.loop == loop.name and beside.copies:
            steps, step = loop.extent, env[loop.name]
            assert steps is not None
            if beside.behind and rest:
                outer = self._product_nest(rest, env, Outer(rest[0]), beside.among_products(step, steps), beside.behind)
                return (*loads, *products, *outer)
            return (*loads, *beside.among_loads(step, steps), *products, *self._nest(rest, env))
        body = (*loads, *products, *self._nest(rest, env, beside))
        if self._sums is None or not reads_shared(self.program):
            return body
        held = tuple(self._staged_under(Space.REGISTER, loop.name))
        if held:
            return self._through_registers(held, rest, env)
        if not any(self._staged_under(Space.SHARED, loop.name)):
            return body
        return (WgmmaFence(), *body, WgmmaCommit(), WgmmaWait(0, self._sums.first, origin=self._sums.name))

    def _through_registers(self, held: tuple[Staged, ...], rest: tuple[Loop, ...], env: Env) -> Body:
        """Fragments loaded, and the products that read them started: those of the step before are still under way, and
        read the other half of the registers."""
        assert self._sums is not None
        loads = tuple(s for staged in held for s in copy_steps(self.program, staged, env).whole())
        nest = self._nest(rest, env)
        return (*loads, WgmmaFence(), *nest, WgmmaCommit(), WgmmaWait(1, origin=self._sums.name))

    def _promoted(self, loop: Loop, env: Env) -> Body:
        """At the end of an iteration: the promotion of the sum, where it counts these."""
        promotion = counted_by(self._sums, loop.name)
        if promotion is None or self._sums is None:
            return ()
        ended = not reads_shared(self.program) or any(self._staged_under(Space.SHARED, loop.name))
        return (after_iteration if ended else among_wgmma)(self._sums, promotion, env[loop.name])

    def _fragments(self, loop: Loop, env: Env) -> Body:
        """The loads of the register tiles under a loop that do not run ahead."""
        staged = (tile for tile in self._staged_under(Space.REGISTER, loop.name) if not tile.prefetched)
        return tuple(s for tile in staged for s in copy_tile(self.program, tile, env))

    def _rounded(self, loop: Loop, env: Env) -> Body:
        """The fragments under a loop rounded to what is multiplied, where they are not that already."""
        tiles = (tile_of(self.program, staged) for staged in self._staged_under(Space.REGISTER, loop.name))
        return tuple(s for tile in tiles for s in round_fragments(self.program, tile, env))

    def _iteration(self, loop: Loop, rest: tuple[Loop, ...]) -> Iteration:
        """What an iteration of a pipelined loop does with its tiles, apart from filling them."""
        inner = rest[0] if rest else None
        early = [] if inner is None else [t for t in self._staged_under(Space.REGISTER, inner.name) if t.prefetched]
        by_matrices = any(staged.route is Route.MATRICES and staged.operand != "C" for staged in self.program.staged)
        promote = (lambda env: self._promoted(loop, env)) if counted_by(self._sums, loop.name) else None
        if inner is None or not early:
            use = lambda env, beside: self._used(loop, rest, env, beside)  # noqa: E731
            return Iteration(use, by_matrices=by_matrices, promote=promote)
        steps = _InnerSteps(self, loop, inner, rest[1:], tuple(early))
        return Iteration(
            steps.most,
            steps.declare(),
            steps.load,
            steps.last,
            reads_tile=steps.reads_tile,
            by_matrices=by_matrices,
            promote=promote,
        )

    def _product_nest(
        self,
        loops: tuple[Loop, ...],
        env: Env,
        outer: Outer,
        head: Body = (),
        behind: int = 0,
        tail: Tail | None = None,
    ) -> Body:
        """The loops of one step's products. head: stands in the iteration of the outermost one that `behind` others
        precede; tail: behind each of its iterations."""
        loop = loops[0]
        if not head and tail is None:
            return self._nest(loops, env)
        inside = self._with_copies(loop, loops[1:], env, NOTHING_BESIDE)
        (nest,) = inside
        assert isinstance(nest, For) and isinstance(nest.extent, Const)
        body, extent, number = nest.body, nest.extent, Var(nest.var)
        if outer.fragments > 1:
            number, own = Var(f"{loop.name}_vec"), Var(f"{nest.var}_of_vec")
            let = Let(nest.var, number * outer.fragments + own)
            body = (For(own.name, Const(outer.fragments), (let, *body), unroll=True),)
            extent = Const(int(extent.value) // outer.fragments)
        here = (If(binary(Op.EQ, number, behind // outer.fragments), head),) if head else ()
        behind_each = () if tail is None else tail(number)
        unroll = nest.unroll or tail is not None
        return (replace(nest, var=number.name, extent=extent, body=(*here, *body, *behind_each), unroll=unroll),)

    def _staged_under(self, space: Space, *loops: str) -> Iterator[Staged]:
        for operand in self.program.gemm.factors:
            for staged in self.program.chain(operand):
                if staged.space is space and staged.under in loops:
                    yield staged

    def _inside_reduction(self, loop: Loop) -> bool:
        outer = self.program.loops[: self.program.position(loop.name)]
        return any(other.is_reduction for other in outer)

    def _loop(self, loop: Loop, body: Body, env: Env = HERE, *, unroll: bool = False) -> Stmt:
        names = {axis.name for axis in loop.axes}
        constant = loop.extent is not None
        unroll = unroll or loop.unroll or (constant and bool(names & self._register_axes))
        inside = (*digits(self.program, loop, Var(loop.name)), *body)
        if loop.turning and loop.extent is not None:
            forward = Var(f"{loop.name}_forward")
            is_backward = binary(Op.EQ, env[self._reverses(loop).name] % 2, 1)
            here = Let(loop.name, Select(is_backward, Const(loop.extent - 1) - forward, forward))
            return For(forward.name, Const(loop.extent), (here, *inside), unroll)
        return For(loop.name, extent_of(self.program, loop, self.exact), inside, unroll)

    def _reverses(self, loop: Loop) -> Loop:
        """The loop whose odd iterations run `loop` backward: the nearest around it that is not serpentine itself."""
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

    def _operand(self, name: OperandName, env: Env) -> tuple[Body, Expr]:
        """Statements that bring one element of an operand into registers, and its value there."""
        chain = self.program.chain(name)
        last = chain[-1] if chain else None
        if last is not None and last.space is Space.REGISTER:
            tile = tile_of(self.program, last)
            return (), Load(tile.register_buffer, tile.register_index(env))
        value = value_buffer(name, self.program.gemm.operand(name).dtype, 1)
        source = self._source(name, last, env)
        origin = name if last is None else last.name
        return (Alloc(value), Move(Ref(value, (ZERO,)), source, origin=origin)), Load(value, (ZERO,))

    def _source(self, name: OperandName, staged: Staged | None, env: Env) -> Ref:
        if staged is None:
            rows, cols = self.program.gemm.operand(name).dims
            return global_place(
                self.program, name, index_of(self.program, rows, env), index_of(self.program, cols, env)
            )
        tile = tile_of(self.program, staged)
        row, col = (span.local_index(env) for span in tile.spans)
        return tile.at(row, col, env)

    def _multiply_add(self, env: Env) -> Body:
        if self.program.tensorized is not None and self._sums is not None:
            if self.program.tensorized.instruction.reads_shared:
                products = started(self.program) if self.product is None else (self.product,)
                return tuple(multiply_shared(self.program, self._sums, one, env) for one in products)
            return multiply_tiles(self.program, self._sums, env)
        operands = {name: self._operand(name, env) for name in self.program.gemm.factors}
        loads = tuple(s for body, _ in operands.values() for s in body)
        terms: list[tuple[int, Expr, Expr]] = []
        for product in self.program.gemm.products:
            a, b = (self._epilogue.as_sum(operands[name][1]) for name in (product.a, product.b))
            if not self.program.late_alpha:
                a = self._epilogue.as_sum(Binary(Op.MUL, ALPHA, as_f32(a)))
            terms.append((product.into, a, b))
        if self._sums is None:
            return (*loads, *self._added_to_c(terms))
        sums: list[Stmt] = []
        for into, a, b in terms:
            place = Ref(self._sums.group, self._sums.index_of(into))
            sums.append(Assign(place, Fma(a, b, Load(place.buffer, place.index)), origin=self._sums.name))
        return (*loads, *sums)

    def _added_to_c(self, terms: list[tuple[int, Expr, Expr]]) -> Body:
        """Products added to C itself, which holds the sum."""
        ((_, a, b),) = terms
        value = value_buffer("C", self.program.gemm.out, 1)
        here = Ref(value, (ZERO,))
        total = Fma(a, b, self._epilogue.as_sum(Load(value, (ZERO,))))
        place = self._epilogue.result_place()
        return (
            Alloc(value),
            Move(here, place, origin="C"),
            Assign(here, self._epilogue.as_result(total), origin="C"),
            Move(place, here, origin="C"),
        )


Tail = Callable[[Expr], Body]
"""What stands behind each iteration of the outer loop of products, by its number."""

_RINGS: dict[Handoff, type[OneStage]] = {Handoff.BLOCK_BARRIER: BlockRing, Handoff.LOCKSTEP: AlternatingHalves}


@dataclass(frozen=True, slots=True)
class Outer:
    """The loop around the products of a step. fragments: of an iteration, as many as one load fills."""

    loop: Loop
    fragments: int = 1


@dataclass(frozen=True)
class _InnerSteps:
    """The steps of an iteration whose fragments are loaded one step ahead: the pipeline of a ring, one level down.

    The last step is peeled: the barrier of the outer level stands in front of what it loads.
    """

    expansion: Expansion
    outer: Loop
    inner: Loop
    rest: tuple[Loop, ...]
    early: tuple[Staged, ...]

    def declare(self) -> Body:
        """The registers of fragments that are loaded ahead."""
        return tuple(Alloc(tile_of(self._program, staged).register_buffer) for staged in self.early)

    def load(self, env: Env) -> Body:
        """The fragments of step 0: in front of the loop all; in it those that do not take others' places."""
        early = (staged for staged in self.early if env.in_prologue or not staged.in_place)
        return tuple(s for staged in early for s in self._loads(staged, env.at(**{self.inner.name: ZERO})).whole())

    def most(self, env: Env, beside: Beside) -> Body:
        """Every step but the last."""
        expansion, inner = self.expansion, self.inner
        assert inner.extent is not None
        following = env.at(**{inner.name: Var(inner.name) + 1})
        at_once = (s for t in self.early if not t.in_place for s in self._loads(t, following).whole())
        loads = (*at_once, *expansion._fragments(inner, env))
        rounded = expansion._rounded(inner, env)
        among: Body = ()
        head: Body = ()
        if beside.loop == inner.name and beside.copies:
            if beside.behind:
                head = beside.among_products(Var(inner.name), inner.extent - 1)
            else:
                among = beside.among_loads(Var(inner.name), inner.extent - 1)
        products = self._products(env, following, head, beside.behind)
        body = (*loads, *among, *rounded, *products, *expansion._promoted(inner, env))
        return (*expansion._fragments(self.outer, env), For(inner.name, Const(inner.extent - 1), body, unroll=True))

    def last(self, env: Env, following: Env) -> Body:
        """The last step, with the loads of the next tile's fragments that take their places one by one."""
        expansion, inner = self.expansion, self.inner
        assert inner.extent is not None
        env = env.at(**{inner.name: Const(inner.extent - 1)})
        products = self._products(env, following.at(**{inner.name: ZERO}))
        promoted = expansion._promoted(inner, env)
        return (*expansion._fragments(inner, env), *expansion._rounded(inner, env), *products, *promoted)

    @property
    def reads_tile(self) -> bool:
        """Whether the last step still reads the shared tile, which must be read before others may overwrite it."""
        chains = [self._program.chain(name) for name in self._program.gemm.factors]
        late = (c[-1] for c in chains if any(s.space is Space.SHARED for s in c))
        return any(s.space is Space.SHARED or (s.under != self.outer.name and not s.prefetched) for s in late)

    def _products(self, env: Env, following: Env, head: Body = (), behind: int = 0) -> Body:
        in_place = [self._loads(staged, following) for staged in self.early if staged.in_place]
        if not self.rest:
            return self.expansion._nest((), env)

        def tail(iteration: Expr) -> Body:
            return tuple(s for loads in in_place for s in loads.body(iteration if loads.looped else ZERO))

        outer = Outer(self.rest[0], self._fragments_of_a_load(in_place))
        return self.expansion._product_nest(self.rest, env, outer, head, behind, tail if in_place else None)

    def _fragments_of_a_load(self, loads: list[Steps]) -> int:
        """Iterations of the schedule's own loop over outer fragments that one load fills fragments for."""
        extent = self.rest[0].extent
        counts = {load.count for load in loads if load.looped}
        if not loads or counts == {extent}:
            return 1
        assert extent is not None
        return extent // min(counts, default=1)

    def _loads(self, staged: Staged, env: Env) -> Steps:
        return copy_steps(self._program, staged, env)

    @property
    def _program(self) -> Program:
        return self.expansion.program


def expand(program: Program, exact: frozenset[str], *, overwrites: bool = False) -> Body:
    """The explicit statements of one thread of `program`; dimensions in `exact` have no edge.

    overwrites: of `Variant`.
    """
    return Expansion(program, exact, overwrites).body()
