"""`Variant.whole`: vectors that may be read to their ends need one guard, and no branch to single elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import F16, F32, Gemm, Order, build, make_operands
from tilewright.dtypes import Array, DType
from tilewright.ir.kernel import Kernel, Variant
from tilewright.ir.stmt import For, If, Move
from tilewright.ir.visit import walk
from tilewright.kernels.simt import SimtConfig
from tilewright.ladders import find_rung
from tilewright.planning.kernels import Shape, variant_of, weakest
from tilewright.planning.packing import Alignment
from tilewright.problem.gemm import Dim, OperandName
from tilewright.problem.reference import reference
from tilewright.toolchain import run_on_simulator
from tilewright.units import round_up
from tilewright.winners.plan_config import PlanConfig

ORDERS = [(Order.ROW, Order.ROW), (Order.ROW, Order.COL), (Order.COL, Order.ROW)]
TILE: dict[Dim, int] = {"m": 128, "n": 256, "k": 16}


def branches_to_elements(kernel: Kernel) -> int:
    """Branches of which one side takes element by element what the other takes at once."""
    sides = [
        (stmt.then[0], stmt.otherwise[0]) for _, stmt in walk(kernel.body) if isinstance(stmt, If) and stmt.otherwise
    ]
    return sum(isinstance(whole, Move) and isinstance(one_by_one, For) for whole, one_by_one in sides)


@pytest.mark.cross_section("a", "rung", every=3)
@pytest.mark.parametrize(("a", "b"), ORDERS, ids=["NN", "NT", "TN"])
@pytest.mark.parametrize(("rung", "dtype"), [("worklog/best", F32), ("hierarchy/v05", F32), ("ampere/6", F16)], ids=str)
def test_rows_that_go_on_with_zeros_are_read_whole(rung: str, dtype: DType, a: Order, b: Order) -> None:
    """Copies of odd operands: what lies behind their rows is zero as far as a vector goes, and poison from there on."""
    each = 16 // dtype.bytes
    odd = Gemm(133, 139, 45, dtype, a=a, b=b, out=dtype)
    leading = {"lda": -(-odd.lda // each) * each + each, "ldb": -(-odd.ldb // each) * each + each}
    gemm = replace(odd, **leading)  # type: ignore[arg-type]
    tight = make_operands(gemm)

    def copied(name: OperandName, storage: Array) -> Array:
        operand, leading = gemm.operand(name), gemm.leading(name)
        length, lines = gemm.size(operand.contiguous), gemm.size(operand.strided)
        rows = np.concatenate([storage, storage[: lines * leading - storage.size]]).reshape(lines, leading)
        rows[:, length : round_up(length, each)] = 0
        return rows.reshape(-1)

    operands = replace(tight, a=copied("A", tight.a), b=copied("B", tight.b))
    built = build(gemm, find_rung(rung), variant=Variant(alignment_bytes=16, result_bytes=1, whole=True))
    computed, _ = run_on_simulator(built, operands)
    np.testing.assert_allclose(computed, reference(operands), rtol=0, atol=2e-2 if dtype is F16 else 1e-4)
    assert "go on with zeros" in built.cuda


def test_a_vector_has_one_guard() -> None:
    whole = build(Gemm(1000, 1000, 1000), find_rung("worklog/best"))
    assert whole.variant.whole and "whole" in whole.variant.name
    edges = build(Gemm(1000, 1000, 1000), find_rung("worklog/best"), variant=replace(whole.variant, whole=False))
    moves = [stmt for _, stmt in walk(whole.kernel.body) if isinstance(stmt, Move)]
    assert {move.width for move in moves if move.src.buffer.name in ("A", "B")} == {4}
    assert branches_to_elements(edges.kernel) > branches_to_elements(whole.kernel)


@pytest.mark.parametrize(
    ("sizes", "leading", "whole"),
    [
        ((1000, 1000, 1000), (1000, 1000), True),
        ((1001, 1000, 1000), (1000, 1000), True),  # no row of A or B runs along m
        ((1000, 1000, 998), (1000, 1000), False),
        ((1000, 998, 1000), (1000, 1000), False),
        ((1024, 1024, 1024), (1024, 1024), False),  # exact says more
    ],
)
def test_rows_that_end_with_a_vector_are_whole(
    sizes: tuple[int, int, int], leading: tuple[int, int], whole: bool
) -> None:
    gemm = Gemm(*sizes, lda=leading[0], ldb=leading[1])
    assert build(gemm, find_rung("worklog/best")).variant.whole is whole
    found = variant_of(gemm, Alignment(16, 16, 8), Shape(TILE, reads_vectors=True), PlanConfig(SimtConfig()))
    assert found.whole is whole


def test_copies_are_whole_whatever_their_length() -> None:
    gemm = Gemm(4095, 4097, 4093, lda=4096, ldb=4128)
    shape, aligned = Shape(TILE, reads_vectors=True), Alignment(16, 16, 4)
    for pads, whole in (("AB", True), ("A", False), ("", False)):
        config = PlanConfig(SimtConfig(), frozenset(pads))  # type: ignore[arg-type]
        assert variant_of(gemm, aligned, shape, config).whole is whole
    copied = PlanConfig(SimtConfig(), frozenset(("A", "B")))
    assert not variant_of(gemm, Alignment(4, 4, 4), shape, copied).whole, "single elements are whole anyway"
    assert not variant_of(gemm, aligned, Shape(TILE, reads_vectors=False), copied).whole


def test_what_is_true_of_all_problems_of_a_list() -> None:
    exact, whole = Variant(frozenset("mnk")), Variant(whole=True)
    assert weakest([exact, whole]).whole and weakest([whole, whole]).whole
    assert not weakest([whole, Variant()]).whole and not weakest([exact, exact]).whole
    assert not weakest([whole, Variant(alignment_bytes=1)]).whole


def test_a_kernel_that_reads_no_vectors_is_one_kernel() -> None:
    for rung in ("worklog/1", "hopper/best"):
        dtype = F16 if rung == "hopper/best" else F32
        assert not build(Gemm(1000, 1000, 1000, dtype, out=dtype), find_rung(rung)).variant.whole
