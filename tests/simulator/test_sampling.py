"""A few blocks stand for a grid, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_kernels import A, at, kernel, less, naive, register_tiled, registers, shared, tiled

from tests.strategies import budget
from tilewright.dtypes import BF16
from tilewright.ir.expr import ONE, Binary, Expr, Op, Ref, Var, as_expr, binary, both
from tilewright.ir.kernel import Kernel
from tilewright.ir.stmt import Alloc, CommitCopies, Let, Move, WaitCopies
from tilewright.ladders import find_rung
from tilewright.problem import Gemm, Operands, make_operands
from tilewright.simulator import Counters, count_sampled, sample_blocks, simulate
from tilewright.simulator.line_counts import COUNTED
from tilewright.toolchain import build

BLOCK, THREAD = Var("blockIdx.x"), Var("threadIdx.x")


@dataclass(frozen=True)
class Compared:
    """block * blockIdx.x + thread * threadIdx.x, and what it is compared with."""

    op: Op
    block: int
    thread: int
    other: int

    @property
    def expr(self) -> Expr:
        return Binary(self.op, BLOCK * self.block + THREAD * self.thread, as_expr(self.other))

    @property
    def difference(self) -> Expr:
        return as_expr(self.other) - (BLOCK * self.block + THREAD * self.thread)


MAKERS = {
    "naive": naive,
    "rows first": lambda: naive(rows_first=True),
    "tiled": lambda: tiled(16),
    "register tiled": register_tiled,
}


@pytest.mark.parametrize("size", [(256, 128, 8), (300, 260, 20), (140, 516, 4)])
@pytest.mark.parametrize("name", MAKERS)
def test_totals_are_exact(name: str, size: tuple[int, int, int]) -> None:
    kernel, operands = MAKERS[name](), make_operands(Gemm(*size))
    every, sampled = simulate(kernel, operands).counters, count_sampled(kernel, operands)
    assert not sampled.is_estimate
    assert {count: sampled.total(count) for count in COUNTED} == {count: every.total(count) for count in COUNTED}
    assert sampled.lines == every.lines and sampled.blocks == every.blocks
    assert sampled.barriers_per_k_step == every.barriers_per_k_step


@pytest.mark.parametrize("make", [lambda: naive(side=8), lambda: tiled(16)])
def test_rows_that_are_no_multiple_of_a_line_make_more_classes(make: Callable[[], Kernel]) -> None:
    """With ldb = 133 each row of blocks meets its sectors differently."""
    gemm = Gemm(200, 133, 9, lda=11, ldc=137)
    sample = sample_blocks(make(), gemm)
    assert sample.is_exact and len(sample.classes) > 4
    operands = make_operands(gemm)
    sampled, every = count_sampled(make(), operands), simulate(make(), operands).counters
    assert sampled.lines == every.lines


def test_blocks_of_a_cluster_all_run() -> None:
    """A block brings the others of its cluster along, so none of them stands for another."""
    gemm = Gemm(256, 512, 128, BF16, out=BF16)
    kernel = build(gemm, find_rung("hopper/7")).kernel
    assert kernel.cluster == 2
    sampled, every = (run(replace(kernel, resident=False), make_operands(gemm)) for run in (count_sampled, counted))
    assert sampled.blocks == every.blocks and sampled.lines == every.lines and not sampled.is_estimate


def counted(kernel: Kernel, operands: Operands) -> Counters:
    return simulate(kernel, operands).counters


def test_a_whole_grid_is_one_class() -> None:
    sample = sample_blocks(register_tiled(), Gemm(1024, 2048, 64))
    assert [one.count for one in sample.classes] == [8 * 16]


def test_edges_make_four() -> None:
    sample = sample_blocks(register_tiled(), Gemm(1000, 2000, 64, ldb=2048, ldc=2048))
    assert sorted(one.count for one in sample.classes) == [1, 7, 15, 7 * 15]


def test_too_many_classes_become_an_estimate_that_says_so() -> None:
    operands = make_operands(Gemm(200, 133, 9, lda=11, ldc=137))
    sample = sample_blocks(tiled(16), operands.gemm, limit=4)
    assert not sample.is_exact and "classes" in sample.reason
    assert sum(one.count for one in sample.classes) == 13 * 9
    assert count_sampled(tiled(16), operands, limit=4).is_estimate


def test_an_index_that_is_no_sum_is_an_estimate() -> None:
    x, mixed = registers("x"), (Var("blockIdx.x") * 5 + Var("threadIdx.x")) // 3
    body = (Alloc(x), Let("place", mixed), Move(at(x), Ref(A, (Var("place"),)), guard=less(Var("place"), 64)))
    sample = sample_blocks(kernel(body, grid=(as_expr(9), ONE, ONE)), Gemm(64, 1, 1))
    assert "mixes coordinates" in sample.reason and sum(one.count for one in sample.classes) == 9


def test_no_blocks() -> None:
    assert sample_blocks(naive(), Gemm(0, 8, 8)).classes == ()
    assert count_sampled(naive(), make_operands(Gemm(0, 8, 8))).blocks == 0


compared = st.builds(
    Compared,
    op=st.sampled_from([Op.LT, Op.LE, Op.GE, Op.EQ, Op.NE]),
    block=st.sampled_from([-40, -32, 0, 1, 7, 32, 33, 64]),
    thread=st.sampled_from([-1, 0, 1, 2]),
    other=st.integers(-40, 200),
)
guards = st.one_of(st.none(), compared, st.tuples(compared, compared))
lasting = st.builds(
    Compared, st.just(Op.MIN), st.sampled_from([-40, -32, -1, 0]), st.sampled_from([-2, -1, 0]), st.integers(0, 8)
)
"""What is left to copy: never below 0."""


@settings(max_examples=budget(80))
@given(guard=guards, asynchronous=st.booleans(), valid=st.one_of(st.none(), lasting), stride=st.integers(0, 40))
def test_blocks_of_a_class_count_alike_whatever_their_guards_are(
    guard: Any, asynchronous: bool, valid: Compared | None, stride: int
) -> None:
    """A load, or a copy that reads as much as there is; guarded by the numbers of blocks and threads."""
    tile, x = shared("tile", 128), registers("x", 4)
    place = BLOCK * (stride * 4) + THREAD * 4
    both_of = guard if isinstance(guard, tuple) else (guard,) if guard is not None else ()
    move = Move(
        at(tile, THREAD * 4) if asynchronous else at(x),
        Ref(A, (place,)),
        width=4,
        guard=both(*(one.expr for one in both_of)),
        asynchronous=asynchronous,
        valid=None if valid is None or not asynchronous else binary(Op.MIN, valid.difference, 4),
    )
    body = (Alloc(x), move, CommitCopies(), WaitCopies(0))
    gemm = Gemm(1, 1, 2048)
    made = kernel(body, grid=(as_expr(9), ONE, ONE), shared_buffers=(tile,), gemm=gemm)
    operands = make_operands(gemm)
    every, sampled = (run(made, operands) for run in (counted, count_sampled))
    assert sampled.lines == every.lines and sampled.blocks == every.blocks and not sampled.is_estimate


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_as_many_classes_as_the_limit_are_exact(limit: int) -> None:
    sample = sample_blocks(register_tiled(), Gemm(1000, 2000, 64, ldb=2048, ldc=2048), limit=limit)
    assert sample.is_exact == (limit == 4)
