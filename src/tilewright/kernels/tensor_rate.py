"""What tensor cores do for a problem."""

from __future__ import annotations

from functools import lru_cache

from tilewright.device.spec import DeviceSpec
from tilewright.dtypes import F32
from tilewright.problem.gemm import Gemm


@lru_cache(maxsize=64)
def tensor_rate(gemm: Gemm, spec: DeviceSpec) -> int:
    """Operations per clock and SM, a multiply-add being two, of the tensor cores that multiply the formats of a problem
    and sum in its own; 0 where the GPU has none for them."""
    return 0 if gemm.multiplied is F32 else spec.tensor.flops_per_clk_per_sm(gemm.multiplied.rate, gemm.accumulate.name)
