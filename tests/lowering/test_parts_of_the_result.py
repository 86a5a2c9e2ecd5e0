"""A result that is stored in the iterations of a loop over its accumulators, through a small tile of shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright import BF16, F16, F32, TF32, Gemm, Order
from tilewright.errors import ScheduleError
from tilewright.ir.buffer import Space
from tilewright.kernels.mma_presets import BEST, at_depth
from tilewright.problem import make_operands
from tilewright.problem.tolerance import check
from tilewright.schedule import Distribute, Relayout, Schedule, Stage
from tilewright.toolchain import Build, build, run_on_simulator


def in_parts(gemm: Gemm, under: str, pad: int = 8) -> Build:
    """The full kernel with its result staged under a loop over fragments."""
    steps = (Stage("C", Space.SHARED, under=under), Distribute("C_tile", vector=4), Relayout("C_tile", pad=pad))
    return build(gemm, Schedule(*at_depth(BEST, gemm).schedule(gemm), *steps))


@pytest.mark.cross_section("under", "beta", "c", every=2)
@pytest.mark.parametrize("under", ["m_frag", "n_frag"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("c", list(Order), ids=lambda order: order.value)
def test_every_part_is_right(under: str, beta: float, c: Order) -> None:
    gemm = Gemm(131, 263, 40, BF16, out=BF16, c=c, alpha=1.5, beta=beta)
    operands = make_operands(gemm)
    computed, run = run_on_simulator(in_parts(gemm, under), operands)
    assert check(operands, computed).ok and not run.errors


def test_the_tile_is_as_small_as_a_part() -> None:
    gemm = Gemm(256, 512, 64, F16, out=F16)
    (tile,) = (b for b in in_parts(gemm, "m_frag").kernel.shared if b.name == "C_tile")
    assert tile.shape == (128 // 4, 256 + 8)


def test_neither_filling_nor_emptying_a_part_has_bank_conflicts() -> None:
    gemm = Gemm(256, 512, 64, F32, product=TF32, b=Order.COL)
    _, run = run_on_simulator(in_parts(gemm, "m_frag"), make_operands(gemm))
    tile = run.counters.of_origin("C_tile")
    assert tile.shared_loads.excess_wavefronts == tile.shared_stores.excess_wavefronts == 0
    assert run.counters.of_origin("C").instructions["STG.128"] * 4 * 32 == gemm.m * gemm.n


def test_neighbouring_lanes_store_neighbours_where_rows_are_odd() -> None:
    gemm = Gemm(128, 257, 64, BF16, out=BF16)
    _, run = run_on_simulator(in_parts(gemm, "m_frag"), make_operands(gemm))
    stores = run.counters.of_origin("C").global_stores
    assert stores.sectors / stores.requests < 4  # 64 bytes at any address lie in at most three sectors


def test_only_a_loop_over_sums_has_parts() -> None:
    gemm = replace(Gemm(256, 256, 64, F16), out=F16)
    with pytest.raises(ScheduleError, match="'k_step', which counts no accumulators of a thread"):
        in_parts(gemm, "k_step").program  # noqa: B018
