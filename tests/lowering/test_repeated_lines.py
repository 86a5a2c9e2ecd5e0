"""`Variant.repeats`: behind the last line of A or B that line is read once more, so that a loop has no guards of m and
n; nothing that is stored differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright import F32, Gemm, Order, build, make_operands
from tilewright.ir.kernel import FACTORS, Kernel, Variant
from tilewright.ir.stmt import Move
from tilewright.ir.visit import variables, walk
from tilewright.kernels.simt import SimtConfig
from tilewright.planning.kernels import Shape, variant_of, weakest
from tilewright.planning.packing import Alignment
from tilewright.problem.gemm import Dim
from tilewright.problem.reference import reference
from tilewright.toolchain import run_on_simulator
from tilewright.winners.plan_config import PlanConfig

ORDERS = [(Order.ROW, Order.ROW), (Order.ROW, Order.COL), (Order.COL, Order.ROW)]
TILE: dict[Dim, int] = {"m": 64, "n": 64, "k": 16}
ONE_WARP = SimtConfig((64, 64, 16), (64, 64), fma_order="m2 m1 m0 ~n2 ~n1 ~n0")
"""With 128 accumulators of a thread."""

WAYS: dict[str, dict[str, Any]] = {
    "registers": {},
    "between k steps": {"interleaved_copies": True},
    "cp.async": {"a_transport": "cp_async", "b_transport": "cp_async", "stages": 4},
}


def loads(kernel: Kernel) -> list[Move]:
    return [stmt for _, stmt in walk(kernel.body) if isinstance(stmt, Move) and stmt.src.buffer.name in FACTORS]


@pytest.mark.parametrize(("a", "b"), ORDERS, ids=["NN", "NT", "TN"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [(45, 100, 48), (133, 36, 32), (3, 70, 48), (44, 68, 52)], ids=str)
def test_the_result_is_that_of_the_problem(sizes: tuple[int, int, int], way: str, a: Order, b: Order) -> None:
    """The simulator stops at the first read behind an operand."""
    gemm = Gemm(*sizes, F32, a=a, b=b)
    read = 16 if not any(gemm.leading(name) % 4 for name in FACTORS) else 4
    config = replace(ONE_WARP, copied=read // 4, **WAYS[way])
    aligned = Alignment(read, read, 4 if gemm.ldc % 4 else 16)
    variant = replace(variant_of(gemm, aligned, Shape(TILE, reads_vectors=True), PlanConfig(config)), repeats=True)
    built = build(gemm, config.schedule(gemm), variant=variant)
    operands = make_operands(gemm)
    computed, _ = run_on_simulator(built, operands)
    np.testing.assert_allclose(computed, reference(operands), rtol=0, atol=1e-4)
    told = {name for move in loads(built.kernel) if move.guard is not None for name in variables(move.guard)}
    assert told.isdisjoint({"M", "N"})


@pytest.mark.parametrize(
    ("sizes", "changes", "repeats"),
    [
        ((45, 100, 48), {}, True),
        ((64, 64, 48), {}, False),  # no edges
        ((45, 100, 44), {}, False),  # k has one
        ((45, 100, 48), {"warp_tile": (32, 32)}, False),  # small threads
        ((45, 100, 48), WAYS["cp.async"], False),
    ],
)
def test_large_threads_that_copy_through_registers_repeat_lines(
    sizes: tuple[int, int, int], changes: dict[str, Any], repeats: bool
) -> None:
    config = PlanConfig(replace(ONE_WARP, **changes))
    variant = variant_of(Gemm(*sizes, F32), Alignment(16, 16, 16), Shape(TILE, reads_vectors=True), config)
    assert variant.repeats is repeats
    assert variant.exact == frozenset("mnk" if sizes[0] == 64 else "k" if repeats else "")


def test_a_variant_that_does_not_say_so_keeps_its_guards() -> None:
    gemm, variant = Gemm(45, 100, 48, F32), Variant(frozenset("k"), whole=True)
    guarded, repeating = (
        build(gemm, ONE_WARP.schedule(gemm), variant=one) for one in (variant, replace(variant, repeats=True))
    )
    assert all(move.guard is not None for move in loads(guarded.kernel))
    assert all(move.guard is None for move in loads(repeating.kernel))
    assert variant.name != repeating.variant.name


def test_problems_of_a_list_repeat_their_lines_together() -> None:
    whole, odd = Variant(frozenset("mnk")), Variant(frozenset("k"), repeats=True)
    assert weakest([whole, odd]) == odd and weakest([whole, whole]) == whole
    assert not weakest([odd, Variant(whole=True)]).whole, "rows of B may end anywhere"
