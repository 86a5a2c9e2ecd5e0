"""Epilogues with several results, FP8 codes, pairs of columns and dropout on a real GPU, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright import matmul, ops
from tilewright.runtime.driver import gpu_problem

torch: Any = pytest.importorskip("torch")

from benchmarks import fused_epilogues  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def gpu() -> None:
    assert gpu_problem() is None
    torch.manual_seed(0)


@pytest.mark.parametrize("scale", [4, 31])
@pytest.mark.parametrize("case", list(fused_epilogues.cases()), ids=lambda case: case.name)
def test_both_sides_of_a_case_agree(case: fused_epilogues.Case, scale: int) -> None:
    if case.fp8 and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("scales of blocks are found by wgmma")
    operands = case.make(*fused_epilogues.sizes(case.shape, scale), torch.device("cuda"))
    ours = case.ours(*operands)
    for theirs in case.theirs:
        off = fused_epilogues.distances(ours, theirs(*operands))
        assert all(one <= fused_epilogues.MOST_DISTANCE[kind] for one, kind in zip(off, case.kinds, strict=True)), off


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_elements_are_dropped_by_every_kernel_and_backward(dtype: Any) -> None:
    from tilewright.frontend.pytorch.functions import uniform_tensor

    for m, n, k in ((300, 264, 128), (1000, 130, 64)):
        a, b = (torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_() for shape in ((m, k), (k, n)))
        found = matmul(a, b, epilogue=lambda acc, seed: ops.dropout(acc, 0.25, seed), operands={"seed": 99})
        kept = uniform_tensor(99, 0, (m, n), a.device) >= 0.25
        assert torch.equal(found != 0, kept)
        (ours,) = torch.autograd.grad(found.sum(), a)
        (theirs,) = torch.autograd.grad((torch.where(kept, (a @ b) / 0.75, 0.0)).sum(), a)
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-1)


def test_folds_have_the_same_bits_in_every_run() -> None:
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    runs = [matmul(a, b, epilogue=lambda acc: (acc, ops.row_sum(acc), ops.column_sum(acc))) for _ in range(3)]
    for others in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(runs[0], others, strict=True))
