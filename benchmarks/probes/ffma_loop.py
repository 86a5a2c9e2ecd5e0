"""The kernel of the probes that time FFMAs: so many of them in a loop, written out, with the clock read around it."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.artifacts import CudaSource, Parameter
from tilewright.dtypes import F32, I32

SUMS = 64
WARPS_A_SCHEDULER = (1, 2, 4)


def source(ffmas: int, warps: int, factors: int, factors_of: Callable[[int], tuple[int, int]]) -> CudaSource:
    """Warps of one block, which all schedulers share. factors: registers of each side; factors_of: an FFMA's two."""
    # Written out: a loop of so many is not unrolled whole. By fmaf, or the products would be moved out of the loop.
    lines = "\n".join(
        f"        sums[{i % SUMS}] = fmaf(left[{left}], right[{right}], sums[{i % SUMS}]);"
        for i, (left, right) in enumerate(map(factors_of, range(ffmas)))
    )
    text = f"""
extern "C" __global__ void __launch_bounds__({warps * 32}, 1)
multiply_adds(const float* __restrict__ values, float* __restrict__ out, int* __restrict__ clocks, int rounds)
{{
    float sums[{SUMS}], left[{factors}], right[{factors}];
    #pragma unroll
    for (int i = 0; i < {SUMS}; ++i) sums[i] = values[i * 32 + threadIdx.x % 32];
    #pragma unroll
    for (int i = 0; i < {factors}; ++i) {{
        left[i] = values[i * 64 + threadIdx.x % 32];
        right[i] = values[i * 64 + threadIdx.x % 32 + 32];
    }}
    __syncthreads();
    const int start = clock();
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {{
{lines}
    }}
    __syncthreads();
    const int end = clock();
    float all = 0;
    #pragma unroll
    for (int i = 0; i < {SUMS}; ++i) all += sums[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
    if (threadIdx.x == 0) clocks[blockIdx.x] = end - start;
}}
"""
    pointers = (
        Parameter("values", F32, is_pointer=True),
        Parameter("out", F32, is_pointer=True),
        Parameter("clocks", I32, is_pointer=True),
    )
    return CudaSource(text, "multiply_adds", (*pointers, Parameter("rounds", I32)), warps * 32)
