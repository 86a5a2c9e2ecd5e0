"""Estimates of kernels of mma.sync whose copies are narrow, against the same written out and against the compiler."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.device.catalog import device
from tilewright.dtypes import BF16
from tilewright.kernels.columns import Columns
from tilewright.kernels.mma import MmaConfig
from tilewright.planning.assembly import Request, plan_of
from tilewright.planning.cost import narrow_copies, warp_terms
from tilewright.planning.cost.launches import Around, Sizes
from tilewright.planning.cost.plans import plan_seconds
from tilewright.planning.on_paper import PaperKernels, alignment_of_rows, launches_of
from tilewright.planning.packing import Packing
from tilewright.problem.gemm import Gemm, Order
from tilewright.runtime.nvrtc import compile_cuda
from tilewright.winners.plan_config import PlanConfig

H200 = device("H200")
ODD = Gemm(6, 50257, 2560, BF16)
"""Rows of A are aligned, those of B begin at any element."""

SKINNY, DEEP = MmaConfig((16, 128, 32), (16, 32), stages=4), MmaConfig((16, 64, 64), (16, 16), stages=4)
WIDE = MmaConfig((64, 128, 32), (64, 32), stages=4)


def columns(*kernels: MmaConfig) -> Columns:
    return Columns.of(kernels, kernels[0].columns)


def around(a: int, b: int) -> Around:
    return Around(Packing(), a, b, 2, 1)


@pytest.mark.parametrize(
    ("kernel", "a", "b", "registers"),
    # 32, two of each accumulator, and two of each copy of a thread; in eights, 255 at most.
    [
        (SKINNY, 16, 2, 32 + 2 * 16 + 2 * (16 / 16 + 128 / 2) * 64 / 128),
        (SKINNY, 16, 16, 32 + 2 * 16 + 2 * (16 + 128) / 16 * 64 / 128),
        (WIDE, 16, 2, 32 + 2 * 64 + 2 * (64 / 16 + 128 / 2) * 64 / 128),
        (WIDE, 2, 2, 255),
    ],
)
def test_copies_take_registers(kernel: MmaConfig, a: int, b: int, registers: float) -> None:
    (found,) = narrow_copies.room_for_copies(columns(kernel), ODD, around(a, b), H200).tolist()
    assert found == 65536 // (min(255, 8 * np.ceil(registers / 8)) * 128)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [SKINNY, DEEP, WIDE], ids=str)
def test_the_compiler_takes_about_as_many(kernel: MmaConfig) -> None:
    alignment = alignment_of_rows(ODD)
    plan = plan_of(PaperKernels(H200), Request(ODD, alignment), PlanConfig(kernel))
    (source,) = (one.source for one in launches_of(plan))
    taken = compile_cuda(source, "sm_90a").resources.registers
    (room,) = narrow_copies.room_for_copies(columns(kernel), ODD, around(alignment.a, alignment.b), H200).tolist()
    assert abs(65536 // (taken * 128) - room) <= 1


def test_elements_wait_in_each_k_tile() -> None:
    """Of 6 x 50257 x 2560 the 3 blocks of the busiest SM load 128 columns of 32 rows each, by elements."""
    c, sizes = columns(SKINNY), Sizes(6, 50257, 2560)
    most, steps = np.array([3.0]), np.array([80])
    wait = 817 + 8 * 32  # a thread has 32 elements
    a_clocks = 3 * 6 * 64 / 42  # 6 rows of A for each block
    for per_sm, rounds in ((3, 1), (2, 2), (1, 3)):
        (found,) = narrow_copies.waiting_clocks(c, ODD, around(16, 2), sizes, np.array([per_sm]), most, steps)
        assert found == pytest.approx(80 * (rounds * wait + a_clocks))


def test_only_what_cp_async_cannot_copy_waits() -> None:
    assert [narrow_copies.copies_elements(around(16, b)) for b in (2, 4, 8, 16)] == [True, False, False, False]


@pytest.mark.parametrize(("b", "fits"), [(2, False), (4, True), (16, True)])
def test_loops_that_outgrow_the_caches_of_instructions_are_out_of_the_question(b: int, fits: bool) -> None:
    """Two warps that copy elements of a tile of 128 columns: 8 x 4096 x 1433 takes 157 us, the best 6.7 (H200)."""
    two, four = MmaConfig((16, 128, 32), (16, 64), stages=4), MmaConfig((32, 128, 32), (16, 64), stages=4)
    found = narrow_copies.loops_fit_caches(columns(two, four), ODD, around(16, b))
    assert found.tolist() == [fits, True]
    told = around(16, b)
    (seconds,) = plan_seconds("mma", [(columns(two, four), told)], ODD, H200)
    assert np.isfinite(seconds).tolist() == [fits, True]


def test_deep_k_tiles_wait_less_often() -> None:
    """12 x 15029 x 456 f16 NN: 10.6 us with 64 of k and blocks of 64 columns, 14.9 with 32 and 128 (H200)."""
    gemm = Gemm(12, 15029, 456, BF16)
    alignment = alignment_of_rows(gemm)
    told = Around(Packing(), alignment.a, alignment.b, alignment.c, 1)
    c = columns(DEEP, SKINNY)
    seconds, _ = warp_terms.kernels_timed("mma", c, gemm, H200, told, Sizes.of(gemm, c, Packing()))
    assert 1.2 < seconds[1] / seconds[0] < 1.8
    assert gemm.b is Order.ROW
