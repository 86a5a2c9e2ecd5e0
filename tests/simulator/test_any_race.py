"""Drawn programs of loads, stores and barriers: a race is found exactly where all pairs of accesses have one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_kernels import C, at, kernel, registers, shared

from tests.strategies import budget
from tilewright.dtypes import F32
from tilewright.ir.async_stmt import FenceProxy
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Binary, Cast, Const, Op, Ref, Var, as_expr
from tilewright.ir.stmt import Alloc, Assign, Barrier, Move, Stmt
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Finding, Kind, simulate
from tilewright.simulator.findings import Where

THREADS, WARP, ELEMENTS = 64, 32, 96
THREAD, BLOCK = Var("threadIdx.x"), Var("blockIdx.x")


@dataclass(frozen=True)
class Touched:
    """Threads first to last - 1 of a block touch `width` elements from (thread * factor + shift) % modulus on."""

    store: bool
    first: int
    last: int
    factor: int
    shift: int
    modulus: int
    width: int

    def elements(self, thread: int) -> range:
        start = (thread * self.factor + self.shift) % self.modulus * self.width
        return range(start, start + self.width)


ends = st.sampled_from([0, 1, 2, 31, 32, 33, 63, 64])
wide = st.builds(
    Touched,
    store=st.booleans(),
    first=st.integers(0, 40),
    last=st.integers(1, THREADS),
    factor=st.sampled_from([0, 1, 1, 2, 31, 47]),
    shift=st.integers(0, 47),
    modulus=st.sampled_from([48, 47, 33]),
    width=st.sampled_from([1, 2]),
)
narrow = st.builds(
    Touched, st.booleans(), ends, ends, st.just(1), st.integers(0, 1), st.sampled_from([1, 48]), st.just(1)
)
one_thread = st.builds(
    lambda store, thread: Touched(store, thread, thread + 1, 0, 5, 48, 1), st.booleans(), st.sampled_from([0, 1, 40])
)
barrier = st.none()
programs = st.one_of(
    st.lists(st.one_of(barrier, wide), min_size=1, max_size=6),
    st.lists(st.one_of(barrier, narrow), min_size=2, max_size=6),
    st.lists(st.one_of(barrier, one_thread), min_size=2, max_size=7),
)


@dataclass(frozen=True)
class Access:
    element: int
    thread: tuple[int, int]
    """Its block, and its number there."""
    phase: int
    store: bool
    value: float

    @property
    def warp(self) -> tuple[int, int]:
        return self.thread[0], self.thread[1] // WARP


def accesses(program: list[Touched | None], blocks: int) -> Iterable[Access]:
    phase = 0
    for number, step in enumerate(program):
        if step is None:
            phase += 1
            continue
        for block in range(blocks):
            for thread in range(step.first, min(step.last, THREADS)):
                for element in step.elements(thread):
                    value = float(1000 * number + THREADS * block + thread)
                    yield Access(element, (block, thread), phase, step.store, value)


def races(program: list[Touched | None], blocks: int) -> list[tuple[Access, Access]]:
    """Every two accesses of one element by two threads, one of them a store, that no barrier of a block orders."""
    by_element: dict[int, list[Access]] = {}
    for access in accesses(program, blocks):
        by_element.setdefault(access.element, []).append(access)
    return [
        (one, other)
        for group in by_element.values()
        for one, other in combinations(group, 2)
        if one.thread != other.thread
        and (one.store or other.store)
        and (one.phase == other.phase or one.thread[0] != other.thread[0])
    ]


def found(program: list[Touched | None], blocks: int, space: Space, schedule: str, *, clocks: bool) -> list[Finding]:
    """The races that the simulator finds. clocks: in a kernel that has units beside its threads."""
    tile, x = shared("tile", ELEMENTS), registers("x", 2)
    everywhere = Touched(store=True, first=0, last=48, factor=1, shift=0, modulus=48, width=2)
    body: list[Stmt] = [Alloc(x)]
    whole = [everywhere, None] if space is Space.SHARED else []
    for number, step in enumerate((*whole, *program)):
        if step is None:
            body.append(Barrier())
            continue
        start = Binary(Op.MOD, THREAD * step.factor + step.shift, as_expr(step.modulus)) * step.width
        place = at(tile, start) if space is Space.SHARED else Ref(C, (start,))
        active = Binary(
            Op.AND,
            Binary(Op.GE, THREAD, as_expr(step.first)),
            Binary(Op.LT, THREAD, as_expr(step.last)),
        )
        value = Cast(F32, BLOCK * THREADS + THREAD + 1000 * (number - len(whole)))
        body += [Assign(at(x, part), value) for part in range(step.width)]
        dst, src = (place, at(x, 0)) if step.store else (at(x, 0), place)
        body.append(Move(dst, src, width=step.width, guard=active))
    if clocks:
        body.append(FenceProxy(Space.SHARED))
    gemm = Gemm(1, ELEMENTS, 1)
    made = kernel(
        tuple(body),
        grid=(Const(blocks), as_expr(1), as_expr(1)),
        block=(THREADS, 1, 1),
        shared_buffers=(tile,) if space is Space.SHARED else (),
        gemm=gemm,
    )
    run = simulate(made, make_operands(gemm), on_finding="collect", schedule=schedule, detectors=("races",))
    assert {finding.kind for finding in run.findings} <= {Kind.RACE}, run.findings
    return list(run.findings)


def threads_of(where: Where) -> set[tuple[int, int]]:
    """Of a place; where the lanes are not known, those of the warp."""
    return {(where.block[0], where.warp * WARP + lane) for lane in where.lanes or range(WARP)}


def tell_of(finding: Finding, pairs: list[tuple[Access, Access]]) -> bool:
    """Whether a race is one of the pairs: its element, its threads, and what each of the two does."""
    assert finding.earlier is not None
    here, earlier = threads_of(finding.where), threads_of(finding.earlier)
    headline = {True: ("read here, written", "written here, read"), False: ("written here, written",)}
    return any(
        one.element == finding.element
        and {one.thread, other.thread} & here
        and {one.thread, other.thread} & earlier
        and any(words in finding.headline for words in headline[one.store != other.store])
        for one, other in pairs
    )


@pytest.mark.parametrize(("space", "blocks"), [(Space.SHARED, 1), (Space.GLOBAL, 1), (Space.GLOBAL, 2)])
@settings(max_examples=budget(60))
@given(program=programs, schedule=st.sampled_from(["lockstep", "warps"]))
def test_a_race_is_found_where_there_is_one_and_nowhere_else(
    space: Space, blocks: int, schedule: str, program: list[Touched | None]
) -> None:
    pairs, told = races(program, blocks), found(program, blocks, space, schedule, clocks=False)
    assert bool(told) == bool(pairs)
    assert all(tell_of(finding, pairs) for finding in told)


@pytest.mark.parametrize(("space", "blocks"), [(Space.SHARED, 1), (Space.GLOBAL, 1), (Space.GLOBAL, 2)])
@settings(max_examples=budget(60))
@given(program=programs, schedule=st.sampled_from(["lockstep", "warps"]))
def test_so_it_is_with_units_beside_the_threads(
    space: Space, blocks: int, schedule: str, program: list[Touched | None]
) -> None:
    """There the lanes of a warp are known apart for what they write, not for what they read."""
    pairs = races(program, blocks)
    told = found(program, blocks, space, schedule, clocks=True)
    assert all(tell_of(finding, pairs) for finding in told)
    if any(one.warp != other.warp for one, other in pairs):
        assert told


@pytest.mark.parametrize("space", [Space.SHARED, Space.GLOBAL])
@pytest.mark.parametrize("stores", list(product((False, True), repeat=3)), ids=str)
def test_any_three_accesses_of_one_element(stores: tuple[bool, ...], space: Space) -> None:
    """By a thread, by its neighbour or itself, or by one of another warp."""
    for threads in product((1,), (0, 1, 40), (0, 1, 40)):
        program: list[Touched | None] = [
            Touched(store, thread, thread + 1, 0, 5, 48, 1) for store, thread in zip(stores, threads, strict=True)
        ]
        pairs, told = races(program, 1), found(program, 1, space, "lockstep", clocks=False)
        assert bool(told) == bool(pairs), threads
        assert all(tell_of(finding, pairs) for finding in told)
