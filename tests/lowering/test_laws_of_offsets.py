"""Offsets that stand in front of a loop, carried out: each access touches what it touched before, at less expense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from tests.lowering.scalar_runs import Thread
from tilewright.dtypes import F16
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Binary, Const, Expr, Op, Ref, Var, as_expr, binary
from tilewright.ir.ranges import Interval
from tilewright.ir.stmt import Alloc, Body, Carried, CommitCopies, For, If, Let, LoadMatrices, Move, Steady, Stmt
from tilewright.ir.visit import exprs_of, substitute, sum_of, terms_of, variables, walk
from tilewright.lowering.generator import CarriedStages, NumberedStages, RunningStages
from tilewright.lowering.hoist_offsets import (
    MOST_POINTERS,
    _above_xor,
    _factor,
    _remainders,
    hoist_offsets,
)
from tilewright.lowering.scheduler import ceil_div_by, strided_count

LANES = 32
BOUNDS = {"t": Interval(0, LANES - 1), "b": Interval(0, 3), "turn": Interval(0, 3)}
T, B, LDA = Var("t"), Var("b"), Var("lda")
TILE = Buffer("tile", Space.SHARED, F16, (3, 64, 64))
FRAG = Buffer("frag", Space.REGISTER, F16, (8,))
A = Buffer("A", Space.GLOBAL, F16, ())


def touched(body: Body, names: Mapping[str, int]) -> list[tuple[str, int]]:
    """The places that the accesses of a thread touch, one after the other."""
    thread, found = Thread(names), []

    def run(body: Body) -> None:
        for stmt in body:
            match stmt:
                case For():
                    for one in stmt.carried:
                        thread.names[one.name] = thread.value(one.start)
                    for number in range(thread.value(stmt.extent)):
                        thread.names[stmt.var] = number
                        run(stmt.body)
                        for one in stmt.carried:
                            thread.names[one.name] = thread.value(one.next)
                case If():
                    run(stmt.then if thread.value(stmt.condition) else stmt.otherwise)
                case Move() | LoadMatrices():
                    found.append((stmt.src.buffer.name, thread.value(stmt.src.flat)))
                    if stmt.dst.buffer.space is not Space.REGISTER:
                        found.append((stmt.dst.buffer.name, thread.value(stmt.dst.flat)))
                case CommitCopies():
                    pass
                case _:
                    thread.run((stmt,))

    run(body)
    return found


class Drawing:
    """A steady loop of loads from a ring, and of copies into it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def loop(self) -> For:
        moves_on = self.random.random() < 0.6
        body: list[Stmt] = []
        for number in range(self.random.randint(1, 4)):
            body += self.copies(number) if self.random.random() < 0.5 else self.loads(number)
        body.append(CommitCopies())
        body += self.loads(9)
        carried = Carried.cyclic("stage", ZERO, 3)
        return For("turn", Const(4), tuple(body), carried=(carried,), steady=Steady(moves_on))

    def within(self, stmt: Stmt, *loops: tuple[str, int]) -> Stmt:
        for name, count in loops:
            stmt = For(name, Const(count), (stmt,), unroll=True)
        return stmt

    def own(self, most: int) -> Expr:
        """What a thread alone decides, below `most`."""
        draw = self.random
        first: Expr = draw.choice([T, T // 4, T & 7, T % 8, T >> 2, B * 4 + T % 4])
        return binary(Op.MOD, first * draw.choice([1, 2, 3]) + draw.randint(0, 2), most)

    def column(self, step: Expr) -> Expr:
        column = self.own(16) + step * 16
        if self.random.random() < 0.5:
            return column ^ (T % 2 * 8)
        return binary(Op.XOR, step * 16 + self.own(8), (T & 7) * self.random.choice([1, 2]))

    def loads(self, number: int) -> Body:
        i, step = Var("i"), Var("step")
        count = self.random.randint(2, 3)
        loops = [("step", 2)] if self.random.random() < 0.7 else []
        both = self.random.random() < 0.7
        row = self.own(16) + (i * 16 if both else ZERO)
        column = self.column(step if loops else ZERO)
        lets: Body = ()
        if self.random.random() < 0.4:
            name = f"row{number}"
            lets, row = (Let(name, row),), Var(name)
        place = Ref(TILE, (Var("stage"), row, column))
        load: Stmt = Move(Ref(FRAG, (ZERO,)), place, origin="A_frag")
        if self.random.random() < 0.5:
            load = LoadMatrices(Ref(FRAG, (ZERO,)), place, 1, origin="A_frag")
        inner = (*lets, load)
        body: Body = (For("i", Const(count), inner, unroll=True),) if both else inner
        for name, extent in loops:
            body = (For(name, Const(extent), body, unroll=True),)
        if self.random.random() < 0.2:
            body = (If(Binary(Op.LT, T, Const(20)), body, body[:1]),)
        return body

    def copies(self, number: int) -> Body:
        part, count = Var("part"), self.random.randint(1, 3)
        row = self.own(16) + part * 16 + B * 64
        offset = row * LDA + (self.own(8) * 8 + Var("turn") * self.random.choice([8, 64]))
        if self.random.random() < 0.3:
            offset = (Var("turn") * 8 + self.own(8)) * LDA + B * 16 + part * 4
        if self.random.random() < 0.3:
            offset = offset + LDA * self.random.randint(1, 2)
        place = Ref(TILE, ((Var("stage") + 2) % 3, self.own(16) + part * 16, self.own(32)))
        copy = Move(place, Ref(A, (offset,)), asynchronous=True, origin=f"tile{number % 2}")
        return (For("part", Const(count), (copy,), unroll=True),) if count > 1 else (copy_at(copy, {"part": 0}),)


def copy_at(copy: Move, values: Mapping[str, int]) -> Move:
    known = {name: as_expr(value) for name, value in values.items()}
    dst, src = (Ref(place.buffer, tuple(substitute(at, known) for at in place.index)) for place in (copy.dst, copy.src))
    return replace(copy, dst=dst, src=src)


def loops_of(body: Body, around: int = 0) -> Iterator[tuple[Stmt, int]]:
    """The statements of a body with the unrolled loops around each."""
    for stmt in body:
        yield stmt, around
        if isinstance(stmt, For):
            yield from loops_of(stmt.body, around + 1)
        if isinstance(stmt, If):
            yield from loops_of((*stmt.then, *stmt.otherwise), around)


def check(seed: int) -> None:
    loop = Drawing(seed).loop()
    made = hoist_offsets((loop,), BOUNDS)
    for t, b, lda in zip((0, 5, 18, 31), (0, 3, 1, 2), (72, 80, 72, 80), strict=True):
        names = {"t": t, "b": b, "lda": lda}
        assert touched(made, names) == touched((loop,), names)
    (left,) = (stmt for stmt in made if isinstance(stmt, For) and stmt.steady)
    for stmt, around in loops_of(left.body):
        if isinstance(stmt, (Move, LoadMatrices)) and around < 2:
            read = set().union(*(variables(part) for part in (*stmt.src.index, *stmt.dst.index)))
            assert "t" not in read, stmt
    named = set().union(*(variables(expr) for _, stmt in walk(left.body) for expr in exprs_of(stmt)))
    assert all(stmt.name in named for _, stmt in walk(left.body) if isinstance(stmt, Let))
    entries = [stmt.buffer for stmt in made if isinstance(stmt, Alloc)]
    assert len({one.name for one in entries}) == len(entries)


@pytest.mark.parametrize("seed", range(24))
def test_the_same_places_and_nothing_of_the_thread_in_the_loop(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_the_same_places_of_many_loops() -> None:
    for seed in range(24, 400):
        check(seed)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_pointers_take_no_more_registers_than_there_are(rows: int) -> None:
    """Rows that lie a leading dimension apart share a pointer where each of its own would be too many."""
    part, turn = Var("part"), Var("turn")
    copies = tuple(
        Move(
            Ref(TILE, (ZERO, Const(row), part * 16)),
            Ref(A, ((T // 4 + part * 4) * LDA + LDA * row + turn * 8,)),
            asynchronous=True,
            origin="tile",
        )
        for row in range(rows)
    )
    body = (For("part", Const(4), copies, unroll=True), CommitCopies())
    loop = For("turn", Const(3), body, steady=Steady(moves_on=True))
    made = hoist_offsets((loop,), BOUNDS)
    pointers = [stmt.buffer for stmt in made if isinstance(stmt, Alloc)]
    assert all(one.offsets_into == A for one in pointers)
    assert [one.elements for one in pointers] == [4] * min(rows, MOST_POINTERS // 4)
    names = {"t": 13, "b": 1, "lda": 72}
    assert touched(made, names) == touched((loop,), names)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_added_above_the_bits_of_a_swizzle_stays_in_the_loop(count: int) -> None:
    """`(16 * turn + 8 * i + t % 8) ^ t % 16` is `16 * turn + own[i]` while 8 * i + t % 8 lies below 16."""
    column = binary(Op.XOR, Var("turn") * 16 + (Var("i") * 8 + T % 8), T % 16)
    load = Move(Ref(FRAG, (ZERO,)), Ref(TILE, (ZERO, ZERO, column)), origin="A_frag")
    copy = Move(Ref(TILE, (ZERO, ZERO, ZERO)), Ref(A, (T * 8 + Var("turn") * 64,)), asynchronous=True, origin="tile")
    inner = For("i", Const(count), (load,), unroll=True)
    loop = For("turn", Const(3), (copy, CommitCopies(), inner), steady=Steady(moves_on=True))
    made = hoist_offsets((loop,), BOUNDS)
    (left,) = (stmt for stmt in made if isinstance(stmt, For) and stmt.steady)
    (found,) = (s for s, _ in loops_of(left.body) if isinstance(s, Move) and not s.asynchronous)
    assert ("t" in set().union(*map(variables, found.src.index))) is (count > 2)
    for t in range(0, LANES, 5):
        assert touched(made, {"t": t}) == touched((loop,), {"t": t})


RANGES = {"t": Interval(0, 7), "i": Interval(0, 3)}
INNER = Var("i")
MANY: list[Expr] = [
    INNER * 8 + T,
    T + INNER * 16,
    INNER * 16 + T % 4,
    (T + INNER) * 4,
    INNER * 64 + (T & 3) * 2,
    (T << 3) + (INNER >> 1),
    T * 3 + INNER,
    (T + 1) * (INNER + 2),
    T,
    INNER * 8,
    (INNER * 2 + 1) * (T * 4) + 5,
]


def values(expr: Expr) -> list[int]:
    return [Thread({"t": t, "i": i}).value(expr) for t, i in product(range(8), range(4))]


@pytest.mark.parametrize("expr", MANY, ids=str)
def test_what_is_rewritten_keeps_its_values(expr: Expr) -> None:
    assert values(sum_of(terms_of(expr))) == values(expr) == values(_remainders(expr))
    for other in (T, T & 3, INNER, Const(6), Const(8), T * 2):
        turned = binary(Op.XOR, expr, other)
        assert values(_above_xor(turned, RANGES)) == values(turned)
    assert _above_xor(binary(Op.ADD, expr, T), RANGES) == binary(Op.ADD, expr, T)


def test_what_lies_above_an_exclusive_or_is_taken_out_where_the_rest_lies_below() -> None:
    for shift, most in product((8, 16), (7, 8, 15)):
        turned = binary(Op.XOR, INNER * shift + Var("rest"), T)
        found = _above_xor(turned, {**RANGES, "rest": Interval(0, most)})
        assert (found != turned) is (most <= 7)


@pytest.mark.parametrize("expr", MANY, ids=str)
@pytest.mark.parametrize("name", ["t", "i"])
def test_a_factor_is_what_a_product_grows_by(name: str, expr: Expr) -> None:
    for term in terms_of(expr):
        factor, at = _factor(term, name), {"t": 3, "i": 2}
        if factor is None:
            continue
        grown = [Thread({**at, name: value}).value(term) for value in range(4)]
        assert grown == [Thread(at).value(factor) * value for value in range(4)]
    assert _factor(T * INNER * 4, name) is not None
    assert _factor(T * T, "t") is None and _factor(T + 1, "t") is None and _factor(Const(5), "t") is None


# -- counters of stages ------------------------------------------------------------------------------------------------


def run_of(carried: tuple[Carried, ...], turns: int) -> Iterator[Mapping[str, int]]:
    """What counters are in each turn of a loop."""
    thread = Thread({"number": 5})
    for one in carried:
        thread.names[one.name] = thread.value(one.start)
    for _ in range(turns):
        yield dict(thread.names)
        for one in carried:
            thread.names[one.name] = thread.value(one.next)


@pytest.mark.parametrize("stages", range(2, 7))
def test_stages_go_round(stages: int) -> None:
    for has_next in (False, True) if stages > 2 else (False,):
        ring = CarriedStages("k", stages, has_next)
        for first, carried in ((0, ring.carried()), *((n, ring.carried_from(Const(n))) for n in range(stages))):
            for turn, found in enumerate(run_of(carried, 2 * stages + 1)):
                thread = Thread(found)
                for lead in (0, stages - 1, *((1,) if has_next else ())):
                    assert thread.value(ring.stage(lead)) == (first + turn + lead) % stages


@pytest.mark.parametrize("stages", range(1, 6))
def test_stages_and_parities_by_number_and_carried_along(stages: int) -> None:
    for before in range(2 * stages + 1):
        numbered, running = (ring("k", stages, Const(before)) for ring in (NumberedStages, RunningStages))
        for turn, found in enumerate(run_of(running.carried(), 3 * stages)):
            thread = Thread({**found, "k": turn})
            thread.run(numbered.lets("own"))
            number = before + turn
            here, behind = ((n % stages, n // stages % 2) for n in (number, number + 1))
            assert (thread.names["own"], thread.value(numbered.parity)) == here
            assert (thread.value(running.stage), thread.value(running.parity)) == here
            assert thread.value(numbered.previous()) == (number - 1) % stages
            for ring in (numbered, running):
                assert tuple(map(thread.value, ring.following())) == behind
                assert tuple(map(thread.value, ring.first())) == (before % stages, before // stages % 2)


def test_counts_of_numbers_that_lie_apart() -> None:
    for step, first, count in product(range(1, 6), range(4), range(9)):
        if first < count + step:
            found = Thread({}).value(strided_count(Const(step), Const(first), Const(count)))
            assert found == len(range(first, count, step))
        assert Thread({}).value(ceil_div_by(Const(count), Const(step))) == -(-count // step)
