"""What lanes take to add their sums is part of a GEMV kernel's estimate, and of its prediction."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest
from named_problems import problem_named, request_of

from tilewright.device.catalog import H200
from tilewright.planning.cost import gemv
from tilewright.planning.skinny import skinny_for

SHORT = "10x4902x41 tf32 NT"


def config_of(name: str) -> tuple[gemv.GemvConfig, gemv.Gemm]:
    request = request_of(problem_named(name))
    skinny = skinny_for(request.gemm, request.alignment, H200, request.stack)
    assert skinny is not None
    return skinny.config, request.gemm


def test_an_sm_serves_the_shuffles_of_a_warp_a_clock() -> None:
    config, gemm = config_of(SHORT)
    assert (config.rows, config.lanes_k, config.warps) == (16, 16, 4)
    blocks = -(-4902 // (config.warps_out * config.lanes_out * config.outputs))
    shuffles = blocks * 4 * 16 * config.outputs * log2(16)
    assert gemv.adding_seconds(config, gemm, H200) == pytest.approx(shuffles / 132 / (H200.boost_clock_mhz * 1e6))
    assert gemv.adding_seconds(replace(config, lanes_k=1), gemm, H200) == 0
    assert gemv.adding_seconds(config, gemm, H200, 3) == pytest.approx(3 * gemv.adding_seconds(config, gemm, H200))


@pytest.mark.parametrize(
    ("name", "measured_us"),
    [(SHORT, 3.79), ("2589x11x38 tf32 NT", 2.67), ("14x2102x35 tf32 NT", 3.06), ("2890x8x49 tf32 NN", 2.62)],
)
def test_short_sums_are_estimated_nearer_to_their_times_with_it(name: str, measured_us: float) -> None:
    """Recorded on an H200 (benchmarks/sweeps)."""
    config, gemm = config_of(name)
    told_us = 1e6 * gemv.gemv_seconds(config, gemm, H200)
    without_us = told_us - 1e6 * gemv.adding_seconds(config, gemm, H200)
    assert 1.25 * without_us < told_us < measured_us < 1.35 * told_us


def test_a_prediction_tells_it_and_is_the_sum_of_its_terms() -> None:
    config, gemm = config_of(SHORT)
    found = gemv.predict_gemv(config, gemm, H200)
    assert found.seconds == pytest.approx(gemv.gemv_seconds(config, gemm, H200))
    (sums,) = (term for term in found.terms if term.name == "sums of lanes")
    assert sums.seconds == pytest.approx(gemv.adding_seconds(config, gemm, H200))
    exposed = [term.seconds for term in found.terms if term.kind == "exposed"]
    assert found.binding.seconds + sum(exposed) == pytest.approx(found.seconds)
