"""tf32 whose operands lie along m or n: what is packed, what is read through registers, and what comes out."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from simulated import run_plan, simulated_dispatcher

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, E4M3, F32, TF32
from tilewright.kernels.block_work import Setting, work_of
from tilewright.kernels.columns import Columns
from tilewright.kernels.wgmma import WgmmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.packing import Alignment, Packing, behind_packing, fitted, ways_to_pack
from tilewright.planning.plan import Place
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order, check, make_operands
from tilewright.winners.plan_config import PlanConfig

H200, WIDE = device("H200"), Alignment(16, 16, 16)
A, B, BOTH = frozenset("A"), frozenset("B"), frozenset("AB")
LEFT = WgmmaConfig((16, 64, 32), 1, stages=3, swap_ab=True, persistent=False, left_in_registers=True)


def tf32(m: int, n: int, k: int, a: Order = Order.ROW, b: Order = Order.ROW) -> Gemm:
    return Gemm(m, n, k, F32, product=TF32, a=a, b=b)


def test_one_operand_is_left_as_it_lies_the_larger_of_two() -> None:
    assert ways_to_pack("wgmma", tf32(500, 512, 512), WIDE) == (Packing(), Packing(B))
    assert ways_to_pack("wgmma", tf32(500, 512, 512, Order.COL), WIDE) == (Packing(A), Packing(BOTH))
    assert ways_to_pack("wgmma", tf32(512, 500, 512, Order.COL), WIDE) == (Packing(B), Packing(BOTH))
    assert ways_to_pack("wgmma", tf32(64, 512, 512, b=Order.COL), WIDE) == (Packing(),)
    assert ways_to_pack("wgmma", tf32(64, 510, 512), replace(WIDE, b=8)) == (Packing(B),)
    assert ways_to_pack("wgmma", Gemm(64, 512, 512, E4M3, out=BF16), WIDE) == (Packing(B),)
    read = behind_packing(tf32(64, 512, 512, Order.COL), "wgmma", Packing(A))
    assert (read.a, read.b) == (Order.ROW, Order.ROW)


def test_what_takes_most_of_a_product_to_copy_is_not_packed() -> None:
    assert ways_to_pack("wgmma", tf32(64, 512, 512), WIDE) == (Packing(),)
    assert ways_to_pack("wgmma", tf32(64, 512, 512, Order.COL), WIDE) == (Packing(A),)


def test_a_plan_of_another_problem_is_fitted_to_what_can_be_read() -> None:
    plan = PlanConfig(LEFT)
    assert fitted(plan, tf32(64, 512, 512), WIDE) == plan
    assert fitted(plan, tf32(64, 512, 512, Order.COL), WIDE) == replace(plan, packed=A)
    without = replace(LEFT, left_in_registers=False)
    assert fitted(plan, tf32(64, 510, 512), replace(WIDE, b=8)) == PlanConfig(without, B)
    assert fitted(plan, tf32(64, 512, 512, b=Order.COL), WIDE) == PlanConfig(without)


@pytest.mark.parametrize("a", list(Order), ids=lambda order: order.value)
def test_the_ranking_offers_kernels_of_both_kinds_that_are_legal(a: Order) -> None:
    gemm = tf32(197, 4096, 4096, a)
    seen = set()
    for _, plan in islice(ranked(gemm, H200, WIDE), 400):
        if isinstance(plan.kernel, WgmmaConfig):
            read = behind_packing(gemm, "wgmma", Packing(plan.packed))
            assert plan.kernel.reasons_against(read) == (), plan
            seen.add((plan.kernel.left_in_registers, plan.packed))
    assert (True, A if a is Order.COL else frozenset()) in seen
    assert all(held is False or len(packed) < 2 for held, packed in seen)
    plain = ranked(replace(gemm, b=Order.COL, a=Order.ROW, lda=0, ldb=0), H200, WIDE)
    assert not any(getattr(one.kernel, "left_in_registers", False) for _, one in islice(plain, 200))


def test_work_is_that_of_a_kernel_that_reads_both_from_shared_memory_and_its_loads() -> None:
    gemm = tf32(64, 512, 512)
    table = Columns.of([LEFT, replace(LEFT, left_in_registers=False)], LEFT.columns)
    step = work_of("wgmma", table, gemm, Setting(32, 16)).step
    held, plain = step.operand_bytes.tolist()
    (loads,) = step.accesses
    assert held + 64 * 32 * 4 == plain
    assert (loads.requests * 32 * loads.width_bytes).tolist() == [64 * 32 * 4, 0]


def test_a_plan_that_packs_one_and_reads_the_other_is_right() -> None:
    gemm = tf32(20, 68, 40, Order.COL)
    operands = make_operands(gemm)
    config = fitted(PlanConfig(LEFT), gemm, WIDE)
    plan = plan_of(simulated_dispatcher().kernels, Request(gemm, WIDE), config)
    arrays = {
        place: operands.storage(name).copy() for place, name in ((Place.A, "A"), (Place.B, "B"), (Place.OUT, "C"))
    }
    run_plan(plan, arrays)
    assert len(plan.steps) == 2
    verdict = check(operands, arrays[Place.OUT].reshape(20, 68))
    assert verdict.ok, verdict.message
