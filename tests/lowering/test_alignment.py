"""What a kernel does where operands are less than 16-byte aligned, and where it may not be slow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright import F16, F32, Gemm, Order, build
from tilewright.ir.buffer import Space
from tilewright.ir.kernel import Variant
from tilewright.ir.program import Route
from tilewright.ir.stmt import For, If, Move
from tilewright.ir.visit import walk
from tilewright.kernels.mma_presets import THROUGH_SHARED, at_depth
from tilewright.ladders import find_rung
from tilewright.lowering.narrow_accesses import narrowed_copies
from tilewright.problem import check, make_operands
from tilewright.problem.reference import view

FULL = find_rung("ampere/full")


@pytest.mark.parametrize(
    ("k", "alignment_bytes"), [(4096, 16), (4092, 8), (4090, 4), (4093, 1)], ids=["16", "8", "4", "an element"]
)
def test_the_widest_alignment_that_is_true_is_taken(k: int, alignment_bytes: int) -> None:
    variant = build(Gemm(4096, 4096, k, F16, out=F16), FULL).variant
    assert variant.alignment_bytes == alignment_bytes


@pytest.mark.parametrize("alignment_bytes", [8, 4, 1])
def test_copies_are_shared_out_in_chunks_of_the_alignment(alignment_bytes: int) -> None:
    gemm = Gemm(256, 256, 128, F16, out=F16)
    program = narrowed_copies(
        build(gemm, at_depth(THROUGH_SHARED, gemm).schedule(gemm)).program, Variant(alignment_bytes=alignment_bytes)
    )
    for staged in program.staged:
        if staged.operand == "C":
            assert staged.distribution is not None and staged.distribution.vector * F16.bytes == max(alignment_bytes, 2)
        elif staged.distribution is not None:
            assert staged.route is (Route.REGISTERS if alignment_bytes == 1 else Route.ASYNC)
            assert staged.distribution.vector * F16.bytes == max(alignment_bytes, 4)


@pytest.mark.parametrize("alignment_bytes", [16, 8, 4, 1])
def test_no_access_is_wider_than_the_alignment(alignment_bytes: int) -> None:
    kernel = build(Gemm(256, 256, 128, F16, out=F16), FULL, variant=Variant(alignment_bytes=alignment_bytes)).kernel
    for _, stmt in walk(kernel.body):
        if isinstance(stmt, Move) and Space.GLOBAL in (stmt.src.buffer.space, stmt.dst.buffer.space):
            assert stmt.settled or stmt.width * F16.bytes <= max(alignment_bytes, 2)


def test_the_loop_that_feeds_tensor_cores_has_no_branch() -> None:
    kernel = build(Gemm(4096, 4096, 4096, F16, out=F16), FULL).kernel
    (loop,) = [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, For) and stmt.carried]
    assert not any(isinstance(stmt, If) for stmt in loop.body)


def test_rows_of_c_say_nothing_of_the_width_of_loads() -> None:
    """An odd n makes stores narrow; A and B, whose rows lie along k, are still read 16 bytes at a time."""
    kernel = build(Gemm(256, 257, 128, F32, b=Order.COL), find_rung("worklog/best")).kernel
    assert kernel.variant == Variant(frozenset("mk"), 16, True, 1) and "results1" in kernel.variant.name
    widths: dict[str, set[int]] = {"A": set(), "B": set(), "C": set()}
    for _, stmt in walk(kernel.body):
        if isinstance(stmt, Move):
            for place in (stmt.src, stmt.dst):
                if place.buffer.name in widths:
                    widths[place.buffer.name].add(stmt.width)
    assert max(widths["A"]) == max(widths["B"]) == 4 and widths["C"] == {1}


def test_an_alignment_of_results_that_is_that_of_operands_is_no_other_variant() -> None:
    assert Variant(alignment_bytes=8, result_bytes=8) == Variant(alignment_bytes=8)
    assert Variant(alignment_bytes=8, result_bytes=16).aligned_bytes("C") == 16
    assert Variant(alignment_bytes=8).aligned_bytes("residual") == 8


@pytest.mark.cross_section("point", "a", every=3)
@pytest.mark.parametrize(
    "point", [{"stages": 2}, {"interleaved_copies": False}, {"double_buffered_fragments": False}, {}], ids=str
)
@pytest.mark.parametrize(("a", "b", "odd"), [(Order.ROW, Order.ROW, "A"), (Order.COL, Order.COL, "B")])
@pytest.mark.parametrize("size", [(65, 67, 101), (64, 64, 96), (3, 130, 0)], ids=str)
def test_one_unaligned_operand_makes_both_narrow(
    point: dict[str, Any], a: Order, b: Order, odd: str, size: tuple[int, int, int]
) -> None:
    gemm = Gemm(*size, F16, out=F16, a=a, b=b, lda=141 if odd == "A" else 136, ldb=141 if odd == "B" else 136)
    small = replace(THROUGH_SHARED, tile=(64, 64, 32), warp_tile=(32, 32), **point)
    built = build(gemm, at_depth(small, gemm).schedule(gemm))
    assert built.variant.alignment_bytes == 1
    operands = make_operands(gemm)
    run = built.simulate(operands)
    assert check(operands, gemm.out.decode(view(gemm, "C", run.c))).ok and not run.findings
