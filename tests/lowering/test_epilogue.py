"""Bias, residual and activation, fused into every kind of store."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import BF16, F16, F32
from tilewright.errors import LoweringError
from tilewright.ladders import find_rung
from tilewright.problem import Activation, Epilogue, Gemm, Order, check, make_operands
from tilewright.toolchain import build, run_on_simulator

EPILOGUES = [
    Epilogue(bias="n", activation=Activation.GELU),
    Epilogue(bias="m", residual=True, activation=Activation.RELU),
    Epilogue(residual=True, activation=Activation.SILU),
    Epilogue(activation=Activation.GELU_TANH),
]
SMALL = {"m": 64, "n": 64, "consumers": 1, "stages": 2}
SUBTILES = {"m": 128, "n": 128, "consumers": 2, "stages": 2, "raster_rows": 1, "subtiles": 2}
AMPERE = {
    "m": 64, "n": 64, "k_bytes": 64, "warp_m": 32, "warp_n": 32, "stages": 2, "double_buffered_fragments": False,
    "interleaved_copies": False, "serpentine": False, "raster_rows": 1,
}  # fmt: skip


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize(
    ("rung", "point", "gemm"),
    [
        ("worklog/3", None, {}),
        ("worklog/6", None, {"dtype": F16, "out": F16, "c": Order.COL}),
        ("worklog/best", None, {}),
        ("ampere/full", AMPERE, {"dtype": F16, "out": F16}),
        ("hierarchy/wmma", None, {"dtype": F16, "out": F32}),
        ("hopper/shared_b", SMALL, {"dtype": BF16, "out": F32}),
        ("hopper/tma_store", SUBTILES, {"dtype": BF16, "out": BF16}),
    ],
)
def test_every_kind_of_store(
    rung: str, point: dict[str, int] | None, gemm: dict[str, object], epilogue: Epilogue
) -> None:
    problem = Gemm(72, 136, 40, alpha=0.5, beta=-1.5, epilogue=epilogue, **gemm)  # type: ignore[arg-type]
    found = find_rung(rung)
    schedule = found.schedule(problem) if point is None else found.choices.schedule_at(problem, point)  # type: ignore[union-attr]
    operands = make_operands(problem)
    computed, _ = run_on_simulator(build(problem, schedule), operands)
    verdict = check(operands, computed)
    assert verdict.ok, verdict.message


def test_a_residual_with_rows_further_apart_at_edges() -> None:
    gemm = Gemm(33, 35, 17, epilogue=Epilogue("n", residual=True), beta=2.0, ld_residual=41)
    operands = make_operands(gemm)
    computed, _ = run_on_simulator(build(gemm, find_rung("worklog/6")), operands)
    assert check(operands, computed).ok


def test_a_sum_in_c_has_no_epilogue() -> None:
    gemm = Gemm(8, 8, 8, epilogue=Epilogue("n"))
    with pytest.raises(LoweringError, match="leaves no finished sum"):
        _ = build(gemm, find_rung("te/0")).kernel


def test_functions_as_they_are_defined() -> None:
    x = np.array([-3.0, -0.5, 0.0, 0.5, 3.0, np.nan])
    assert np.isnan(Activation.RELU.of(x)[-1])
    np.testing.assert_allclose(
        Activation.GELU.of(x[:5]), [-0.00404969, -0.15426877, 0, 0.34573123, 2.99595031], atol=1e-8
    )
    np.testing.assert_allclose(
        Activation.SILU.of(x[:5]), [-0.14227762, -0.18877033, 0, 0.31122967, 2.85772238], atol=1e-8
    )
