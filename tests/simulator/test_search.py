"""The search over orders: held against all orders there are, and small kernels whose orders can be counted."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
from simulated_kernels import THREAD_X, C, at, kernel, naive, registers

from tests.mutations.broken import edited
from tests.mutations.test_told import KERNELS
from tilewright.dtypes import BF16, F32
from tilewright.ir.async_stmt import SignalFlag, TeamBarrier, WaitFlag
from tilewright.ir.expr import ZERO, Cast, Const, Op, Ref, binary
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, Assign, If, Move
from tilewright.ir.visit import walk
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, search_orders, simulate
from tilewright.simulator.journal import Effect, Role
from tilewright.simulator.search.orders import Order, OrderSearch, explore
from tilewright.simulator.stepped import Actor

Act = tuple[str, int, int]
"""("arrive", barrier, 0), ("wait", barrier, parity), ("meet", barrier, how many), ("copy", barrier, 0)"""

Programs = tuple[tuple[Act, ...], ...]


class Toy:
    """Warps that only arrive, wait, meet and start copies, which arrive when they land.

    seen: what each warp and copy has found, from which its fate follows.
    """

    def __init__(self, programs: Programs, counts: tuple[int, ...]) -> None:
        self.programs, self.counts = programs, counts
        self.at = [0] * len(programs)
        self.phase, self.arrived = [0] * len(counts), [0] * len(counts)
        self.opened: dict[int, int] = {}
        self.there: dict[int, int] = {}
        self.held: list[tuple[int, int] | None] = [None] * len(programs)
        self.copies: dict[Actor, int] = {}
        self.seen: dict[Actor, list[int]] = {(n,): [] for n in range(len(programs))}

    def left(self) -> list[Actor]:
        """Warps, then copies as they were started."""
        warps = [(n,) for n, program in enumerate(self.programs) if self.at[n] < len(program) or self.held[n]]
        return [*warps, *self.copies]

    def ready(self, actor: Actor) -> bool:
        if actor in self.copies:
            return True
        held = self.held[actor[0]]
        if held is not None:
            return self.opened.get(held[0], 0) > held[1]
        kind, barrier, parity = self.programs[actor[0]][self.at[actor[0]]]
        return kind != "wait" or self.phase[barrier] % 2 != parity

    def step(self, actor: Actor) -> tuple[tuple[Effect, ...], tuple[Actor, ...]]:
        """What it did, and the copy that it has started."""
        n = actor[0]
        if actor in self.copies:
            return (self.arrive(actor, self.copies.pop(actor)),), ()
        if self.held[n] is not None:
            self.held[n] = None
            return (), ()
        kind, barrier, number = self.programs[n][self.at[n]]
        self.at[n] += 1
        if kind == "copy":
            copy = (n, self.at[n], 0)
            self.copies[copy], self.seen[copy] = barrier, []
            return (), (copy,)
        if kind == "meet":
            generation = self.opened.get(barrier, 0)
            self.held[n] = barrier, generation
            self.there[barrier] = self.there.get(barrier, 0) + 1
            if self.there[barrier] == number:
                self.there[barrier], self.opened[barrier] = 0, generation + 1
            self.seen[actor].append(generation)
            return (Effect(("named", barrier), Role.MEETS, generation),), ()
        if kind == "wait":
            self.seen[actor].append(self.phase[barrier])
            return (Effect(("mbarrier", barrier), Role.PASSES, self.phase[barrier]),), ()
        return (self.arrive(actor, barrier),), ()

    def state(self) -> str:
        """All that decides what can follow, and what has been found."""
        of_barriers = (self.phase, self.arrived, sorted(self.opened.items()), sorted(self.there.items()))
        return repr((self.at, self.held, of_barriers, sorted(self.copies.items()), sorted(self.seen.items())))

    def arrive(self, actor: Actor, barrier: int) -> Effect:
        phase = self.phase[barrier]
        self.seen[actor].append(phase)
        self.arrived[barrier] += 1
        if self.arrived[barrier] == self.counts[barrier]:
            self.arrived[barrier], self.phase[barrier] = 0, phase + 1
        return Effect(("mbarrier", barrier), Role.ARRIVES, phase)

    def fate(self) -> tuple[object, ...]:
        """What each warp and copy has found, and whether any warp is stuck."""
        return (*sorted((actor, tuple(seen)) for actor, seen in self.seen.items()), bool(self.left()))


def every_fate(programs: Programs, counts: tuple[int, ...]) -> set[tuple[object, ...]]:
    """By trying all orders, those that lead to the same state once."""
    fates: set[tuple[object, ...]] = set()
    begun, known = [Toy(programs, counts)], set[str]()
    while begun:
        toy = begun.pop()
        ready = [actor for actor in toy.left() if toy.ready(actor)]
        if not ready:
            fates.add(toy.fate())
        for actor in ready:
            after = deepcopy(toy)
            after.step(actor)
            if after.state() not in known:
                known.add(after.state())
                begun.append(after)
    return fates


def run_toy(programs: Programs, counts: tuple[int, ...], fates: list[tuple[object, ...]], order: Order) -> bool:
    toy = Toy(programs, counts)
    while toy.left():
        actor = order.choose(toy.left(), toy.ready)
        if actor is None:
            break
        order.took(actor, *toy.step(actor))
    fates.append(toy.fate())
    return True


def drawn(seed: int) -> tuple[Programs, tuple[int, ...]]:
    random = np.random.default_rng(seed)
    counts = tuple(int(count) for count in random.integers(1, 3, 2))
    kinds = ("arrive", "wait", "meet", "copy")
    shares = ((0.4, 0.35, 0.25, 0), (0.65, 0.35, 0, 0), (0.3, 0.3, 0.1, 0.3), (0.2, 0.4, 0, 0.4))[seed % 4]

    def act() -> Act:
        kind = kinds[int(random.choice(4, p=shares))]
        return kind, int(random.integers(2)), 2 if kind == "meet" else int(random.integers(2))

    return tuple(tuple(act() for _ in range(int(random.integers(1, 4)))) for _ in range(3)), counts


@pytest.mark.parametrize("block", range(6))
def test_what_all_orders_lead_to_is_found(block: int) -> None:
    """Random programs of three warps: their fates are those of all orders, and a deadlock is never missed."""
    choices = 0
    for seed in range(block * 50, block * 50 + 50):
        programs, counts = drawn(seed)
        wanted, found = every_fate(programs, counts), []
        explored = explore(partial(run_toy, programs, counts, found), most_orders=10_000)
        stuck = any(fate[-1] for fate in wanted)
        assert explored.complete and set(found) <= wanted, (seed, programs, counts)
        assert any(fate[-1] for fate in found) == stuck, (seed, programs, counts)
        assert stuck or set(found) == wanted, (seed, programs, counts)
        choices += len(wanted) > 1 and not stuck
    assert choices >= 5


def meetings(*barriers: int) -> Kernel:
    """Four warps that meet in pairs at named barriers."""
    return kernel(tuple(TeamBarrier(Const(number), 64) for number in barriers), block=(128, 1, 1))


def test_orders_that_are_not_equivalent_are_counted() -> None:
    """Of four warps that come to a barrier for two, any two can be the first: the others are then the second pair."""
    operands = make_operands(Gemm(1, 1, 1))
    found = search_orders(meetings(1), operands)
    assert found.ok and found.complete and found.orders >= 6
    assert f"{found.orders} orders of 1 block run" in str(found) and "no race, no deadlock" in str(found)
    assert "1 order of 1 block run" in str(search_orders(kernel((), block=(128, 1, 1)), operands))


def test_a_search_that_meets_its_bound_says_so() -> None:
    found = search_orders(meetings(1), make_operands(Gemm(1, 1, 1)), most_orders=3)
    assert found.ok and not found.complete and found.orders == 3
    assert "the search met its bound of 3 orders of a block; others may break a rule" in str(found)


def test_a_deadlock_in_one_order_is_found() -> None:
    """Warp 0 meets one at barrier 1, then warp 1 at 2, which then goes to 1. If 2 and 3 are a pair, 0 waits for 1."""
    one, two = TeamBarrier(Const(1), 64), TeamBarrier(Const(2), 64)
    others = If(binary(Op.LT, THREAD_X, 64), (two, one), (one,))
    crossed = kernel((If(binary(Op.LT, THREAD_X, 32), (one, two), (others,)),), block=(128, 1, 1))
    operands = make_operands(Gemm(1, 1, 1))
    assert not simulate(crossed, operands).errors
    found = search_orders(crossed, operands)
    assert {finding.kind for finding in found.errors} == {Kind.DEADLOCK} and not found.ok
    assert "the last one breaks a rule" in str(found) and found.errors[0].order == f"order {found.orders} of a search"


def test_orders_that_give_other_bits() -> None:
    """Warps meet in pairs, and each then writes its number to one element: the pair that meets last decides."""
    number = registers("number")
    wrote = (Alloc(number), Assign(at(number), Cast(F32, THREAD_X // 32)), Move(Ref(C, (ZERO,)), at(number)))
    racing = kernel((TeamBarrier(Const(1), 64), *wrote), block=(128, 1, 1))
    operands = make_operands(Gemm(1, 1, 1))
    assert search_orders(racing, operands).errors
    found = search_orders(racing, operands, detectors=False)
    assert not found.errors and not found.same_bits and not found.ok
    assert "two of them give different bits" in str(found)


@pytest.mark.parametrize("part_of_k", [64, 128])
def test_blocks_that_flags_order_are_searched_together(part_of_k: int) -> None:
    """Sums in order, of two blocks or one that has all of k: of two, one waits for the flag of the other."""
    whole, _ = KERNELS["ordered sums"]()
    gemm = Gemm(64, 128, 128, BF16, out=BF16)
    operands, done = make_operands(gemm), []

    def searched(one: Kernel) -> OrderSearch:
        return search_orders(
            one,
            operands,
            part_of_k=part_of_k,
            resident_blocks=2,
            most_orders=20,
            progress=lambda at, of: done.append((at, of)),
        )

    found = searched(whole)
    assert found.ok and found.complete and found.blocks == 1 and done == [(1, 1)]
    for kind, wrong in ((WaitFlag, Kind.RACE), (SignalFlag, Kind.DEADLOCK)):
        paths = [path for path, stmt in walk(whole.body) if isinstance(stmt, kind)]
        without = [searched(edited(whole, path, lambda _: ())) for path in paths]
        kinds = {finding.kind for one in without for finding in one.errors}
        assert (wrong in kinds) == (part_of_k == 64), kind


def test_progress_is_told_for_each_block() -> None:
    done: list[tuple[int, int]] = []
    search_orders(
        naive(side=8), make_operands(Gemm(9, 17, 2)), progress=lambda at, of: done.append((at, of)), most_orders=2
    )
    assert done == [(at, 6) for at in range(1, 7)]
