"""What people call today, each as a function of a pair of operands that works on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.problem.gemm import Gemm
from tilewright.suite.cublaslt import WORKSPACE_BYTES, CublasLt

Multiply = Callable[[Any, Any], Any]


def true_to_formats(torch: Any, gemm: Gemm) -> None:
    """torch multiplies as the problem says: no tf32 unless asked for, no sums in 16 bits."""
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = gemm.multiplies_tf32
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False


def compiled(torch: Any) -> Multiply:
    """torch.compile with max-autotune, tuned at its first call; no CUDA graphs of its own, as ours is captured."""
    torch._dynamo.reset()
    found: Multiply = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs", dynamic=False)
    return found


def through_cublaslt(torch: Any, library: CublasLt, gemm: Gemm) -> list[Multiply]:
    """One function for each algorithm that cuBLASLt offers, the likeliest first."""
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def function(launch: Callable[[int, int, int, int], None]) -> Multiply:
        def multiply(a: Any, b: Any) -> Any:
            result = torch.empty(gemm.m, gemm.n, dtype=a.dtype, device=a.device)
            launch(a.data_ptr(), b.data_ptr(), result.data_ptr(), torch.cuda.current_stream().cuda_stream)
            return result

        multiply.__dict__["workspace"] = workspace  # as long as the function may be called
        return multiply

    return [function(launch) for launch in library.multiplications(gemm, workspace.data_ptr())]
