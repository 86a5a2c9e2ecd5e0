"""Our product and what people call today, each a function of a pair of operands that works on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from tilewright.frontend import matmul, scaled_matmul
from tilewright.frontend.compute import words_of
from tilewright.frontend.libraries import library_of
from tilewright.frontend.options import options_asked
from tilewright.frontend.scaled import scaled_options, words_of_scaled
from tilewright.problem.gemm import Gemm
from tilewright.suite.cublaslt import WORKSPACE_BYTES, CublasLt
from tilewright.suite.problems import Problem

Multiply = Callable[[Any, Any], Any]


def true_to_formats(torch: Any, gemm: Gemm) -> None:
    """torch multiplies as the problem says: no tf32 unless asked for, no sums in 16 bits."""
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = gemm.multiplies_tf32
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False


def over(call: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> Callable[[], Any]:
    """A call that takes the next operands each time."""
    turn = cycle(sets)
    return lambda: call(*next(turn))


def by_tilewright(problem: Problem, scales: Sequence[Any] = ()) -> Multiply:
    """Ours. scales: of `operands.scales_of`."""
    if scales:
        return lambda a, b: scaled_matmul(a, b, *scales, fast_accumulation=problem.fast)
    return lambda a, b: matmul(a, b, precision=problem.precision)


def by_torch(torch: Any, problem: Problem, scales: Sequence[Any] = ()) -> Multiply:
    """What PyTorch has for it: f32 arithmetic where ours emulates it."""
    if not scales:
        mm: Multiply = torch.mm
        return mm
    out = getattr(torch, problem.gemm.out.array_name)
    return lambda a, b: torch._scaled_mm(a, b, *scales, out_dtype=out, use_fast_accum=problem.fast)


def words_of_problem(problem: Problem, a: Any, b: Any, scales: Sequence[Any] = ()) -> str:
    """What ran of ours in a call that was made before."""
    if scales:
        return words_of_scaled(library_of(a), (a, b, *scales, None, None), scaled_options(None, problem.fast))
    return words_of(a, b, options_asked(1.0, None, None, problem.precision, None, False, None, False))


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
