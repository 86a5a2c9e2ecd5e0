"""The switch that runs the products of a whole PyTorch model through tilewright."""

from __future__ import annotations

from typing import Any

from tilewright.frontend.options import Guarding, Precision, check_precision, unguarded


def route_torch(*, precision: Precision = "default", guard: Guarding = "on") -> Any:
    """Within the block, the products of PyTorch run through tilewright: `mm`, `addmm`, `bmm`, `baddbmm`, also with
    `out=`, `_grouped_mm` with offsets, and so `a @ b`, `torch.matmul`, `nn.Linear`, `nn.MultiheadAttention` and the
    layers of transformers.

    Routed are dense CUDA tensors of float32, float16 or bfloat16, and what torch.autocast makes of them; on Hopper also
    `torch._scaled_mm` and `torch.nn.functional.scaled_mm`, with one scale for each operand, for each
    row and column, or for each block of 128 of k, and `torch._scaled_grouped_mm` of groups of rows; all else runs as
    before. Gradients stay PyTorch's: their products are
    routed where `backward` is called within the block. Blocks may be nested, and each thread has its own. Compiled
    functions that are called within the block are routed without being compiled anew; from PyTorch 2.6 on the block may
    also lie inside one, where products with scales stay PyTorch's.

        with tilewright.route_torch() as routed:
            loss = model(x).sum()
            loss.backward()
        print(routed)  # how many products were routed, and why others were not

    precision, guard: of float32 products, as for `matmul`. Where PyTorch itself is allowed to round them to tf32
    (`torch.set_float32_matmul_precision`), they are.

    The kernels stand in PyTorch's dispatcher while a block is open, so that other operators pay nothing. The first
    block to open and the last to close change the dispatcher, which PyTorch does not guard against products that other
    threads start at that moment. PyTorch before 2.9 does not hand out its own kernels: there a mode sees every
    function that is called in the block. Raises MissingExtra where there is no PyTorch.
    """
    check_precision(precision)
    from tilewright.integrations.torch_kernels import routing

    return routing(unguarded(precision, guard))
