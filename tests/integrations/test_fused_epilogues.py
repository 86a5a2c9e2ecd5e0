"""The cases of benchmarks/fused_epilogues.py: ours and PyTorch's agree, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from benchmarks import fused_epilogues  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("case", list(fused_epilogues.cases()), ids=lambda case: case.name)
def test_both_sides_of_a_case_agree(case: fused_epilogues.Case) -> None:
    assert fused_epilogues.run(case, torch.device("cpu"), 256)["right"]
