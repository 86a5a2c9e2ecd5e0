"""Barriers stand between any two accesses that clash, on every path, and none stands for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.strategies import budget
from tilewright.dtypes import F32
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import ZERO, Const, Expr, Op, Ref, Var, binary
from tilewright.ir.kernel import SAFE
from tilewright.ir.program import Level
from tilewright.ir.stmt import Barrier, Body, For, If, Move, Stmt
from tilewright.ir.text import body_lines
from tilewright.ir.visit import walk
from tilewright.lowering import lower
from tilewright.lowering.place_barriers import place_barriers
from tilewright.problem import Gemm, check, make_operands
from tilewright.schedule import Accumulate, Bind, Distribute, Schedule, Split, Stage
from tilewright.simulator import simulate

TILES = {name: Buffer(name, Space.SHARED, F32, (64,)) for name in ("X", "Y", "Z")}
VALUE = Buffer("value", Space.REGISTER, F32, (1,))
THREAD = Var("threadIdx.x")
HERE = Ref(VALUE, (ZERO,))


def write(name: str) -> Move:
    return Move(Ref(TILES[name], (THREAD,)), HERE)


def read(name: str) -> Move:
    return Move(HERE, Ref(TILES[name], (THREAD,)))


def loop(*body: Stmt, extent: Expr = Var("K")) -> For:  # noqa: B008
    return For("i", extent, body)


def branch(*body: Stmt) -> If:
    return If(binary(Op.LT, THREAD, 8), body)


def sketch(body: Body) -> str:
    """`wX | rX (wX | rX)*`: accesses, barriers, loops."""
    parts = []
    for stmt in body:
        match stmt:
            case Barrier():
                parts.append("|")
            case Move():
                writes = stmt.dst.buffer.space is Space.SHARED
                parts.append(f"w{stmt.dst.buffer.name}" if writes else f"r{stmt.src.buffer.name}")
            case For():
                parts.append(f"({sketch(stmt.body)})*")
            case If():
                parts.append(f"[{sketch(stmt.then)}]")
            case _:
                raise AssertionError(stmt)
    return " ".join(parts)


WX, RX, WY, RY, WZ, RZ = write("X"), read("X"), write("Y"), read("Y"), write("Z"), read("Z")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((WX, RX), "wX | rX"),
        ((RX, WX), "rX | wX"),
        ((WX, WX), "wX | wX"),
        ((RX, RX), "rX rX"),
        ((WX, RY, WZ), "wX rY wZ"),
        ((WX, WY, RX, RY), "wX wY | rX rY"),
        ((WX, RX, WX, RX), "wX | rX | wX | rX"),
        ((loop(WX, WY, RX, RY),), "(| wX wY | rX rY)*"),
        ((WX, loop(RX)), "wX | (rX)*"),
        ((WX, loop(RX, WY, RY)), "wX (| rX wY | rY)*"),
        ((loop(WX, loop(RX, extent=Const(4))),), "(| wX | (rX)*)*"),
        ((branch(WX), RX), "[wX] | rX"),
        ((loop(branch(WX), RX),), "(| [wX] | rX)*"),
        ((loop(WX, RX), RX), "(| wX | rX)* rX"),
        ((loop(WX, RX), WX), "(| wX | rX)* | wX"),
        ((WX, loop(WY, RY), RX), "wX (| wY | rY)* | rX"),  # no iteration, no barrier
        ((WX, loop(WY, RY, extent=Const(4)), RX), "wX (| wY | rY)* rX"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_where_barriers_stand(body: Body, expected: str) -> None:
    assert sketch(place_barriers(body)) == expected


# -- every path -------------------------------------------------------------------------------------------------------

Plan = str | tuple[str, list["Plan"]]
"""`wX` or `rX`; or the extent of a loop ("2", "K", "M") or "if", with what is inside."""

TIMES = {"K": (0, 1, 3), "M": (0, 2)}


def built(plans: list[Plan]) -> Body:
    """The statements of a plan; a branch that would both write and read one tile is written out without a branch."""
    result: list[Stmt] = []
    for plan in plans:
        if isinstance(plan, str):
            result.append(write(plan[1]) if plan[0] == "w" else read(plan[1]))
            continue
        kind, inside = plan[0], built(plan[1])
        if kind == "if":
            result += inside if mixes(inside) else [branch(*inside)]
        else:
            result.append(For("i", Const(2) if kind == "2" else Var(kind), inside))
    return tuple(result)


ACCESSES = st.sampled_from(("wX", "rX", "wY", "rY", "wZ", "rZ"))
PLANS = st.recursive(
    ACCESSES,
    lambda plans: st.tuples(st.sampled_from(("2", "K", "M", "if")), st.lists(plans, min_size=1, max_size=5)),
    max_leaves=8,
)


def touched(body: Body) -> tuple[frozenset[str], frozenset[str]]:
    """The tiles that a body writes, and reads."""
    moves = [stmt for _, stmt in walk(body) if isinstance(stmt, Move)]
    written = frozenset(m.dst.buffer.name for m in moves if m.dst.buffer.space is Space.SHARED)
    return written, frozenset(m.src.buffer.name for m in moves if m.src.buffer.space is Space.SHARED)


def mixes(body: Body) -> bool:
    written, found = touched(body)
    return bool(written & found)


def events(body: Body, times: dict[str, int]) -> Iterator[Stmt]:
    """What a thread comes to, in order: barriers, and accesses; what shares no barrier inside counts as one access."""
    for stmt in body:
        if isinstance(stmt, For) and (mixes(stmt.body) or any(isinstance(s, Barrier) for _, s in walk(stmt.body))):
            count = stmt.extent.value if isinstance(stmt.extent, Const) else times[stmt.extent.name]  # type: ignore[union-attr]
            for _ in range(int(count)):
                yield from events(stmt.body, times)
        elif not (isinstance(stmt, For) and isinstance(stmt.extent, Var) and times[stmt.extent.name] == 0):
            yield stmt


def clashes(body: Body) -> str:
    """Two accesses that nothing orders, for some numbers of iterations; empty where there are none."""
    for counts in product(*TIMES.values()):
        since: list[Stmt] = []
        for event in events(body, dict(zip(TIMES, counts, strict=True))):
            if isinstance(event, Barrier):
                since = []
                continue
            written, found = touched((event,))
            for earlier in since:
                before_written, before_found = touched((earlier,))
                if before_written & (written | found) or before_found & written:
                    return f"{sketch((earlier,))} and {sketch((event,))} with K, M = {counts}"
            since.append(event)
    return ""


@given(st.lists(PLANS, min_size=1, max_size=6))
@settings(max_examples=budget(300))
def test_every_clash_is_ordered_on_every_path(plans: list[Plan]) -> None:
    body = built(plans)
    placed = place_barriers(body)
    note(sketch(placed))
    assert clashes(placed) == ""
    bare = tuple(line.text for line in body_lines(placed) if "barrier" not in line.text)
    assert bare == tuple(line.text for line in body_lines(body)), "nothing but barriers is added"


@given(st.lists(ACCESSES, max_size=10))
@settings(max_examples=budget(200))
def test_no_barrier_on_a_straight_line_can_go(plans: list[Plan]) -> None:
    placed = place_barriers(built(plans))
    for at, stmt in enumerate(placed):
        if isinstance(stmt, Barrier):
            assert clashes((*placed[:at], *placed[at + 1 :]))


# -- whole kernels ----------------------------------------------------------------------------------------------------


def barriers(body: Body) -> list[int]:
    """How deep in loops each barrier stands."""
    return [len(path) - 1 for path, stmt in walk(body) if isinstance(stmt, Barrier)]


BLOCKS = (
    Split("m", 8, into=("m_block", "m_thread")),
    Split("n", 8, into=("n_block", "n_thread")),
    Split("k", 4, into=("k_tile", "k_in")),
    Bind("m_block", Level.GRID_Y),
    Bind("n_block", Level.GRID_X),
    Bind("m_thread", Level.BLOCK_Y),
    Bind("n_thread", Level.BLOCK_X),
    Accumulate("k_tile"),
)
RESULT = (Stage("C", Space.SHARED), Distribute("C_tile"))
OPERANDS = (
    Stage("A", Space.SHARED, under="k_tile"),
    Distribute("A_tile"),
    Stage("B", Space.SHARED, under="k_tile"),
    Distribute("B_tile"),
)


def test_a_result_that_is_shared_out_takes_one_more() -> None:
    gemm = Gemm(64, 64, 64)
    assert barriers(lower(Schedule(*BLOCKS, *RESULT).apply(gemm), SAFE).body) == [0]
    assert barriers(lower(Schedule(*BLOCKS, *OPERANDS, *RESULT).apply(gemm), SAFE).body) == [1, 1, 0]


@pytest.mark.parametrize("order", ["lockstep", "warps"])
def test_a_result_that_is_not_shared_out_takes_none(order: Any) -> None:
    """Each thread takes back what it put there: nothing is ordered, and nothing need be."""
    gemm = Gemm(20, 13, 9)
    program = Schedule(*BLOCKS, *RESULT[:1]).apply(gemm)
    assert barriers(lower(program, SAFE).body) == []
    assert barriers(lower(Schedule(*BLOCKS, *OPERANDS, *RESULT[:1]).apply(gemm), SAFE).body) == [1, 1]
    operands = make_operands(gemm)
    run = simulate(lower(program, SAFE), operands, on_finding="collect", schedule=order)
    assert not run.findings and check(operands, run.c.reshape(gemm.m, gemm.n)).ok


def test_one_loop_for_each_tile() -> None:
    """A tile under the outer loop is complete for all steps of the inner one."""
    steps = (
        Split("k", 8, into=("k_outer", "k_rest")),
        Split("k_rest", 4, into=("k_tile", "k_in")),
        *BLOCKS[:2],
        *BLOCKS[3:7],
        Accumulate("k_outer"),
        Stage("A", Space.SHARED, under="k_outer"),
        Distribute("A_tile"),
        Stage("B", Space.SHARED, under="k_tile"),
        Distribute("B_tile"),
    )
    program = Schedule(*steps).apply(Gemm(64, 64, 64))
    assert barriers(lower(program, SAFE).body) == [1, 2, 2]
