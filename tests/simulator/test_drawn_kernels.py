"""Drawn kernels give what they mean thread by thread, in C and in what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from drawn_kernels import MOST, SIDE, SIZE, Drawing, meaning_of
from simulated_kernels import A, at, kernel, loop, registers

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Ref, Var
from tilewright.ir.stmt import Alloc, Move
from tilewright.problem import Gemm, make_operands
from tilewright.simulator import Kind, simulate
from tilewright.simulator.machine import Order

VALUES = [np.random.default_rng(seed).integers(-4, 5, SIZE).astype(np.float32) for seed in range(2)]
OPERANDS = replace(make_operands(Gemm(SIDE, SIDE, SIDE)), a=VALUES[0], b=VALUES[1])

SCHEDULES: tuple[Order, ...] = ("lockstep", "warps", "moments")


def check(seed: int) -> None:
    made = Drawing(seed).kernel()
    meant = meaning_of(made, dict(zip("AB", VALUES, strict=True)))
    assert meant.largest < MOST
    run = simulate(made, OPERANDS, on_finding="collect", schedule=SCHEDULES[seed // 3 % 3], seed=seed)
    found = {one.kind.name for one in run.findings}
    if "RACE" in meant.broken:  # what is read, and whether it was written, depends on the order
        found, meant.broken = found - {"UNWRITTEN", "SAME_VALUE"}, meant.broken - {"UNWRITTEN", "SAME_VALUE"}
    elif "UNWRITTEN" in meant.broken:  # whether two threads write the same depends on what was never written
        found, meant.broken = found - {"RACE", "SAME_VALUE"}, meant.broken - {"SAME_VALUE"}
    assert found == meant.broken
    if meant.broken <= {"SAME_VALUE"}:
        for space, what in product((Space.GLOBAL, Space.SHARED), ("loads", "stores")):
            counted = getattr(run.counters, f"{space.value}_{what}")
            expected = meant.counts(space, what)
            assert {name: getattr(counted, name) for name in expected} == expected
        elements = sorted(meant.c)
        assert run.c[elements].tolist() == [meant.c[element] for element in elements]


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_kernel_gives_what_it_means(seed: int) -> None:
    check(seed)


@pytest.mark.slow
def test_many_drawn_kernels_give_what_they_mean() -> None:
    for seed in range(40, 500):
        check(seed)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("step", range(4))
def test_vectors_are_looked_at_in_each_turn_of_a_loop(step: int, first: int, width: int) -> None:
    """Lanes point alike in all turns, `step` elements further in each."""
    held, turn, lane = registers("held", 4), Var("turn"), Var("threadIdx.x")
    load = Move(at(held), Ref(A, (lane * width + (turn * step + first),)), width)
    made = kernel((Alloc(held), loop("turn", 5, load)))
    run = simulate(made, OPERANDS, on_finding="collect")
    wrong = [number for number in range(5) if (number * step + first) % width]
    assert sum(one.occurrences for one in run.findings) == len(wrong)
    assert all(one.kind is Kind.MISALIGNED for one in run.findings)
    assert [dict(one.where.loops)["turn"] for one in run.findings] == wrong[:1]
