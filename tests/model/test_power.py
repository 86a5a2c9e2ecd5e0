"""Board power: what energies make of a kernel, and the clock that a limit leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.device.catalog import A100, B200, DEVICES, H200, RTX_2080_TI, RTX_3090, RTX_4090, RTX_5090
from tilewright.device.spec import DeviceSpec
from tilewright.kernels.work import Access, Phase, Work
from tilewright.model.power import DRAM_PJ, IDLE_SHARE, INSTRUCTION_PJ, L2_PJ, MMA_PJ, Energy, Events, sustained_mhz
from tilewright.model.time import predict_time

FAR = Access("A_tile", "store", "shared", 16, requests=8, wavefronts=32, ideal=32, copies=True)
WORK = Work(
    step=Phase(matrix_flops=1e6, matrix_instructions=100, accesses=(FAR, replace(FAR, space="global"))),
    rest=Phase(other=50),
    steps=64,
    warps=8,
    blocks=1024,
    strip_bytes=8192,
    flops=64 * 1024 * 10**6,
    inputs="bf16",
    warpgroups=True,
)


def test_events_are_counted_over_all_blocks_and_the_far_side_of_a_copy_is_none() -> None:
    found = Events.of(WORK, 1e6)
    assert found == Events(64 * 1024 * 1e6, 1024 * (64 * 108 + 50) * 32, 1024 * 64 * 8192, 1e6)


def test_energy_is_that_of_the_events_and_of_the_architecture() -> None:
    one, found = Events.of(WORK, 1e6), Energy.of(WORK, H200, 1e6)
    core = MMA_PJ * one.flops + INSTRUCTION_PJ * one.instructions + L2_PJ * one.l2_bytes
    assert found.core == pytest.approx(core * 1e-12) and found.dram == pytest.approx(DRAM_PJ * 1e-6)
    others = core - MMA_PJ * one.flops
    assert Energy.of(WORK, A100, 1e6).core == pytest.approx((core + 0.96 * others) * 1e-12)
    assert Energy.of(replace(WORK, inputs="tf32"), H200, 0).core > 1.3 * found.core


def test_power_is_what_idles_and_energy_over_time_and_falls_with_the_clock() -> None:
    energy = Energy(0.1, 0.02)
    assert energy.power_w(H200, H200.boost_clock_mhz, 1e-3) == pytest.approx(700 * IDLE_SHARE + 120)
    assert energy.power_w(H200, H200.boost_clock_mhz / 2, 2e-3) == pytest.approx(700 * IDLE_SHARE + 35)


def test_the_sustained_clock_draws_the_limit_or_is_the_clock() -> None:
    energy = Energy(1.0, 0.0)  # 1100 W at the boost clock
    found = sustained_mhz(energy, H200, 1980, lambda mhz: 1e-3 * 1980 / mhz)
    assert energy.power_w(H200, found, 1e-3 * 1980 / found) == pytest.approx(700, rel=1e-3)
    assert found == pytest.approx(1980 * (600 / 1000) ** 0.5, rel=1e-3)
    assert sustained_mhz(Energy(0.5, 0.0), H200, 1980, lambda mhz: 1e-3 * 1980 / mhz) == 1980


def test_a_lower_limit_makes_the_sustained_figure_slower_and_leaves_the_burst() -> None:
    free, limited = (
        predict_time(WORK, replace(H200, board_power_w=watts), blocks_per_sm=1, dram_bytes=1e6) for watts in (5000, 300)
    )
    assert free.seconds == free.sustained_s == limited.seconds < limited.sustained_s
    assert free.sustained.startswith("Sustained: the same") and "that 300 W allow." in limited.sustained
    assert limited.sustained_tflops == pytest.approx(WORK.flops / limited.sustained_s / 1e12)


@pytest.mark.parametrize("largest", [RTX_2080_TI, A100, RTX_3090, RTX_4090, H200, B200, RTX_5090], ids=lambda s: s.name)
def test_energies_are_scaled_by_what_the_largest_board_of_an_architecture_has(largest: DeviceSpec) -> None:
    watts = largest.board_power_w / largest.peak_fp32_tflops / (H200.board_power_w / H200.peak_fp32_tflops)
    assert largest.energy_scale == pytest.approx(watts, rel=0.02)
    alike = [spec for spec in DEVICES if spec.compute_capability == largest.compute_capability]
    assert all(spec.energy_scale == largest.energy_scale for spec in alike)
    assert max(spec.board_power_w for spec in alike) == largest.board_power_w
