"""Operands and their check, on the CPU where PyTorch is installed."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.errors import TilewrightError
from tilewright.suite.operands import ALIGNMENT_ELEMENTS, checked, copies_of, operands_of, scales_of
from tilewright.suite.problems import Problem

PROBLEM = Problem(33, 70, 129, "f16", "TN")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_operands_lie_as_their_orders_say_and_none_overlap(torch: Any) -> None:
    gemm = PROBLEM.gemm
    pairs = operands_of(torch, gemm, torch.float16, "cpu")[:2]
    (a, b), (next_a, _) = pairs
    assert (a.shape, b.shape) == ((33, 129), (129, 70))
    assert a.t().is_contiguous() and b.is_contiguous()
    step_bytes = next_a.data_ptr() - a.data_ptr()
    assert step_bytes >= a.numel() * 2 and step_bytes % (ALIGNMENT_ELEMENTS * 2) == 0


def test_operands_are_more_than_a_cache_holds() -> None:
    gemm = Problem(1000, 1000, 1000, "bf16").gemm
    assert copies_of(gemm) * 3 * 2e6 > 4 * 50e6


@pytest.mark.parametrize("wrong", [0.0, float("nan"), 1e6])
def test_one_wrong_element_is_found(torch: Any, wrong: float) -> None:
    gemm = PROBLEM.gemm
    a, b = operands_of(torch, gemm, torch.float16, "cpu")[0]
    result = (a.float() @ b.float()).half()
    assert checked(torch, gemm, "it", result, a, b) < 1e-3
    result[7, 11] = wrong
    with pytest.raises(TilewrightError, match=r"it is wrong for 33x70x129 f16 TN: \d+ of"):
        checked(torch, gemm, "it", result, a, b)


@pytest.mark.parametrize("text", ["32x48x128 e4m3 NT row fast", "32x48x256 e4m3 NT tensor"])
def test_scaled_products_are_checked_with_their_scales(torch: Any, text: str) -> None:
    problem = Problem.of(text)
    gemm = problem.gemm
    a, b = operands_of(torch, gemm, torch.float8_e4m3fn, "cpu")[0]
    scales = scales_of(torch, gemm, "cpu")
    result = ((a.float() @ b.float()) * scales[0] * scales[1]).bfloat16()
    assert checked(torch, gemm, "it", result, a, b, scales=scales, promote_every=problem.promote_every) < 4e-3
    result[:, 5] *= 2
    with pytest.raises(TilewrightError, match="it is wrong"):
        checked(torch, gemm, "it", result, a, b, scales=scales, promote_every=problem.promote_every)
