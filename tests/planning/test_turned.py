"""A column-major B, transposed before a kernel that multiplies by FFMA: what is chosen, what is launched, and what
comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cpu_gpu import State, cpu_gpu
from planned import alignment_of, asked, paper_dispatcher, planned
from test_matmul import assert_right, drawn

from tilewright.device.catalog import device
from tilewright.dtypes import BF16, F32
from tilewright.frontend import matmul
from tilewright.kernels.simt import SimtConfig
from tilewright.planning import dispatch
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.estimates import estimated
from tilewright.planning.on_paper import PaperKernels, launches_of, order_of_plan
from tilewright.planning.packing import Alignment, Packing, Stack, fitted, ways_to_pack
from tilewright.planning.plan import Place
from tilewright.planning.ranking import ranked
from tilewright.problem import Gemm, Order
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
WIDE, ODD = Alignment(16, 16, 16), Alignment(4, 4, 4)
A, B, BOTH = frozenset("A"), frozenset("B"), frozenset("AB")
TRANSPOSED = PlanConfig(SimtConfig(), B, B)


def by_columns(m: int, n: int, k: int, **options: Any) -> Gemm:
    return Gemm(m, n, k, F32, b=Order.COL, **options)


@pytest.mark.parametrize("shape", [(4096,) * 3, (8192,) * 3, (4096, 14336, 4096)])
def test_large_problems_turn_b_first(shape: tuple[int, int, int]) -> None:
    best = next(estimated(asked(*shape, "f32", "NT"), H200))
    assert (best.packed, best.transposed, best.split_k) == (B, B, 1)
    assert not next(estimated(asked(*shape, "f32", "NN"), H200)).packed


def test_both_are_turned_where_both_are_copied_anyway() -> None:
    best = next(estimated(asked(4095, 4097, 4093, "f32", "NT"), H200))
    assert (best.packed, best.transposed, best.tile_multiples) == (BOTH, BOTH, True)


# Of the last, rows of a turned B would lie 594 KiB apart, and are read no faster.
@pytest.mark.parametrize("shape", [(256,) * 3, (1024,) * 3, (64, 4096, 14336), (16, 8192, 8192), (2048, 151936, 2048)])
def test_problems_that_do_not_pay_for_it_do_not(shape: tuple[int, int, int]) -> None:
    assert not next(estimated(asked(*shape, "f32", "NT"), H200)).transposed


def test_turning_is_a_way_for_b_by_columns_in_f32_on_ffma_alone() -> None:
    gemm = by_columns(512, 512, 512)
    assert ways_to_pack("simt", gemm, WIDE) == (Packing(), Packing(B, B))
    assert ways_to_pack("simt", gemm, ODD) == (
        *(Packing(), Packing(BOTH, B)),
        Packing(BOTH, BOTH, tile_multiples=True),
    )
    assert ways_to_pack("simt", gemm, Alignment(4, 16, 16))[:3] == (Packing(), Packing(A), Packing(BOTH, B))
    assert ways_to_pack("simt", Gemm(512, 512, 512), WIDE) == (Packing(),)
    assert ways_to_pack("mma", gemm, WIDE) == ways_to_pack("wgmma", gemm, WIDE) == (Packing(),)
    assert ways_to_pack("simt", Gemm(512, 512, 512, BF16, b=Order.COL), WIDE) == (Packing(),)


def test_a_measured_choice_turns_what_lies_by_columns_and_nothing_else() -> None:
    assert fitted(TRANSPOSED, by_columns(512, 512, 512), WIDE) == TRANSPOSED
    padded = fitted(TRANSPOSED, Gemm(512, 512, 511), ODD)
    assert (padded.packed, padded.transposed) == (B, frozenset())
    assert fitted(TRANSPOSED, Gemm(512, 512, 512), WIDE) == PlanConfig(SimtConfig())
    both = PlanConfig(SimtConfig(), BOTH, B)
    assert fitted(both, by_columns(512, 512, 512), WIDE) == TRANSPOSED
    assert fitted(both, by_columns(512, 512, 511), ODD) == both


def test_a_plan_transposes_b_and_pads_a_before_a_product_of_row_major_operands() -> None:
    gemm = by_columns(515, 517, 513)
    config = PlanConfig(SimtConfig(), BOTH, B)
    kernels = PaperKernels(H200)
    plan = plan_of(kernels, Request(gemm, alignment_of(gemm)), config)
    copy, product = launches_of(plan)
    assert copy.source.entry == "copy_padded_f32x1_transposed_f32x1"
    # lines and length of A, then of its copy; their leading dimensions: the copy's are whole lines of 128 bytes
    assert copy.arguments[4:10] == (515, 513, 515, 516, 513, 544)
    assert copy.arguments[12:18] == (517, 513, 513, 520, 513, 544) and copy.grid == (65 * 3 + 17 * 9, 1, 1)
    (a, padded, b, turned), (*read, _) = (step.pointers for step in plan.steps)
    assert (a, b) == ((Place.A, 0), (Place.B, 0)) and read == [padded, turned]
    assert padded == (Place.SCRATCH, 0) and turned == (Place.SCRATCH, 515 * 544 * 4 // 256 * 256 + 256)
    read_as = kernels.products[product.source].gemm
    assert (read_as.a, read_as.b) == (Order.ROW, Order.ROW)
    assert plan.words.endswith("A packed, B transposed")


def test_a_stack_is_turned_by_one_launch() -> None:
    gemm = by_columns(2048, 2048, 2048)
    size = 2048 * 2048
    plan = plan_of(PaperKernels(), Request(gemm, WIDE, Stack(6, size, size, size)), TRANSPOSED)
    assert plan.words.endswith("B transposed") and [step.launch.grid[2] for step in plan.steps] == [6, 6]


def test_no_workspace_is_nothing_turned() -> None:
    (step,) = planned(paper_dispatcher(H200), by_columns(4096, 4096, 4096), without_workspace=True).steps
    assert not step.launch.source.entry.startswith("copy_")


def test_the_order_of_a_sum_is_that_of_the_kernel_alone() -> None:
    gemm = by_columns(4096, 4096, 4096)
    assert order_of_plan(gemm, WIDE, TRANSPOSED) == order_of_plan(gemm, WIDE, PlanConfig(SimtConfig()))


def test_estimates_count_what_is_moved() -> None:
    found = ranked(by_columns(8192, 8192, 8192), H200, WIDE)
    by_rows = ranked(Gemm(8192, 8192, 8192), H200, WIDE)
    turned = next(time for time, config in found if config.transposed)
    assert 100 < turned - by_rows[0][0] < 190  # 537 MB, a launch, and what trees say of either


SMALL = SimtConfig((32, 64, 16), (16, 32), unroll=8)


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


@pytest.mark.cross_section("lead", "splits", every=2)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("lead", "shape"), [((), (40, 70, 100)), ((), (33, 65, 131)), ((3,), (20, 37, 50))], ids=str)
def test_the_product_is_right(
    gpu: State, monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...], shape: tuple[int, int, int], splits: int
) -> None:
    """With an unaligned leading dimension, batched, with what is added; split-K."""
    if lead and splits > 1:
        pytest.skip("a stack is never summed in parts")
    config = PlanConfig(SMALL.with_split_k(splits), BOTH if shape[2] % 4 else B, B)
    monkeypatch.setattr(dispatch, "estimated", lambda request, spec: iter([config]))
    m, n, k = shape
    a, b, c = drawn(*lead, m, k), drawn(*lead, k, n, order="T"), drawn(*lead, m, n)
    assert_right(matmul(a, b), a, b)
    assert any("transposed_f32" in name for name in gpu.launches)
    assert any("reduce" in name for name in gpu.launches) == (splits > 1)
    assert_right(matmul(a, b, c=c), a, b, added=np.asarray(c))
