"""The switch that runs the products of a whole PyTorch model through tilewright."""

from __future__ import annotations

from contextlib import AbstractContextManager


def route_torch() -> AbstractContextManager[object]:
    """Within the block, the products of PyTorch run through tilewright: `a @ b`, `torch.matmul`, `mm`, `bmm`, `addmm`,
    `baddbmm` and `nn.functional.linear`, and so `nn.Linear`, `nn.MultiheadAttention` and the layers of transformers.

    Routed are dense CUDA tensors of float32, float16 or bfloat16, and what torch.autocast makes of them; all else runs
    as before. Blocks may be nested, and each thread has its own. From PyTorch 2.6 on the block may also lie inside a
    compiled function, or a compiled function be called within it. Raises MissingExtra where there is no PyTorch.

        with tilewright.route_torch():
            loss = model(x).sum()
            loss.backward()
    """
    from tilewright.integrations.torch_mode import Routing

    return Routing()
