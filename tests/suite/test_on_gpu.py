"""One small problem through PyTorch, every peer."""

from __future__ import annotations

import pytest

from tilewright.suite.problems import Problem
from tilewright.suite.running import CUBLAS, CUBLASLT, OURS


@pytest.mark.gpu
@pytest.mark.parametrize("orders", ["NN", "NT", "TN"])
@pytest.mark.parametrize("format_name", ["bf16", "f16", "f32", "tf32"])
def test_everybody_is_checked_and_timed(format_name: str, orders: str) -> None:
    pytest.importorskip("torch")
    from tilewright.suite.gpu import TorchBench

    measured = TorchBench().measure(Problem(264, 520, 392, format_name, orders), (CUBLAS, CUBLASLT))
    assert set(measured.times) == {OURS, CUBLAS, CUBLASLT} and not measured.notes
    assert all(1 < times.median_us < 1000 for times in measured.times.values())
