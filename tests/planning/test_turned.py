"""B that lies by columns, turned before a kernel that multiplies by FFMA: what is chosen, what is launched, and what
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
from tilewright.ladders.worklog.r13_best import BEST
from tilewright.planning import dispatch
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.choices import choices
from tilewright.planning.copies import Alignment, Copies, fitted, ways_to_copy
from tilewright.planning.dispatch import estimated
from tilewright.planning.on_paper import PaperKernels, launches_of, order_of_choice
from tilewright.planning.plan import Place
from tilewright.planning.stack import Stack
from tilewright.problem import Gemm, Order
from tilewright.winners.choice import Choice

H200 = device("H200")
WIDE, ODD = Alignment(16, 16, 16), Alignment(4, 4, 4)
A, B, BOTH = frozenset("A"), frozenset("B"), frozenset("AB")
TURNED = Choice("worklog/best", {}, 1, B, B)


def by_columns(m: int, n: int, k: int, **options: Any) -> Gemm:
    return Gemm(m, n, k, F32, b=Order.COL, **options)


@pytest.mark.parametrize("shape", [(2048,) * 3, (4096,) * 3, (8192,) * 3, (4096, 14336, 4096), (8192, 8192, 512)])
def test_large_problems_turn_b_first(shape: tuple[int, int, int]) -> None:
    best = estimated(asked(*shape, "f32", "NT"), H200)[0]
    assert (best.pads, best.turned, best.splits) == (B, B, 1)
    assert not estimated(asked(*shape, "f32", "NN"), H200)[0].pads


def test_both_are_turned_where_both_are_copied_anyway() -> None:
    best = estimated(asked(4095, 4097, 4093, "f32", "NT"), H200)[0]
    assert (best.pads, best.turned, best.filled) == (BOTH, BOTH, True)


# Of the last, rows of a turned B would lie 594 KiB apart, and are read no faster.
@pytest.mark.parametrize("shape", [(256,) * 3, (1024,) * 3, (64, 4096, 14336), (16, 8192, 8192), (2048, 151936, 2048)])
def test_problems_that_do_not_pay_for_it_do_not(shape: tuple[int, int, int]) -> None:
    assert not estimated(asked(*shape, "f32", "NT"), H200)[0].turned


def test_turning_is_a_way_for_b_by_columns_in_f32_on_ffma_alone() -> None:
    gemm = by_columns(512, 512, 512)
    assert ways_to_copy("worklog/best", gemm, WIDE) == (Copies(), Copies(B, B))
    assert ways_to_copy("worklog/best", gemm, ODD) == (
        *(Copies(), Copies(BOTH), Copies(BOTH, B)),
        Copies(BOTH, BOTH, filled=True),
    )
    assert ways_to_copy("worklog/best", Gemm(512, 512, 512), WIDE) == (Copies(),)
    assert ways_to_copy("ampere/full", gemm, WIDE) == ways_to_copy("hopper/best", gemm, WIDE) == (Copies(),)
    assert ways_to_copy("worklog/best", Gemm(512, 512, 512, BF16, b=Order.COL), WIDE) == (Copies(),)


def test_a_measured_choice_turns_what_lies_by_columns_and_nothing_else() -> None:
    assert fitted(TURNED, by_columns(512, 512, 512), WIDE) == TURNED
    padded = fitted(TURNED, Gemm(512, 512, 511), ODD)
    assert (padded.pads, padded.turned) == (B, frozenset())
    assert fitted(TURNED, Gemm(512, 512, 512), WIDE) == Choice("worklog/best")
    both = Choice("worklog/best", {}, 1, BOTH, B)
    assert fitted(both, by_columns(512, 512, 512), WIDE) == TURNED
    assert fitted(both, by_columns(512, 512, 511), ODD) == both


def test_a_plan_turns_b_and_pads_a_before_a_product_that_reads_both_by_rows() -> None:
    gemm = by_columns(515, 517, 513)
    choice = Choice("worklog/best", {}, 1, BOTH, B)
    kernels = PaperKernels(H200)
    plan = plan_of(kernels, Request(gemm, alignment_of(gemm)), choice)
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
    assert plan.words.endswith("A copied first, B turned first")


def test_a_stack_is_turned_by_one_launch() -> None:
    gemm = by_columns(2048, 2048, 2048)
    size = 2048 * 2048
    plan = planned(paper_dispatcher(H200), gemm, Stack(6, size, size, size))
    assert plan.words.endswith("B turned first") and [step.launch.grid[2] for step in plan.steps] == [6, 6]


def test_no_workspace_is_nothing_turned() -> None:
    (step,) = planned(paper_dispatcher(H200), by_columns(4096, 4096, 4096), without_workspace=True).steps
    assert not step.launch.source.entry.startswith("copy_")


def test_the_order_of_a_sum_is_that_of_the_kernel_alone() -> None:
    gemm = by_columns(4096, 4096, 4096)
    assert order_of_choice(gemm, WIDE, TURNED) == order_of_choice(gemm, WIDE, Choice("worklog/best"))


def test_estimates_count_what_is_moved() -> None:
    found = choices(by_columns(8192, 8192, 8192), H200, WIDE)
    by_rows = choices(Gemm(8192, 8192, 8192), H200, WIDE)
    turned = next(time for time, choice in found if choice.turned)
    assert 100 < turned - by_rows[0][0] < 160  # 537 MB, and a launch


POINT = {**BEST, "bm": 32, "bn": 64, "wm": 16, "wn": 32, "unroll": 8}


@pytest.fixture
def gpu() -> Iterator[State]:
    with cpu_gpu() as state:
        yield state


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("lead", "shape"), [((), (40, 70, 100)), ((), (33, 65, 131)), ((3,), (20, 37, 50))], ids=str)
def test_the_product_is_right(
    gpu: State, monkeypatch: pytest.MonkeyPatch, lead: tuple[int, ...], shape: tuple[int, int, int], splits: int
) -> None:
    """On odd rows, in a stack, with what is added; in parts of k."""
    if lead and splits > 1:
        pytest.skip("a stack is never summed in parts")
    choice = Choice("worklog/best", POINT, splits, BOTH if shape[2] % 4 else B, B)
    monkeypatch.setattr(dispatch, "estimated", lambda request, spec: [choice])
    m, n, k = shape
    a, b, c = drawn(*lead, m, k), drawn(*lead, k, n, order="T"), drawn(*lead, m, n)
    assert_right(matmul(a, b), a, b)
    assert any("transposed_f32" in name for name in gpu.launches)
    assert any("reduce" in name for name in gpu.launches) == (splits > 1)
    assert_right(matmul(a, b, c=c), a, b, added=np.asarray(c))
